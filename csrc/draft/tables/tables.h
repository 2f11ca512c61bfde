/* Drafters without a neural model: n-gram counts, token recycling, lookahead, random. Owned by the caller,
 * who passes it to a session. */
#pragma once

#include <stdatomic.h>

#include "tree_drafter.h"

/* Longest n-grams. */
#define SD_MAX_NGRAM 8

/* The (k + 1)-grams of level k + 1, by the k-grams that they extend. */
typedef struct sd_ngram_level {
    int64_t n;             /* number of (k + 1)-grams */
    const int64_t* starts; /* [n_before + 1] index of the first that extends k-gram i; from 0 to n */
    const int32_t* tokens; /* [n] last token of each, ascending within a k-gram */
    const int32_t* counts; /* [n] count of each, ≥ 1 */
} sd_ngram_level;

/* Counts of n-grams, as a trie in sorted arrays. Level k holds the k-grams, sorted by tokens; the (k +
 * 1)-grams that extend one of them are adjacent, by ascending last token. Level 1 has every token of the
 * vocabulary.
 *
 *     level 1           a        b        c           unigrams: count of each
 *                      / \       |
 *     level 2         a   c      a                    tokens; counts of aa, ac, ba
 *                         |      |
 *     level 3             b      c                    of acb, bac
 *
 * All arrays are borrowed. They may map a file that changes after the check: then rows are wrong, but indices
 * stay within the arrays, because every use checks them again. */
typedef struct sd_ngram_table {
    int n_vocab;
    int n;                               /* order: contexts have at most n − 1 tokens */
    int back_off;                        /* smoothing: 1 back-off, 0 interpolated (ngram_drafter.c) */
    const int32_t* unigrams;             /* [n_vocab] count of each token, ≥ 0 */
    sd_ngram_level levels[SD_MAX_NGRAM]; /* [n - 1] levels[k] has the (k + 2)-grams */
} sd_ngram_table;

/* Is the table valid, as described above? */
sd_status sd_ngram_table_check(const sd_ngram_table* table);

/* Find the tokens after a context [k], k ≥ 1: *begin to *end of levels[k - 1]; none if they are equal. */
void sd_ngram_followers(const sd_ngram_table* table, const int32_t* context, int k, int64_t* begin,
                        int64_t* end);

typedef struct sd_ngram_drafter_options {
    const sd_ngram_table* table; /* borrowed; must outlive the drafter */
    int online;                  /* also count the committed text of each sequence by itself */
} sd_ngram_drafter_options;

sd_status sd_ngram_drafter_create(const sd_drafting* drafting, const sd_ngram_drafter_options* options,
                                  sd_drafter** drafter);

/* Most tokens of a row. */
#define SD_TOKEN_MATRIX_MAX_K 64

/* The most probable next tokens of every token, from the target's logits when it last read the token. Several
 * threads may read and write at the same time: a row read while it is written may be partly old and partly
 * new. */
typedef struct sd_token_matrix {
    int n_vocab, k;        /* k: 1 to SD_TOKEN_MATRIX_MAX_K */
    _Atomic int32_t* rows; /* [n_vocab, k] best first; -1: none; owned by the creator */
} sd_token_matrix;

/* The token of a rank, from 0, after a token; -1: none. */
int32_t sd_token_matrix_at(const sd_token_matrix* matrix, int32_t token, int rank);

/* Set the row of a token to the largest logits [n_vocab], the lower id first on ties. */
void sd_token_matrix_set(const sd_token_matrix* matrix, int32_t token, const float* logits);

/* Token recycling (Luo et al. 2024, arXiv 2408.08696): draft the target's most probable tokens after a token
 * when it last read it. A tree of a given shape is filled from the root down: child number r of a node is the
 * token of rank r after the node's. After each round the rows of all nodes' tokens, accepted or not, are
 * replaced by the target's logits after the nodes. */
typedef struct sd_recycling_options {
    const sd_token_matrix* matrix; /* of the target's vocabulary; borrowed, must outlive the drafter */
    sd_shape_options shape;        /* a tree */
    /* [matrix->k] chance that the token of each rank is accepted, in [0, 1]; borrowed during creation */
    const double* chances;
} sd_recycling_options;

sd_status sd_recycling_drafter_create(const sd_drafting* drafting, const sd_recycling_options* options,
                                      sd_drafter** drafter);

typedef struct sd_lookahead_options {
    int window;     /* columns, ≥ 1 */
    int ngram;      /* tokens of an n-gram, ≥ 2 */
    int candidates; /* most n-grams of the pool in a round, ≥ 0 */
} sd_lookahead_options;

/* Lookahead: the target drafts by Jacobi iteration. A round of fewer draft tokens than (window + candidates)
 * · (ngram - 1) drops columns at the window's end and then the last candidates. */
sd_status sd_lookahead_drafter_create(const sd_drafting* drafting, const sd_lookahead_options* options,
                                      sd_drafter** drafter);

/* Chains of uniformly drawn tokens, at any temperature: their acceptance is the floor of every drafting
 * method. */
sd_status sd_random_drafter_create(const sd_drafting* drafting, sd_drafter** drafter);
