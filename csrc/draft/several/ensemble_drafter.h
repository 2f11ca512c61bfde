/* An ensemble of drafters, whose proposals are merged into one tree.
 *
 * Each drafter, in the given order, fills its own tree, which is appended to the round's tree. Nodes of
 * several drafters with equal tokens from the root share a row, and each counts as its own draw (tree.h),
 * which keeps rejection exact. Which drafters are asked, and for how many draft tokens, depends on earlier
 * rounds and on proposals earlier in the round. Each drafter has its own policy (drafter_policy.h); all share
 * one throughput. */
#pragma once

#include "drafter.h"

typedef struct sd_ensemble_options {
    int n_drafters; /* ≥ 1 */
    /* [n_drafters] ≥ 1: most draft tokens of each; if a round has capacity for more than their sum, their
     * ratio. Borrowed during creation. */
    const int* gammas;
    /* 1: leave out drafters and draft tokens that do not pay, by measured times. 0: ask all in each round. */
    int adaptive;
} sd_ensemble_options;

/* Create a drafter, owned by the caller, who passes it to a session. Takes ownership of drafters
 * [n_drafters], created with the same `drafting`, also on failure. With SD_RULE_COUPLED they share its noise;
 * otherwise each has its own random numbers. */
sd_status sd_ensemble_drafter_create(const sd_drafting* drafting, const sd_ensemble_options* options,
                                     sd_drafter* const* drafters, sd_drafter** drafter);
