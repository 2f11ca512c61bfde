/* The n-grams seen last, found by their first token, the most recent first. */
#ifndef SD_NGRAM_POOL_H
#define SD_NGRAM_POOL_H

#include "memory.h"

typedef struct sd_ngram_pool {
    int n;           /* tokens of an n-gram, ≥ 2 */
    int capacity;    /* n-grams kept; each new one takes the place of the oldest */
    int64_t count;   /* n-grams added so far, which number them from 1 on */
    int32_t* tokens; /* [capacity, n] n-gram i in row i % capacity */
    int64_t* older;  /* [capacity] the n-gram before it with a first token of the same bucket; 0: none */
    int64_t* newest; /* [n_buckets] the last one of each bucket; 0: none */
    int n_buckets;
} sd_ngram_pool;

/* An empty pool, its arrays pieces of the arena: zeros are a pool without n-grams. */
sd_ngram_pool sd_ngram_pool_take(sd_arena* arena, int n, int capacity);

void sd_ngram_pool_empty(sd_ngram_pool* pool);

/* Add the n-gram first, rest [n - 1]. */
void sd_ngram_pool_add(sd_ngram_pool* pool, int32_t first, const int32_t* rest);

/* What followed `first`: at most `most` different rests, the most recent first. found [most] point at
 * [n - 1] tokens, which stay until the next n-gram is added. Returns how many there are. */
int sd_ngram_pool_find(const sd_ngram_pool* pool, int32_t first, int most, const int32_t** found);

#endif
