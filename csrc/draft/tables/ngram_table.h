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

#include "memory.h"

/* The longest n-grams. */
#define SD_MAX_NGRAM 8

/* What level k + 1 says of level k. */
typedef struct sd_ngram_level {
    int64_t n;             /* how many (k + 1)-grams there are */
    const int64_t* starts; /* [n_before + 1] those that begin with k-gram i begin at starts[i]; from 0 to n */
    const int32_t* tokens; /* [n] their last tokens, ascending among those of one k-gram */
    const int32_t* counts; /* [n] how often they occurred, ≥ 1 */
} sd_ngram_level;

/* How often tokens occur, as weights of the unigram model. With n(x) of token x, n of all and d different
 * ones, P(x) = (n(x) + d / n_vocab) / (n + d): Witten and Bell's interpolation with the uniform distribution;
 * uniform if nothing was seen. */
typedef struct sd_unigrams {
    int32_t* counts; /* [n_vocab] n(x) */
    float* logs;     /* [n_vocab] logarithms of the weights */
    double share;    /* d / n_vocab, or 1 / n_vocab if nothing was seen */
    double total;    /* the sum of all weights: n + d, or 1 */
    int64_t n;
    int n_different; /* d */
    int32_t best;    /* the token of the greatest weight, the lowest id on ties */
    int logs_stale;  /* the logarithms are of another share */
} sd_unigrams;

typedef struct sd_ngram_table {
    int n_vocab;
    int n;        /* the order: contexts have at most n − 1 tokens */
    int back_off; /* what was not seen after a context alone is looked up without its first token */
    sd_unigrams unigrams;
    sd_ngram_level levels[SD_MAX_NGRAM]; /* [n - 1] levels[k] is of (k + 2)-grams; arrays borrowed */
    sd_arena arena;                      /* owns the unigrams */
} sd_ngram_table;

/* Pieces of an arena for the counts of n_vocab tokens. */
sd_unigrams sd_unigrams_take(sd_arena* arena, int n_vocab);

/* Everything else from the counts. */
void sd_unigrams_fill(sd_unigrams* unigrams, int n_vocab);

/* Share and total from n and n_different. */
void sd_unigrams_share(sd_unigrams* unigrams, int n_vocab);

/* The logarithms, if they are stale. */
void sd_unigrams_log(sd_unigrams* unigrams, int n_vocab);

static inline double sd_unigram_weight(const sd_unigrams* unigrams, int32_t token) {
    return unigrams->counts[token] + unigrams->share;
}

/* Make a table of counts [n_vocab], which are copied, and of n - 1 levels, whose arrays must outlive it.
 * Everything is checked. The arrays may be a mapped file: should they change later, rows are wrong, but no
 * memory is touched that is not theirs. */
sd_status sd_ngram_table_create(sd_ngram_table* table, int n_vocab, const int32_t* counts, int n,
                                const sd_ngram_level* levels, int back_off);
void sd_ngram_table_free(sd_ngram_table* table);

/* The (k + 1)-grams that begin with k-gram `entry` of level k ≥ 1: *begin to *end of levels[k - 1]. None if
 * entry is -1 or nothing is as long. */
void sd_ngram_after(const sd_ngram_table* table, int k, int64_t entry, int64_t* begin, int64_t* end);

/* The entry of the (k + 1)-gram made of k-gram `entry` and a token, or -1. k = 0: entry is 0, and the result
 * is the token. */
int64_t sd_ngram_find(const sd_ngram_table* table, int k, int64_t entry, int32_t token);

#endif
