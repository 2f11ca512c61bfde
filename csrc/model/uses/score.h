/* How probable a model finds texts: ln p of tokens after those before them, of many texts at once.
 *
 * What texts begin with is read once. Texts that begin alike are the tree of a group: its stem becomes the
 * text of a cache, what follows waits there as nodes until the group has ended. Several groups share a
 * forward, each with a cache of its own; a group whose stem begins like that of another takes over what the
 * other has read. None of this changes a bit of a result: a row's logits are a function of its tokens. Logits
 * are computed of those rows alone after which a token is scored, and looked at row by row.
 *
 * Where OpenBLAS reads prompts, a forward reads a slice of one text, and texts share whole slices. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "forward.h"

/* A text, of which the tokens from the n_given-th on are scored; all pointers borrowed. */
typedef struct sd_scored_text {
    const int32_t* tokens; /* [n], n ≥ 2 */
    int n, n_given;        /* 1 ≤ n_given < n */
    const int32_t* source; /* [n_source] of a model with an encoder; NULL: there is none */
    int n_source;
    ptrdiff_t first; /* where the results of its first scored token go */
} sd_scored_text;

/* Where results go; the arrays are the caller's, and those of a text begin at its `first`. */
typedef struct sd_score_results {
    double* log_probs;     /* [n_scored] ln p */
    unsigned char* greedy; /* [n_scored] whether the token is the most probable one; NULL: not wanted */
    int n_top;             /* how many of the most probable tokens are wanted, at most n_vocab */
    int32_t* top_tokens;   /* [n_scored, n_top] the most probable first, of equal ones the lower token */
    double* top_log_probs; /* [n_scored, n_top] */
} sd_score_results;

typedef struct sd_score_options {
    const sd_model* model; /* borrowed; must outlive the score */
    int n_texts;           /* groups that are read at once, at most; 0: as many as fill a forward */
    int n_threads;
    sd_score_results results;
} sd_score_options;

typedef struct sd_score sd_score;

/* Prepare to score texts [n], n ≥ 1, which are put in order; the array and what it points to are borrowed and
 * must outlive the score. *score is the caller's. */
sd_status sd_score_create(const sd_score_options* options, sd_scored_text* texts, int n, sd_score** score);
void sd_score_free(sd_score* score);

/* Encode a source, or run one forward. *n_ended: texts that have their results since. *done is set to whether
 * all have. After a failure the score is only to be freed. */
sd_status sd_score_slice(sd_score* score, int* n_ended, int* done);

/* Of a single text, when it has its results: the cache with all tokens that were read; borrowed. */
const sd_cache* sd_score_cache(const sd_score* score);
