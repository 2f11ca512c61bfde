/* Log-probabilities of the new tokens of a round, and the most probable tokens at each position. */
#pragma once

#include "verifier.h"

/* Which distribution they are taken from. */
typedef enum sd_logprobs_type {
    SD_LOGPROBS_NONE,    /* none requested */
    SD_LOGPROBS_MODEL,   /* the softmax of the target's logits, as they are */
    SD_LOGPROBS_SAMPLING /* the distribution that is sampled from, after settings and transform */
} sd_logprobs_type;

typedef struct sd_logprobs_options {
    sd_logprobs_type of;
    int n_top; /* most probable tokens, 0 to n_vocab */
} sd_logprobs_options;

/* Find a type by its name, "model" or "sampling". */
sd_status sd_logprobs_find(const char* name, sd_logprobs_type* of);

/* Log-probabilities of the accepted path and the token after it. The arrays belong to their arena. */
typedef struct sd_logprobs {
    double* log_probs;     /* [n_tokens] */
    int32_t* top_tokens;   /* [n_tokens, n_top] the best first, of equal ones the lower; -1 after the last
                            * token that has a probability */
    double* top_log_probs; /* [n_tokens, n_top] */
} sd_logprobs;

/* Take arrays for n_tokens with n_top most probable tokens each from the arena (which may be counting). */
sd_logprobs sd_logprobs_take(sd_arena* arena, int n_tokens, int n_top);

/* Fill the log-probabilities of a verdict. With SD_LOGPROBS_SAMPLING a transform is called once more for each
 * token. */
sd_status sd_logprobs_fill(const sd_logprobs* logprobs, const sd_logprobs_options* options,
                           sd_verifier* verifier, const sd_verification* verification,
                           const sd_verdict* verdict);
