/* A model that predicts: it keeps a cache for each sequence of a session, follows the texts, and reads the
 * nodes of proposals.
 *
 * The target predicts for itself past some of its layers in the session's own caches, which hold the text
 * already: what it computes there as the whole model would is not computed again when the guesses are
 * verified. This is self-speculative decoding: Draft & Verify (Zhang et al. 2024) where some layers are
 * skipped, early exit (LayerSkip, Elhoushi et al. 2024) where all behind one are. */
#ifndef SD_MODEL_PREDICTOR_H
#define SD_MODEL_PREDICTOR_H

#include "predictor.h"
#include "translation.h"

typedef struct sd_model_predictor_options {
    /* Of the target's vocabulary, where there is no translation; it may have other tokens behind those of
     * both. Borrowed; must outlive the predictor. */
    const sd_model* model;
    /* [n_layer] what is passed by where `model` is the target (forward.h), borrowed; must outlive the
     * predictor. NULL: it is another model, with caches of its own. */
    const unsigned char* skipped;
    /* Where the model has another vocabulary: it reads the texts in its own tokens, and predicts those that
     * the target has too. Borrowed; must outlive the predictor, as `caller` must, which its encoder is
     * given. NULL: it has the target's. */
    const sd_translation* translation;
    /* Then too: proposals have nodes of the model's own tokens, and its own logits are asked for. */
    int writes;
    void* caller;
} sd_model_predictor_options;

/* Make a predictor of sd_model_predictor_options. A text that outgrows the model's context, or whose source
 * has no tokens or more than its encoder has room for, is no longer predicted for. A model with an encoder
 * reads the source of a prompt, another has no use for it. */
sd_status sd_model_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);

#endif
