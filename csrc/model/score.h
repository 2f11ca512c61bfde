/* How probable a model finds a text: ln p of each token after those before it. */
#ifndef SD_SCORE_H
#define SD_SCORE_H

#include "forward.h"

/* A text being scored, slice by slice. */
typedef struct sd_score {
    const int32_t* tokens; /* [n] borrowed; must outlive the score */
    int n;
    const int32_t* source; /* [n_source] of a model with an encoder, borrowed likewise; NULL: there is none */
    int n_source;
    int n_done; /* tokens that have been read: at the end n - 1, the last one only being predicted */
    sd_cache cache;
    sd_workspace workspace;
} sd_score;

/* Prepare to score tokens [n], n ≥ 2, after source [n_source], which is NULL for a model without an encoder.
 * The score owns its memory; after a failure too it is to be freed. */
sd_status sd_score_create(sd_score* score, const sd_model* model, const int32_t* tokens, int n,
                          const int32_t* source, int n_source, int n_threads);
void sd_score_free(sd_score* score);

/* Encode the source and score the first slice, or score one slice more: log_probs [n - 1] f64, out, borrowed;
 * entry i is ln p(tokens[i + 1] | tokens[0 … i]). *done is set to whether that was the last slice. */
sd_status sd_score_slice(sd_score* score, double* log_probs, int* done);

#endif
