/* Several drafters at once: what they propose becomes one tree.
 *
 * Each fills a tree of its own, in the order in which they are given, and it is appended to the round's: so
 * nodes of several drafters with equal tokens from the root are one place, and each counts as a draw of its
 * own (tree.h), which keeps rejection exact. Which drafters are asked, and for how many guesses, depends on
 * earlier rounds and on what those before them have proposed, which stays in the tree. */
#ifndef SD_ENSEMBLE_DRAFTER_H
#define SD_ENSEMBLE_DRAFTER_H

#include "drafter_selection.h"
#include "drafter.h"

typedef struct sd_ensemble_options {
    int n_drafters; /* ≥ 1 */
    const int*
        gammas;   /* [n_drafters] ≥ 1: guesses that each is asked for at most, or their ratio where a round
                        * has room for more than all of them; borrowed while the drafter is created */
    int adaptive; /* leave out those that do not pay, by the clock (drafter_selection.h); 0: ask all, always */
    int gamma;    /* most guesses of a round; each drafter must be made for so many */
    int n_sequences; /* of the session */
    int coupled;     /* the drafters draw with the noise of SD_RULE_COUPLED, which they share; otherwise
                        * each gets random numbers of its own */
} sd_ensemble_options;

/* Create a drafter. drafters [n_drafters] are owned from the call on, also when it fails. Owned by the
 * caller, who hands it to a session. */
sd_status sd_ensemble_drafter_create(const sd_ensemble_options* options, sd_drafter* const* drafters,
                                 sd_drafter** drafter);

#endif
