/* A drafter drafts for the draft (section 6 of the paper): the model's chain of guesses is itself decoded
 * speculatively. An inner drafter proposes, the model reads all of it in one forward, and the guesses are
 * what verification leaves: the model's own draws, which the inner drafter cannot change, only hasten. */
#ifndef SD_NESTED_DRAFTER_H
#define SD_NESTED_DRAFTER_H

#include "model_predictor.h"

typedef struct sd_nested_options {
    /* Made for `sd_nested_inner` of the outer drafter's session; may be nested itself. */
    sd_drafter* inner;
    int inner_gamma; /* most guesses of the inner drafter in an inner round */
} sd_nested_options;

/* The session that the inner drafter drafts for: its target is the draft of the outer session. */
sd_drafting sd_nested_inner(const sd_drafting* outer, const sd_model* model, int inner_gamma);

/* Create a drafter, owned by the caller. The inner one is owned from the call on, also when it fails. */
sd_status sd_nested_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                   const sd_nested_options* nested, sd_drafter** drafter);

#endif
