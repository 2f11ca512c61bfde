/* Predictors of the tokens after nodes of proposals: a smaller model, layers of the target, heads on its
 * hidden states. Drafters draw draft tokens from their logits (tree_drafter.h). */
#pragma once

#include "drafter.h"

/* Nodes of one proposal to predict the next tokens of: their parents come earlier in this or a previous
 * call. */
typedef struct sd_draft_nodes {
    sd_proposal* proposal;
    const int32_t* nodes; /* [n_nodes] borrowed */
    int n_nodes;
} sd_draft_nodes;

typedef struct sd_predictor sd_predictor;

/* Operations of a predictor. All but follow, predict and free may be NULL. */
struct sd_predictor {
    sd_captures captures;   /* hidden states of the target that it reads in the cache of each proposal */
    sd_extra_queries extra; /* rows to append to the target's forward passes */
    int in_target;          /* it drafts in the target's cache of each proposal */
    /* [n_sequences] caches of its model, as `caches` of drafters; owned by the predictor. NULL: none of its
     * own. */
    sd_cache* caches;
    int own_ids; /* their texts use the model's own ids, not the target's */
    /* Of the last predict: a row of the target's n_vocab logits for each of the nodes, in order, ld_logits
     * floats apart. Owned by the predictor; both may be set by reserve. None is NaN or +infinity; -infinity
     * is a token that is never drafted. */
    const float* logits;
    ptrdiff_t ld_logits;
    /* As reserve, begin and read of drafters (drafter.h). */
    sd_status (*reserve)(sd_predictor* self);
    void (*begin)(sd_predictor* self, int sequence, const sd_prompt* prompt);
    sd_status (*read)(sd_predictor* self, int* done);
    /* Prepare for the first predict of a proposal. Reduces the proposal's depth to what can be predicted. */
    sd_status (*follow)(sd_predictor* self, sd_proposal* proposal);
    /* Predict the tokens after nodes of n proposals. The roots of a round come first, together. */
    sd_status (*predict)(sd_predictor* self, const sd_draft_nodes* batch, int n);
    /* Let `duplicate`, which has the same tokens from the root as `node`, share its prediction. */
    void (*share)(sd_predictor* self, const sd_proposal* proposal, int32_t duplicate, int32_t node);
    /* As observe of drafters. */
    sd_status (*observe)(sd_predictor* self, const sd_proposal* proposal, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride);
    /* As observe_extra of drafters. */
    sd_status (*observe_extra)(sd_predictor* self, int sequence, int n_text, const float* logits,
                               ptrdiff_t stride, int n);
    void (*free)(sd_predictor* self);
    sd_arena arena; /* owns the method's arrays */
};

/* Sizes that a predictor is created for. Borrowed during creation. */
typedef struct sd_prediction {
    const sd_drafting* drafting;
    int n_text;   /* tokens of the longest text */
    int n_nodes;  /* most nodes of a proposal, without the root */
    int n_rows;   /* most nodes of a proposal per predict */
    int n_levels; /* most draft tokens in a row: nodes have depths 0 to n_levels - 1 */
} sd_prediction;

/* Constructor of a predictor: make(options, …) returns one that the caller owns. Borrowed. */
typedef struct sd_predictor_maker {
    sd_status (*make)(const void* options, const sd_prediction* prediction, sd_predictor** predictor);
    const void* options;
} sd_predictor_maker;

/* Give a drafter the captures, extra query tokens and caches of its predictor. Operations that it only passes
 * on, observe and observe_extra, become NULL if the predictor lacks them. */
void sd_drafter_predicts(sd_drafter* drafter, const sd_predictor* predictor);

/* A drafter with one predictor: first member of both tree drafters. */
typedef struct sd_predicting {
    sd_drafter drafter;
    sd_predictor* predictor; /* owned */
} sd_predicting;

/* Create the predictor of such a drafter and all its operations but propose and free, which pass calls on. */
sd_status sd_predicting_make(sd_predicting* predicting, sd_predictor_maker maker,
                             const sd_prediction* prediction);

/* The `free` of such a drafter if it owns nothing else but its arena. */
void sd_predicting_free(sd_drafter* drafter);

/* Calls of the operations that may be NULL; sd_predictor_free also takes a NULL predictor. */
sd_status sd_predictor_reserve(sd_predictor* predictor);
void sd_predictor_begin(sd_predictor* predictor, int sequence, const sd_prompt* prompt);
sd_status sd_predictor_read(sd_predictor* predictor, int* done);
void sd_predictor_share(sd_predictor* predictor, const sd_proposal* proposal, int32_t duplicate,
                        int32_t node);
void sd_predictor_free(sd_predictor* predictor);

/* The `free` of a method that only owns its arena. */
void sd_predictor_release(sd_predictor* predictor);

/* Finish creating a predictor, as sd_drafter_made. */
sd_status sd_predictor_made(sd_predictor* made, sd_status status, sd_predictor** predictor);
