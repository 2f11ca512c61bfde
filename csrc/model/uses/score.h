/* Scoring: ln p of tokens given the tokens before them, for many texts at once.
 *
 * A shared prefix is read once. Texts with a common prefix are a group's tree: its stem becomes the text of a
 * cache, the rest stays there as pending nodes until the group ends. Several groups share a forward pass,
 * each with its own cache; a group whose stem starts like another's takes over what the other has read. None
 * of this changes a bit of a result: a row's logits are a function of its tokens. Logits are computed only
 * for rows after which a token is scored, and processed row by row.
 *
 * If OpenBLAS reads prompts, a forward pass reads a slice of one text, and texts share whole slices. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "forward.h"

/* A text whose tokens from the n_given-th on are scored; all pointers borrowed. */
typedef struct sd_scored_text {
    const int32_t* tokens; /* [n], n ≥ 2 */
    int n, n_given;        /* 1 ≤ n_given < n */
    const int32_t* source; /* [n_source] for a model with an encoder; NULL: none */
    int n_source;
    ptrdiff_t first; /* index of the results of its first scored token */
} sd_scored_text;

/* Results; the arrays are the caller's, and a text's entries start at its `first`. */
typedef struct sd_score_results {
    double* log_probs;     /* [n_scored] ln p */
    unsigned char* greedy; /* [n_scored] is the token the most probable one? NULL: not wanted */
    int n_top;             /* number of top tokens wanted, at most n_vocab */
    int32_t* top_tokens;   /* [n_scored, n_top] most probable first, lower id on ties */
    double* top_log_probs; /* [n_scored, n_top] */
} sd_score_results;

typedef struct sd_score_options {
    const sd_model* model; /* borrowed; must outlive the score */
    int n_texts;           /* most groups read at once; 0: as many as fill a forward pass */
    int n_threads;
    sd_score_results results;
} sd_score_options;

typedef struct sd_score sd_score;

/* Prepare to score texts [n], n ≥ 1, which are sorted in place; the array and what it points to are borrowed
 * and must outlive the score. *score is the caller's. */
sd_status sd_score_create(const sd_score_options* options, sd_scored_text* texts, int n, sd_score** score);
void sd_score_free(sd_score* score);

/* Encode a source or run one forward pass. *n_ended: texts that this call completed; *done: whether all are
 * complete. After a failure only free the score. */
sd_status sd_score_slice(sd_score* score, int* n_ended, int* done);

/* With a single text, once it is scored: the cache with all tokens read; borrowed. */
const sd_cache* sd_score_cache(const sd_score* score);
