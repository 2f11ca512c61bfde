/* Counts of n-grams, as a trie in sorted arrays: what an n-gram model knows of some text.
 *
 * Level k holds the k-grams, sorted by their tokens, so that the (k + 1)-grams that begin with one of them
 * lie together: the tokens that followed it, ascending. Level 1 has every token of the vocabulary.
 *
 *     level 1           a        b        c           unigrams: how often each occurred
 *                      / \       |
 *     level 2         a   c      a                    tokens; counts of aa, ac, ba
 *                         |      |
 *     level 3             b      c                    of acb, bac
 */
#ifndef SD_NGRAM_TABLE_H
#define SD_NGRAM_TABLE_H

#include <stdint.h>

#include "status.h"

/* The longest n-grams. */
#define SD_MAX_NGRAM 8

/* What level k + 1 says of level k. */
typedef struct sd_ngram_level {
    int64_t n;             /* how many (k + 1)-grams there are */
    const int64_t* starts; /* [n_before + 1] those that begin with k-gram i begin at starts[i]; from 0 to n */
    const int32_t* tokens; /* [n] their last tokens, ascending among those of one k-gram */
    const int32_t* counts; /* [n] how often they occurred, ≥ 1 */
} sd_ngram_level;

/* All arrays are borrowed. They may be a mapped file, which may change after the check: then rows are wrong,
 * but no memory is touched that is not theirs. So what is read is looked at again at each use. */
typedef struct sd_ngram_table {
    int n_vocab;
    int n;                               /* the order: contexts have at most n − 1 tokens */
    int back_off;                        /* smoothing: 1 back-off, 0 interpolated (ngram_drafter.h) */
    const int32_t* unigrams;             /* [n_vocab] how often each token occurred, ≥ 0 */
    sd_ngram_level levels[SD_MAX_NGRAM]; /* [n - 1] levels[k] is of (k + 2)-grams */
} sd_ngram_table;

/* Is the table what its comments say? */
sd_status sd_ngram_table_check(const sd_ngram_table* table);

/* What followed a context [k] of tokens, k ≥ 1: *begin to *end of levels[k - 1]; nothing if they are
 * equal. */
void sd_ngram_followers(const sd_ngram_table* table, const int32_t* context, int k, int64_t* begin,
                        int64_t* end);

#endif
