/* Several drafters at once: what they propose becomes one tree.
 *
 * Each fills a tree of its own, in the order in which they are given, and it is appended to the round's: so
 * nodes of several drafters with equal tokens from the root are one row, and each counts as a draw of its own
 * (tree.h), which keeps rejection exact. Which drafters are asked, and for how many guesses, depends on
 * earlier rounds and on what those before them have proposed, which stays in the tree: each drafter has a
 * policy of its own (drafter_policy.h), and all of them go by one throughput. */
#pragma once

#include "drafter.h"

typedef struct sd_ensemble_options {
    int n_drafters; /* ≥ 1 */
    /* [n_drafters] ≥ 1: the most guesses of each; where a round has room for more than all of them, their
     * ratio. Borrowed while the drafter is created. */
    const int* gammas;
    /* 1: drafters and guesses that do not pay, by the clock, are left out. 0: all are asked in each round. */
    int adaptive;
} sd_ensemble_options;

/* Create a drafter. drafters [n_drafters] are made with the same `drafting`; they are owned from the call on,
 * also when it fails. With SD_RULE_COUPLED they share its noise; otherwise each gets random numbers of its
 * own. Owned by the caller, who hands it to a session. */
sd_status sd_ensemble_drafter_create(const sd_drafting* drafting, const sd_ensemble_options* options,
                                     sd_drafter* const* drafters, sd_drafter** drafter);
