/* Drafters that copy: from the text, documents, the expected output, past outputs. Owned by the caller, who
 * passes it to a session. */
#pragma once

#include "automaton.h"
#include "copying.h"
#include "drafter.h"
#include "suffix_tree.h"

/* Prompt lookup: draft what followed the text's longest suffix that occurs earlier in it, or in given
 * documents. */
typedef struct sd_copy_options {
    const sd_automaton* documents; /* borrowed, must outlive the drafter; -1 between documents; NULL: none */
    int min_match;                 /* shortest match to copy from, ≥ 1 */
    int n_candidates;              /* continuations to draft, 1 to SD_MAX_COPIES */
} sd_copy_options;

sd_status sd_copy_drafter_create(const sd_drafting* drafting, const sd_copy_options* options,
                                 sd_drafter** drafter);

/* Draft the input, where the output is expected to be the input with few edits, as in correcting a text.
 *
 * Aggressive decoding (Sun et al. 2021, arXiv 2106.04970, Figure 1; section 5 of Leviathan et al. 2023) with
 * exact verification. After a rejection they decode token by token until a suffix of the output occurs in the
 * input again; here the likeliest edits are drafted meanwhile. */
typedef struct sd_input_options {
    /* [n_source] borrowed during creation; NULL: the source of each prompt, if the target has an encoder, or
     * the prompt itself. */
    const int32_t* source;
    int n_source;
    /* 1: use each sequence's prediction instead (sequence.h); nothing without one. */
    int predictions;
    int start;        /* index in the source at which the output is expected to begin, ≥ 0 */
    int min_match;    /* shortest suffix of the output whose match in the source is trusted, ≥ 1 */
    int n_candidates; /* hypotheses about an edit to draft, 1 to SD_MAX_COPIES */
} sd_input_options;

sd_status sd_input_drafter_create(const sd_drafting* drafting, const sd_input_options* options,
                                  sd_drafter** drafter);

/* Draft from past outputs and the text itself: what followed its longest suffix there, by frequency.
 *
 * Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). Uses the memory or the text, whichever expects more
 * accepted tokens. A text uses the memory as it was when the text began. */
typedef struct sd_suffix_drafter_options {
    sd_suffix_memory* memory; /* borrowed, must outlive the drafter; other threads may add to it */
    int min_match;            /* shortest suffix to look up, ≥ 1 */
    double factor;            /* draft tokens per token of the suffix, > 0; at least one in all */
    double min_probability;   /* of a draft token, by the frequencies down to it, in (0, 1] */
    int branches;             /* 0: a chain; 1: a tree */
} sd_suffix_drafter_options;

sd_status sd_suffix_drafter_create(const sd_drafting* drafting, const sd_suffix_drafter_options* options,
                                   sd_drafter** drafter);
