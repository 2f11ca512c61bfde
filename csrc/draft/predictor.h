/* What predicts the tokens that follow nodes of proposals: a smaller model, layers of the target, heads on
 * the target's hidden states. Drafters ask it for logits and draw guesses from them (tree_drafter.h). */
#pragma once

#include "drafter.h"

/* Nodes of one proposal after which tokens are to be predicted: their parents have been asked for, or stand
 * before them. */
typedef struct sd_draft_nodes {
    sd_proposal* proposal;
    const int32_t* nodes; /* [n_nodes] borrowed */
    int n_nodes;
} sd_draft_nodes;

typedef struct sd_predictor sd_predictor;

/* Operations that a predictor has no use for are NULL; follow, predict and free are not. */
struct sd_predictor {
    sd_captures captures;   /* What it needs of the target's hidden states, in the cache of each proposal. */
    sd_extra_queries extra; /* rows to append to the target's forward passes */
    int in_target;          /* it drafts in the target's cache of each proposal */
    /* [n_sequences] where a model reads the texts, as `caches` of drafters; owned by the predictor. NULL:
     * nowhere of its own. */
    sd_cache* caches;
    int own_ids; /* the texts in them are in the model's own ids, not in the target's */
    /* Of the last predict: a row of the target's n_vocab logits for each of the nodes, in order, ld_logits
     * floats apart. Owned by the predictor; both may be set by reserve. None is NaN or +infinity; -infinity
     * is a token that is never guessed. */
    const float* logits;
    ptrdiff_t ld_logits;
    /* As reserve, begin and read of drafters (drafter.h). */
    sd_status (*reserve)(sd_predictor* self);
    void (*begin)(sd_predictor* self, int sequence, const sd_prompt* prompt);
    sd_status (*read)(sd_predictor* self, int* done);
    /* Before a proposal's first predict of a round. Lessens the proposal's depth to what can be predicted. */
    sd_status (*follow)(sd_predictor* self, sd_proposal* proposal);
    /* Predict the tokens after nodes of n proposals. The roots of a round are asked for first, together. */
    sd_status (*predict)(sd_predictor* self, const sd_draft_nodes* batch, int n);
    /* Let `duplicate`, which has the same tokens from the root as `node`, count as asked for like `node`. */
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

/* What a predictor is asked for. Borrowed while it is made. */
typedef struct sd_prediction {
    const sd_drafting* drafting;
    int n_text;   /* tokens of the longest text that it is shown */
    int n_nodes;  /* nodes of a proposal that it is asked for, without the root, at most */
    int n_rows;   /* nodes of a proposal that it is asked for at once, at most */
    int n_levels; /* Guesses in a row, at most: it is asked for nodes of depths 0 to n_levels - 1. */
} sd_prediction;

/* How a predictor is made: make(options, …) hands it to the caller, who owns it. Borrowed. */
typedef struct sd_predictor_maker {
    sd_status (*make)(const void* options, const sd_prediction* prediction, sd_predictor** predictor);
    const void* options;
} sd_predictor_maker;

/* A drafter asks this predictor: captures, extra query tokens and caches are the drafter's. Operations that
 * the drafter only passes on, observe and observe_extra, are taken from it where the predictor has them
 * not. */
void sd_drafter_predicts(sd_drafter* drafter, const sd_predictor* predictor);

/* A drafter that asks one predictor: what both kinds of trees begin with. */
typedef struct sd_predicting {
    sd_drafter drafter;
    sd_predictor* predictor; /* owned */
} sd_predicting;

/* Make the predictor of such a drafter, and the drafter's operations but for propose and free: they pass the
 * calls on to it. */
sd_status sd_predicting_make(sd_predicting* predicting, sd_predictor_maker maker,
                             const sd_prediction* prediction);

/* The `free` of such a drafter that owns nothing else but its arena. */
void sd_predicting_free(sd_drafter* drafter);

/* The operations that may be NULL. `predictor` may be NULL, for one that was not made, where it is freed. */
sd_status sd_predictor_reserve(sd_predictor* predictor);
void sd_predictor_begin(sd_predictor* predictor, int sequence, const sd_prompt* prompt);
sd_status sd_predictor_read(sd_predictor* predictor, int* done);
void sd_predictor_share(sd_predictor* predictor, const sd_proposal* proposal, int32_t duplicate,
                        int32_t node);
void sd_predictor_free(sd_predictor* predictor);

/* The `free` of a method that owns nothing but its arena. */
void sd_predictor_release(sd_predictor* predictor);

/* The end of making a predictor, as sd_drafter_made. */
sd_status sd_predictor_made(sd_predictor* made, sd_status status, sd_predictor** predictor);
