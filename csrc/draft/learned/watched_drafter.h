/* A drafter that is watched: it drafts as the one within it does, and where the target refuses the
 * guesses, it stores what stood before and what the target says there, for whoever learns from that; if
 * it is asked to, where guesses were right too. Between rounds another drafter of the same kind may take the
 * inner one's place: the same method with weights that have learnt.
 *
 * A position that is stored costs one look at a row of logits, any other nothing. */
#ifndef SD_WATCHED_DRAFTER_H
#define SD_WATCHED_DRAFTER_H

#include "corrections.h"
#include "drafter.h"

typedef struct sd_watched_options {
    /* Where corrections go; borrowed, must outlive the drafter. Where these have hidden states, they are
     * the inner drafter's taps, one after the other. */
    sd_corrections* corrections;
    /* Whatever the caller wants to find the drafter by; borrowed. */
    void* owner;
} sd_watched_options;

/* Create a drafter. inner is made with the same `drafting`; it is owned from the call on, also when it
 * fails. Owned by the caller, who hands it to a session. */
sd_status sd_watched_drafter_create(const sd_drafting* drafting, const sd_watched_options* options,
                                    sd_drafter* inner, sd_drafter** drafter);

/* The drafter that stores there, `drafter` itself or one within it; NULL: there is none. */
sd_drafter* sd_watched_drafter_find(sd_drafter* drafter, const sd_corrections* corrections);

/* What it was made with, borrowed, and its owner. */
const sd_drafting* sd_watched_drafter_drafting(const sd_drafter* drafter);
void* sd_watched_drafter_owner(const sd_drafter* drafter);

/* May `inner`, made with the same drafting, take the place of the drafter within? Its trees, its point
 * masses and its taps are of the same kind. */
sd_status sd_watched_drafter_check(const sd_drafter* drafter, const sd_drafter* inner);

/* Let it do so: it has been told of the texts (sd_session_tell), is owned from now on, and the other is
 * freed. */
void sd_watched_drafter_swap(sd_drafter* drafter, sd_drafter* inner);

#endif
