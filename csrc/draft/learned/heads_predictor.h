/* Heads that predict: from the last hidden state of the token before the root, which the session's cache
 * keeps (taps.h), head k gives the logits of the token k places behind the root. */
#ifndef SD_HEADS_PREDICTOR_H
#define SD_HEADS_PREDICTOR_H

#include "heads.h"
#include "predictor.h"

/* Borrowed; both must outlive the predictor. */
typedef struct sd_heads_predictor_options {
    const sd_heads* heads;
    /* Whose hidden states they read, whose head they may share, and by whose table guesses are embedded: the
     * model of the session's caches. */
    const sd_model* target;
} sd_heads_predictor_options;

/* Make a predictor of sd_heads_predictor_options. As many tokens in a row are predicted as there are heads;
 * none behind a text of one token, which has no token before the root. */
sd_status sd_heads_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);

#endif
