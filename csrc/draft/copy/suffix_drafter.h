/* Past outputs draft, and the text itself: what followed its longest suffix there, by frequency.
 *
 * Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). Of the memory and of the text that one is asked
 * whose guesses are expected to bring more tokens. A text is drafted for by what the memory held when it
 * began. */
#ifndef SD_SUFFIX_DRAFTER_H
#define SD_SUFFIX_DRAFTER_H

#include "drafter.h"
#include "suffix_tree.h"

typedef struct sd_suffix_drafter_options {
    sd_suffix_memory* memory; /* borrowed, must outlive the drafter; other threads may add to it */
    int min_match;            /* shortest suffix that is looked for, ≥ 1 */
    double factor;            /* guesses for each token of the suffix, > 0; one guess at least */
    double min_probability;   /* of a guess, by the frequencies down to it, in (0, 1] */
    int branches;             /* 0: a chain; 1: a tree */
} sd_suffix_drafter_options;

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_suffix_drafter_create(const sd_drafting* drafting, const sd_suffix_drafter_options* options,
                                   sd_drafter** drafter);

#endif
