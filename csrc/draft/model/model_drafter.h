/* A smaller model drafts, M_q of the paper, or the target past some of its layers: a chain of γ tokens a
 * round, or a tree of a given shape. The latter is self-speculative decoding: Draft & Verify (Zhang et al.
 * 2024) where some layers are skipped, early exit (LayerSkip, Elhoushi et al. 2024) where all behind one
 * are. */
#ifndef SD_MODEL_DRAFTER_H
#define SD_MODEL_DRAFTER_H

#include "draft_runner.h"
#include "shape.h"

typedef struct sd_model_drafter_options {
    /* Of the target's vocabulary. Borrowed; must outlive the drafter. */
    const sd_model* model;
    /* [n_layer] what is skipped where `model` is the target, as a draft runner has it (draft_runner.h);
     * borrowed; must outlive the drafter. NULL: it is another model. */
    const unsigned char* skipped;
} sd_model_drafter_options;

/* Create a drafter. Owned by the caller, who hands it to a session. A text that outgrows the draft's
 * context is no longer drafted for. */
sd_status sd_model_drafter_create(const sd_drafting* drafting, const sd_model_drafter_options* options,
                                  const sd_shape_options* shape, sd_drafter** drafter);

#endif
