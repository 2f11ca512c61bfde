/* Drafts by a model: one that predicts, one whose guesses another drafter hastens, one with another
 * vocabulary.
 *
 * The predictor keeps a cache for each sequence of a session, follows the texts, and reads the nodes of
 * proposals. The target predicts for itself past some of its layers in the session's own caches, which hold
 * the text already: what it computes there as the whole model would is not computed again when the guesses
 * are verified. This is self-speculative decoding: Draft & Verify (Zhang et al. 2024) where some layers are
 * skipped, early exit (LayerSkip, Elhoushi et al. 2024) where all behind one are. */
#pragma once

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
     * the target has too. Borrowed; must outlive the predictor, as `caller` must, which its encoder is given.
     * NULL: it has the target's. */
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

/* A drafter drafts for the draft (section 6 of the paper): the model's chain of guesses is itself decoded
 * speculatively. An inner drafter proposes, the model reads all of it in one forward, and the guesses are
 * what verification leaves: the model's own draws, which the inner drafter cannot change, only hasten. */
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

/* A draft of another vocabulary that drafts through text (string-level exact match of Timor et al. 2025,
 * arXiv 2502.05202, Algorithm 2): it writes on in its own tokens, the most probable ones, and what it has
 * written is guessed in the target's, as the target's tokenizer cuts it. These guesses are point masses.
 *
 * With SD_VOCABULARY_MEASURED it does so in some rounds, and in others it guesses tokens that both vocabularies
 * have, drawn from its law restricted to them (Algorithm 4): for each text by the way that brought more. */
typedef enum sd_vocabulary_method { SD_VOCABULARY_TEXT, SD_VOCABULARY_MEASURED } sd_vocabulary_method;

/* Make one; `options` have a translation and `writes`. */
sd_status sd_text_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                 sd_vocabulary_method method, sd_drafter** drafter);
