/* Drafters that copy: from the text, given documents, the expected output, past outputs. Each is owned by the
 * caller, who hands it to a session. */
#pragma once

#include "automaton.h"
#include "copying.h"
#include "drafter.h"
#include "suffix_tree.h"

/* The text drafts: what followed the longest suffix that occurs earlier in it, or in given documents. */
typedef struct sd_copy_options {
    const sd_automaton* documents; /* borrowed, must outlive the drafter; -1 between two. NULL: none */
    int min_match;                 /* shortest match that is copied from, ≥ 1 */
    int n_candidates;              /* continuations that are drafted, 1 to SD_MAX_COPIES */
} sd_copy_options;

sd_status sd_copy_drafter_create(const sd_drafting* drafting, const sd_copy_options* options,
                                 sd_drafter** drafter);

/* The input drafts: the output is expected to be the input with few edits, as in correcting a text.
 *
 * The aggressive decoding of Sun et al. 2021 (arXiv 2106.04970, Figure 1; section 5 of Leviathan et al.
 * 2023), with the target's own verification. After a rejection they decode token by token until a suffix of
 * the output is found in the input again; here the likeliest edits are drafted meanwhile. */
typedef struct sd_input_options {
    /* [n_source] borrowed while the drafter is created; NULL: the source that a prompt comes with, where the
     * target has an encoder, or the prompt itself. */
    const int32_t* source;
    int n_source;
    /* 1: in place of these, of each sequence its own prediction (sequence.h); nothing where it has none. */
    int predictions;
    int start;        /* index in the source of what the output is expected to begin with, ≥ 0 */
    int min_match;    /* Shortest suffix of the output whose match in the source is trusted, ≥ 1. */
    int n_candidates; /* hypotheses about an edit that are drafted, 1 to SD_MAX_COPIES */
} sd_input_options;

sd_status sd_input_drafter_create(const sd_drafting* drafting, const sd_input_options* options,
                                  sd_drafter** drafter);

/* Past outputs draft, and the text itself: what followed its longest suffix there, by frequency.
 *
 * Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975). Of the memory and of the text that one is asked
 * whose guesses are expected to bring more tokens. A text is drafted for by what the memory held when it
 * began. */
typedef struct sd_suffix_drafter_options {
    sd_suffix_memory* memory; /* borrowed, must outlive the drafter; other threads may add to it */
    int min_match;            /* shortest suffix that is looked for, ≥ 1 */
    double factor;            /* guesses for each token of the suffix, > 0; one guess at least */
    double min_probability;   /* of a guess, by the frequencies down to it, in (0, 1] */
    int branches;             /* 0: a chain; 1: a tree */
} sd_suffix_drafter_options;

sd_status sd_suffix_drafter_create(const sd_drafting* drafting, const sd_suffix_drafter_options* options,
                                   sd_drafter** drafter);
