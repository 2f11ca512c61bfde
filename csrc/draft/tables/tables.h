/* Drafters without a model: by counts of n-grams, by tokens that followed others, at random. Each is owned by
 * the caller, who hands it to a session. */
#pragma once

#include <stdatomic.h>

#include "tree_drafter.h"

/* The longest n-grams. */
#define SD_MAX_NGRAM 8

/* What level k + 1 says of level k. */
typedef struct sd_ngram_level {
    int64_t n;             /* how many (k + 1)-grams there are */
    const int64_t* starts; /* [n_before + 1] those that begin with k-gram i begin at starts[i]; from 0 to n */
    const int32_t* tokens; /* [n] their last tokens, ascending among those of one k-gram */
    const int32_t* counts; /* [n] how often they occurred, ≥ 1 */
} sd_ngram_level;

/* Counts of n-grams, as a trie in sorted arrays. Level k holds the k-grams, sorted by their tokens, so that
 * the (k + 1)-grams that begin with one of them lie together: the tokens that followed it, ascending. Level 1
 * has every token of the vocabulary.
 *
 *     level 1           a        b        c           unigrams: how often each occurred
 *                      / \       |
 *     level 2         a   c      a                    tokens; counts of aa, ac, ba
 *                         |      |
 *     level 3             b      c                    of acb, bac
 *
 * All arrays are borrowed. They may be a mapped file, which may change after the check: then rows are wrong,
 * but no memory is touched that is not theirs. So what is read is looked at again at each use. */
typedef struct sd_ngram_table {
    int n_vocab;
    int n;                               /* the order: contexts have at most n − 1 tokens */
    int back_off;                        /* smoothing: 1 back-off, 0 interpolated (ngram_drafter.c) */
    const int32_t* unigrams;             /* [n_vocab] how often each token occurred, ≥ 0 */
    sd_ngram_level levels[SD_MAX_NGRAM]; /* [n - 1] levels[k] is of (k + 2)-grams */
} sd_ngram_table;

/* Is the table what its comments say? */
sd_status sd_ngram_table_check(const sd_ngram_table* table);

/* What followed a context [k] of tokens, k ≥ 1: *begin to *end of levels[k - 1]; nothing if they are
 * equal. */
void sd_ngram_followers(const sd_ngram_table* table, const int32_t* context, int k, int64_t* begin,
                        int64_t* end);

typedef struct sd_ngram_drafter_options {
    const sd_ngram_table* table; /* borrowed; must outlive the drafter */
    int online; /* count the committed text too, of each sequence by itself, as if it were in the table's */
} sd_ngram_drafter_options;

sd_status sd_ngram_drafter_create(const sd_drafting* drafting, const sd_ngram_drafter_options* options,
                                  sd_drafter** drafter);

/* The most tokens of a row. */
#define SD_TOKEN_MATRIX_MAX_K 64

/* The most promising next tokens of every token: what a target said when it last read the token. Several
 * threads may read and write it at the same time: a row that is read while it is written may be partly of the
 * one time and partly of the other. */
typedef struct sd_token_matrix {
    int n_vocab, k;        /* k: 1 to SD_TOKEN_MATRIX_MAX_K */
    _Atomic int32_t* rows; /* [n_vocab, k] the best first; -1: none; owned by who made it */
} sd_token_matrix;

/* The token of a rank, from 0, behind a token; -1: none. */
int32_t sd_token_matrix_at(const sd_token_matrix* matrix, int32_t token, int rank);

/* Behind a token come those of the largest logits [n_vocab], of equal ones the lower id first. */
void sd_token_matrix_set(const sd_token_matrix* matrix, int32_t token, const float* logits);

/* What the target said after a token when it last read it drafts: token recycling (Luo et al. 2024, arXiv
 * 2408.08696). A tree of a given shape is filled from the root down: child number r of a node is the token of
 * rank r behind the node's. After each round the rows of all nodes' tokens are replaced by what the target
 * said after the nodes, of those too that were not accepted. */
typedef struct sd_recycling_options {
    const sd_token_matrix* matrix; /* Of the target's vocabulary; borrowed, must outlive the drafter. */
    sd_shape_options shape;        /* A tree */
    /* [matrix->k] how often the token of each rank comes, in [0, 1]; borrowed while the drafter is made. */
    const double* chances;
} sd_recycling_options;

sd_status sd_recycling_drafter_create(const sd_drafting* drafting, const sd_recycling_options* options,
                                      sd_drafter** drafter);

typedef struct sd_lookahead_options {
    int window;     /* columns, ≥ 1 */
    int ngram;      /* tokens of an n-gram, ≥ 2 */
    int candidates; /* most n-grams of the pool in a round, ≥ 0 */
} sd_lookahead_options;

/* The target drafts by Jacobi iteration. A round of fewer guesses than (window + candidates) · (ngram - 1)
 * takes columns off the window's end and then cuts the last candidates. */
sd_status sd_lookahead_drafter_create(const sd_drafting* drafting, const sd_lookahead_options* options,
                                      sd_drafter** drafter);

/* Chains whose every token is drawn uniformly, whatever the temperature: what is accepted of them is the
 * floor of every drafting method. */
sd_status sd_random_drafter_create(const sd_drafting* drafting, sd_drafter** drafter);
