#include "ngram_pool.h"

#include <assert.h>
#include <string.h>

sd_ngram_pool sd_ngram_pool_take(sd_arena* arena, int n, int capacity) {
    sd_ngram_pool pool = {.n = n, .capacity = capacity, .n_buckets = capacity};
    pool.tokens = sd_arena_take(arena, (size_t)capacity, (size_t)n * sizeof *pool.tokens);
    pool.older = sd_arena_take(arena, (size_t)capacity, sizeof *pool.older);
    pool.newest = sd_arena_take(arena, (size_t)pool.n_buckets, sizeof *pool.newest);
    return pool;
}

void sd_ngram_pool_empty(sd_ngram_pool* p) {
    p->count = 0;
    memset(p->newest, 0, (size_t)p->n_buckets * sizeof *p->newest);
}

void sd_ngram_pool_add(sd_ngram_pool* p, int32_t first, const int32_t* rest) {
    int64_t number = ++p->count, row = number % p->capacity, *newest = &p->newest[first % p->n_buckets];
    int32_t* tokens = p->tokens + row * p->n;
    tokens[0] = first;
    memcpy(tokens + 1, rest, (size_t)(p->n - 1) * sizeof *tokens);
    p->older[row] = *newest;
    *newest = number;
}

int sd_ngram_pool_find(const sd_ngram_pool* p, int32_t first, int most, const int32_t** found) {
    int n_found = 0;
    size_t n_bytes = (size_t)(p->n - 1) * sizeof(int32_t);
    /* n-grams older than the capacity have been written over, and so has their place in the chain */
    int64_t oldest = p->count > p->capacity ? p->count - p->capacity + 1 : 1;
    for (int64_t i = p->newest[first % p->n_buckets], next; n_found < most && i >= oldest; i = next) {
        next = p->older[i % p->capacity];
        assert(next < i); /* a chain goes back in time, so it ends */
        const int32_t* tokens = p->tokens + i % p->capacity * p->n;
        if (tokens[0] != first) continue;
        int same = 0;
        while (same < n_found && memcmp(found[same], tokens + 1, n_bytes) != 0) same++;
        if (same == n_found) found[n_found++] = tokens + 1;
    }
    return n_found;
}
