/* What the target says of the new tokens of a round: ln p of each, and the most probable tokens in its
 * place. */
#ifndef SD_TOKEN_LAWS_H
#define SD_TOKEN_LAWS_H

#include "verifier.h"

/* By which law. */
typedef enum sd_token_law {
    SD_LAW_NONE,    /* nothing is asked */
    SD_LAW_MODEL,   /* the softmax of the target's logits, as they are */
    SD_LAW_SAMPLING /* the distribution that is sampled from, by settings and transform */
} sd_token_law;

/* What is asked of each token. */
typedef struct sd_token_laws_options {
    sd_token_law law;
    int n_top; /* most probable tokens, 0 to n_vocab */
} sd_token_laws_options;

/* The law of a name, "model" or "sampling". */
sd_status sd_token_law_find(const char* name, sd_token_law* law);

/* Of the tokens of a round, those of the accepted path and the target's own. Arrays belong to the arena that
 * they were taken from, with room for what may be asked. */
typedef struct sd_token_laws {
    double* log_probs;     /* [n_tokens] */
    int32_t* top_tokens;   /* [n_tokens, n_top] the best first, of equal ones the lower; -1 behind the last
                            * token that has a probability */
    double* top_log_probs; /* [n_tokens, n_top] */
} sd_token_laws;

/* Take room for n_tokens, and for n_top most probable tokens in the place of each, from the arena (which may
 * be counting). */
sd_token_laws sd_token_laws_take(sd_arena* arena, int n_tokens, int n_top);

/* Fill the laws of a verdict on what was asked of the verifier. With SD_LAW_SAMPLING a transform is called
 * once more for each token. */
sd_status sd_token_laws_fill(const sd_token_laws* laws, const sd_token_laws_options* options,
                             sd_verifier* verifier, const sd_verification* asked, const sd_verdict* verdict);

#endif
