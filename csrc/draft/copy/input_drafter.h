/* The input drafts: the output is expected to be the input with few edits, as in correcting a text.
 *
 * The aggressive decoding of Sun et al. 2021 (arXiv 2106.04970, Figure 1; section 5 of Leviathan et al.
 * 2023), with the target's own verification. After a rejection they decode token by token until a suffix
 * of the output is found in the input again; here the likeliest edits are drafted meanwhile. */
#ifndef SD_INPUT_DRAFTER_H
#define SD_INPUT_DRAFTER_H

#include "copying.h"
#include "drafter.h"

typedef struct sd_input_options {
    /* [n_source] borrowed while the drafter is created; NULL: the source that a prompt comes with, where the
     * target has an encoder, or the prompt itself. */
    const int32_t* source;
    int n_source;
    /* 1: in place of these, of each sequence its own prediction (settings.h); nothing where it has none. */
    int predictions;
    int start; /* index in the source of what the output is expected to begin with, ≥ 0 */
    /* Shortest suffix of the output whose match in the source is trusted, ≥ 1. */
    int min_match;
    int n_candidates; /* hypotheses about an edit that are drafted, 1 to SD_MAX_COPIES */
} sd_input_options;

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_input_drafter_create(const sd_drafting* drafting, const sd_input_options* options,
                                  sd_drafter** drafter);

#endif
