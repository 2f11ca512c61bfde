/* Learned drafts that read the target's hidden states, or let it look ahead in its own forward passes. */
#pragma once

#include "predictor.h"

/* A small model that predicts from the target's hidden states: EAGLE-1 and EAGLE-3 (Li et al. 2024, 2025),
 * and multi-token prediction heads that come with some models (DeepSeek-V3).
 *
 * Row k reads token k + 1 of the text with a feature: the target's hidden states of token k. The row of the
 * last token, the root, predicts what follows it. Rows of draft tokens read the model's own output of their
 * parent instead of hidden states that the target has not computed yet. These rows are dropped: accepted
 * tokens are read again with the target's hidden states.
 *
 * A model that borrows keys and values (config.h; Gemma 4's assistants) has only the rows of the root and of
 * draft tokens. They attend to the committed text in the target's cache. */
typedef struct sd_eagle {
    const sd_model* model; /* model with features (config.h); borrowed */
    /* Hidden states of the target (cache.h); their concatenation in this order is a feature. */
    int n_layers;
    int layers[SD_MAX_CAPTURES];
    /* Rows pass their residual stream to their children after the output norm, not before it; ignored if
     * they pass a projection (feature_output). */
    int normed_feedback;
    /* [sd_head_rows of the model] the target's id of each token of the head, all different; borrowed. NULL:
     * the same ids, which a head in clusters does not have. */
    const int32_t* tokens;
} sd_eagle;

/* Borrowed; both must outlive the predictor. */
typedef struct sd_eagle_predictor_options {
    const sd_eagle* eagle;
    const sd_model* target; /* model of the session's caches, whose hidden states it reads */
} sd_eagle_predictor_options;

/* Create a predictor of sd_eagle_predictor_options. Fails if the target's hidden states have another width,
 * or its vocabulary lacks a token of the draft. Predicts nothing for a text that exceeds the model's context
 * or has a single token. */
sd_status sd_eagle_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);

/* Look-ahead embeddings (PaSS, Monea et al. 2023): the target predicts several tokens ahead in its own
 * forward pass, after learned vectors appended to the text.
 *
 * They follow every row that the target verifies (session_state.h). The logits of those after the last
 * accepted node give the next round's draft tokens: row k − 1 the k-th after the root, whatever the draft
 * tokens before it are. Predicts nothing if the previous round had none, as in the first round. */
/* Create a predictor; options: sd_extra_queries, whose embeddings must outlive the predictor. */
sd_status sd_look_ahead_predictor_make(const void* options, const sd_prediction* prediction,
                                       sd_predictor** predictor);
