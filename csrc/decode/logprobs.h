/* Log-probabilities of the new tokens of a round, and the most probable tokens in the place of each. */
#pragma once

#include "verifier.h"

/* By which distribution. */
typedef enum sd_logprobs_type {
    SD_LOGPROBS_NONE,    /* none are asked for */
    SD_LOGPROBS_MODEL,   /* the softmax of the target's logits, as they are */
    SD_LOGPROBS_SAMPLING /* what is sampled from, by settings and transform */
} sd_logprobs_type;

typedef struct sd_logprobs_options {
    sd_logprobs_type of;
    int n_top; /* most probable tokens, 0 to n_vocab */
} sd_logprobs_options;

/* The kind of a name, "model" or "sampling". */
sd_status sd_logprobs_find(const char* name, sd_logprobs_type* of);

/* Of the accepted path and the token after it. The arrays are owned by the arena that they were taken
 * from. */
typedef struct sd_logprobs {
    double* log_probs;     /* [n_tokens] */
    int32_t* top_tokens;   /* [n_tokens, n_top] the best first, of equal ones the lower; -1 after the last
                            * token that has a probability */
    double* top_log_probs; /* [n_tokens, n_top] */
} sd_logprobs;

/* Take room for n_tokens with n_top most probable tokens each from the arena (which may be counting). */
sd_logprobs sd_logprobs_take(sd_arena* arena, int n_tokens, int n_top);

/* Fill those of a verdict. With SD_LOGPROBS_SAMPLING a transform is called once more for each token. */
sd_status sd_logprobs_fill(const sd_logprobs* logprobs, const sd_logprobs_options* options,
                           sd_verifier* verifier, const sd_verification* verification,
                           const sd_verdict* verdict);
