/* One sequence of a session: settings, text and progress. */
#pragma once

#include "cache.h"
#include "logprobs.h"
#include "proposal.h"
#include "rng.h"

/* How one sequence is decoded. Plain values; what they point to must outlive the sequence. */
typedef struct sd_settings {
    /* Model of the sequence: adapted from the target (adapter.h), or from the same base. Borrowed; NULL: the
     * target itself. */
    const sd_model* model;
    int max_new_tokens; /* new tokens, ≥ 1 */
    int gamma;          /* most draft tokens in a round, ≥ 0; the session's own limit applies too */
    /* How the target verifies draft tokens; the sequence uses the rule of sd_drafter_find_rule. */
    sd_verifier_options verify;
    const sd_sampling* draft_sampling; /* of the draft; borrowed */
    sd_logprobs_options logprobs;      /* log-probabilities in the records */
    /* [n_stop_ids] a sequence ends with the round that adds one; borrowed. */
    const int32_t* stop_ids;
    int n_stop_ids;
    uint64_t drafters; /* which drafters may draft for the sequence (sd_proposal) */
    /* [n_prediction] the expected output, which drafters that copy predictions copy from. Borrowed; NULL:
     * none. */
    const int32_t* prediction;
    int n_prediction;
} sd_settings;

/* Are all settings in range, for a model of n_vocab tokens? */
sd_status sd_settings_check(const sd_settings* settings, int n_vocab);

/* May a drafter draft for a sequence with these settings? */
static inline int sd_settings_drafted(const sd_settings* settings) {
    return settings->gamma > 0 && settings->drafters != 0;
}

/* Are draft tokens sampled: is the temperature of the draft above 0? */
static inline int sd_settings_draws(const sd_settings* settings) {
    return settings->draft_sampling->temperature > 0.0;
}

typedef struct sd_prompt {
    const int32_t* tokens; /* [n] borrowed for the call */
    int n;                 /* ≥ 1 and below the target's context */
    sd_stream stream;      /* random numbers of this sequence */
    /* Copied, but what the settings point to must outlive the sequence. */
    const sd_settings* settings;
    /* [n_source] input of a model's encoder, borrowed for the call; NULL: none. */
    const int32_t* source;
    int n_source;
    /* Failure of this sequence alone; borrowed as long as the sequence has this prompt. */
    sd_failure* failure;
    /* For drafters: the target's cache, which holds the prompt without its last token while the drafter
     * reads; borrowed like the tokens. NULL: none. */
    const sd_cache* cache;
} sd_prompt;

/* Can a model continue this prompt with its settings? */
sd_status sd_prompt_check(const sd_prompt* prompt, const sd_model* model);

typedef struct sd_sequence {
    int32_t* text;     /* [max_text] prompt and new tokens; owned by the session's arena */
    int n_prompt;      /* tokens of the prompt */
    int n_text;        /* tokens so far, ≥ 1; 0: no text yet */
    int max_text;      /* most tokens: the text ends there */
    int draft_begun;   /* the drafter has begun the text */
    int n_draft_begun; /* tokens of the text at that time */
    /* Lazy draft prefill: the drafter begins and reads the text when it drafts next; nothing is committed to
     * it before. */
    int draft_lazy;
    int ready;  /* the prompt has been read, also by the drafter, unless that is lazy */
    int drafts; /* it may have draft tokens in this round */
    int finished;
    sd_failure failure; /* by its own numbers, settings or callbacks: it ends with its next round */
    sd_settings settings;
    sd_stream stream;
    /* [n_source] with capacity for the longest; owned by the session's arena; NULL: none. */
    int32_t* source;
    int n_source;
} sd_sequence;

/* May a drafter draft for it? */
static inline int sd_sequence_is_drafted(const sd_sequence* sequence) {
    return sd_settings_drafted(&sequence->settings);
}

/* Begin a text of at most max_text tokens with a prompt. */
void sd_sequence_begin(sd_sequence* sequence, const sd_prompt* prompt, int max_text);

/* Append a new token. The text is finished at its length or with one of its stop ids. A round commits its
 * whole path, also tokens after a stop id: Python cuts them off (decoding/stopping.py). */
void sd_sequence_append(sd_sequence* sequence, int32_t token);
