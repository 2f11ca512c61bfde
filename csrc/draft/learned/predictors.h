/* Learned drafts that read the target's hidden states, or have it guess ahead in its own forward passes. */
#pragma once

#include "predictor.h"

/* A small model that predicts from the target's hidden states: EAGLE-1 and EAGLE-3 (Li et al. 2024, 2025),
 * and the heads for multi-token prediction that some models bring (DeepSeek-V3).
 *
 * Row k of it reads token k + 1 of the text beside a feature: the target's hidden states of token k. The row
 * of the last token, the root, predicts what follows it. Rows of guesses read the model's own output of their
 * parent in place of hidden states that the target has not computed; they do not stay: what of them becomes
 * text is read again with the target's. */
typedef struct sd_eagle {
    const sd_model* model; /* A model with features (config.h). Borrowed. */
    /* Hidden states of the target (cache.h), whose concatenation in this order is a feature. */
    int n_layers;
    int layers[SD_MAX_CAPTURES];
    /* What a row hands to its children: its residual stream behind the output norm, not before it. */
    int normed_feedback;
    /* [sd_head_rows of the model] the target's id of each token that the head knows, all different; borrowed.
     * NULL: its own. */
    const int32_t* tokens;
} sd_eagle;

/* Borrowed; both must outlive the predictor. */
typedef struct sd_eagle_predictor_options {
    const sd_eagle* eagle;
    const sd_model* target; /* whose hidden states it reads: the model of the session's caches */
} sd_eagle_predictor_options;

/* Make a predictor of sd_eagle_predictor_options. Fails where the target's hidden states have another width,
 * or its vocabulary lacks a token that is guessed. A text that outgrows the model's context is no longer
 * predicted for, nor is one of a single token. */
sd_status sd_eagle_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);

/* Look-ahead embeddings (PaSS, Monea et al. 2023): the target guesses several tokens ahead in its own forward
 * pass, after vectors behind the text that were learned for this.
 *
 * They follow every row that the target verifies (session_state.h). What it says after those behind the last
 * accepted node is the law of the next round's guesses: row k − 1 of the k-th behind the root, whatever the
 * guesses before it are. Where a round before had none, as before the first, nothing is predicted. */
/* Make a predictor; options: sd_extra_queries, whose embeddings must outlive the predictor. */
sd_status sd_look_ahead_predictor_make(const void* options, const sd_prediction* prediction,
                                       sd_predictor** predictor);
