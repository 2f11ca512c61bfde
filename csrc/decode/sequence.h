/* One sequence of a session: its text, and how far it has come. */
#pragma once

#include "cache.h"
#include "logprobs.h"
#include "proposal.h"
#include "rng.h"

/* How one sequence is decoded: what the caller of each text may choose for it. Plain values; what they point
 * to must outlive the sequence. */
typedef struct sd_settings {
    /* Whose text it is: a model adapted from the target (adapter.h), or from the same base. Borrowed; NULL:
     * the target itself. */
    const sd_model* model;
    int max_new_tokens; /* new tokens, ≥ 1 */
    int gamma;          /* most guesses in a round, ≥ 0; the session's own limit holds too */
    /* How the target judges guesses. A sequence makes of the rule what sd_rule_at says. */
    sd_verifier_options verify;
    const sd_sampling* draft_sampling; /* of whatever drafts. Borrowed */
    sd_logprobs_options logprobs;      /* what records say of each new token */
    /* [n_stop_ids] the sequence ends with the round that gives one; borrowed. */
    const int32_t* stop_ids;
    int n_stop_ids;
    uint64_t drafters; /* which drafters may draft for the sequence (sd_proposal) */
    /* [n_prediction] what the new text is expected to be like: drafters that copy predictions copy from it.
     * Borrowed; NULL: there is none. */
    const int32_t* prediction;
    int n_prediction;
} sd_settings;

/* Are all of them in their ranges, for a model of n_vocab tokens? */
sd_status sd_settings_check(const sd_settings* settings, int n_vocab);

/* May anything draft for a sequence with these settings? */
static inline int sd_settings_drafted(const sd_settings* settings) {
    return settings->gamma > 0 && settings->drafters != 0;
}

/* Are guesses drawn where the draft's logits say so: is the temperature of the draft above 0? */
static inline int sd_settings_draws(const sd_settings* settings) {
    return settings->draft_sampling->temperature > 0.0;
}

typedef struct sd_prompt {
    const int32_t* tokens; /* [n] borrowed for the call */
    int n;                 /* ≥ 1 and below the target's context */
    sd_stream stream;      /* random numbers of this sequence */
    /* How its text is decoded: copied, but what the settings point to must outlive the sequence. */
    const sd_settings* settings;
    /* [n_source] what a model with an encoder reads beside the tokens, borrowed for the call; NULL: there is
     * none. */
    const int32_t* source;
    int n_source;
    /* Failures of this sequence alone; borrowed as long as the sequence has this prompt. */
    sd_failure* failure;
    /* What a drafter is shown beside: the target's cache, which holds the prompt without its last token as
     * long as the drafter reads; borrowed as the tokens are. NULL: there is none. */
    const sd_cache* cache;
} sd_prompt;

/* Is it one that a model can go on with, by its settings? */
sd_status sd_prompt_check(const sd_prompt* prompt, const sd_model* model);

typedef struct sd_sequence {
    int32_t* text;     /* prompt and new tokens; room for max_text; owned by the session's arena */
    int n_prompt;      /* tokens of the prompt */
    int n_text;        /* tokens so far, ≥ 1; 0: there has been no text yet */
    int max_text;      /* the text ends when it has as many */
    int draft_begun;   /* the drafter has begun the text */
    int n_draft_begun; /* tokens that the text had then */
    /* Lazy draft prefill: the drafter begins and reads the text when it drafts next; until it has read it, no
     * new tokens are committed to it. */
    int draft_lazy;
    int ready;  /* the prompt is in, also in the drafter, unless that is lazy */
    int drafts; /* it may have draft tokens in this round */
    int finished;
    sd_failure failure; /* of its own numbers, settings or callbacks: it ends with its next round */
    sd_settings settings;
    sd_stream stream;
    /* [n_source] with room for the longest; owned by the session's arena; NULL: there is none. */
    int32_t* source;
    int n_source;
} sd_sequence;

/* May anything draft for it? */
static inline int sd_sequence_is_drafted(const sd_sequence* sequence) {
    return sd_settings_drafted(&sequence->settings);
}

/* Begin with a prompt, in a text of max_text tokens at most. */
void sd_sequence_begin(sd_sequence* sequence, const sd_prompt* prompt, int max_text);

/* Append a new token; the text ends at its length, and with one of its stop ids. */
void sd_sequence_append(sd_sequence* sequence, int32_t token);
