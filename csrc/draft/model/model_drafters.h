/* Drafts of a model: predicted directly, sped up by another drafter, or with another vocabulary.
 *
 * The predictor keeps a cache for each sequence of a session, follows the texts, and reads the nodes of
 * proposals. The target can draft for itself without some of its layers in the session's own caches, which
 * hold the text already; what it computes exactly as the whole model is reused in verification. This is
 * self-speculative decoding: Draft & Verify (Zhang et al. 2024) if some layers are skipped, early exit
 * (LayerSkip, Elhoushi et al. 2024) if all after one are. */
#pragma once

#include "predictor.h"
#include "translation.h"

typedef struct sd_model_predictor_options {
    /* Of the target's vocabulary, unless there is a translation; it may have further tokens after the common
     * ones. Borrowed; must outlive the predictor. */
    const sd_model* model;
    /* [n_layer] parts skipped if `model` is the target (forward.h); borrowed, must outlive the predictor.
     * NULL: another model, with its own caches. */
    const unsigned char* skipped;
    /* For a model of another vocabulary: it reads the texts in its own tokens, and predicts the tokens that
     * both have. Borrowed; must outlive the predictor, as must `caller`, the argument of its encoder. NULL:
     * the target's vocabulary. */
    const sd_translation* translation;
    /* With a translation: proposals have nodes of the model's own tokens, and its own logits are returned. */
    int writes;
    void* caller;
} sd_model_predictor_options;

/* Create a predictor of sd_model_predictor_options. Predicts nothing for a text that exceeds the model's
 * context, or whose source is empty or exceeds its encoder's context. Only a model with an encoder reads the
 * source of a prompt. */
sd_status sd_model_predictor_make(const void* options, const sd_prediction* prediction,
                                  sd_predictor** predictor);

/* A draft of the draft (section 6 of the paper): the model's chain of draft tokens is itself decoded
 * speculatively. An inner drafter proposes, the model reads the proposal in one forward pass, and
 * verification yields the draft tokens: the model's own draws, only faster. */
typedef struct sd_nested_options {
    /* created for `sd_nested_inner` of the outer drafter's session; may be nested itself */
    sd_drafter* inner;
    int inner_gamma; /* most draft tokens of the inner drafter in an inner round */
} sd_nested_options;

/* The session of the inner drafter: its target is the draft of the outer session. */
sd_drafting sd_nested_inner(const sd_drafting* outer, const sd_model* model, int inner_gamma);

/* Create a drafter, owned by the caller. Takes ownership of the inner one, also on failure. */
sd_status sd_nested_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                   const sd_nested_options* nested, sd_drafter** drafter);

/* A draft of another vocabulary that drafts through text (string-level exact match, Timor et al. 2025, arXiv
 * 2502.05202, Algorithm 2): it continues with its own most probable tokens, and the target's tokenizer turns
 * their text into draft tokens, which are point masses.
 *
 * With SD_VOCABULARY_MEASURED some rounds instead draft tokens that both vocabularies have, drawn from its
 * distribution restricted to them (Algorithm 4): for each text by the method with more accepted tokens. */
typedef enum sd_vocabulary_method { SD_VOCABULARY_TEXT, SD_VOCABULARY_MEASURED } sd_vocabulary_method;

/* Create one; `options` have a translation and `writes`. */
sd_status sd_text_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                 sd_vocabulary_method method, sd_drafter** drafter);
