/* How one sequence is decoded: what the caller of each text may choose for it. */
#ifndef SD_SETTINGS_H
#define SD_SETTINGS_H

#include "logprobs.h"
#include "proposal.h"

/* Plain values; what they point to must outlive the sequence. */
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

#endif
