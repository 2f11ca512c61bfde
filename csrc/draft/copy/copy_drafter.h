/* The text drafts: what followed the longest suffix that occurs earlier in it, or in given documents. */
#ifndef SD_COPY_DRAFTER_H
#define SD_COPY_DRAFTER_H

#include "automaton.h"
#include "copying.h"
#include "drafter.h"

typedef struct sd_copy_options {
    const sd_automaton* documents; /* borrowed, must outlive the drafter; -1 between two. NULL: none */
    int min_match;                 /* shortest match that is copied from, ≥ 1 */
    int n_candidates;              /* continuations that are drafted, 1 to SD_MAX_COPIES */
} sd_copy_options;

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_copy_drafter_create(const sd_drafting* drafting, const sd_copy_options* options,
                                 sd_drafter** drafter);

#endif
