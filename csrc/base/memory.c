#include "memory.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

/* A block begins with a header line that keeps the pointer malloc gave. */
typedef struct header {
    void* block;
} header;

#define HUGE_PAGE ((size_t)2 << 20)

static atomic_long n_live;
static atomic_long n_until_failure = -1;

void sd_alloc_fail_after(long n) { atomic_store(&n_until_failure, n); }
long sd_alloc_live(void) { return atomic_load(&n_live); }

static int told_to_fail(void) {
    long n = atomic_load(&n_until_failure);
    if (n < 0) return 0;
    if (n == 0) return 1;
    atomic_store(&n_until_failure, n - 1);
    return 0;
}

void* sd_alloc(size_t size) {
    /* Weights and caches are read in long streams: 2 MiB pages save a tenth of the time
     * (benchmarks/RESULTS.md), and only blocks of several pages gain. */
    size_t alignment = size >= 2 * HUGE_PAGE ? HUGE_PAGE : SD_ALIGNMENT;
    size_t total = size + alignment + SD_ALIGNMENT;
    void* block = total < size || told_to_fail() ? NULL : malloc(total);
    if (block == NULL) {
        sd_fail(SD_ERR_MEMORY, "out of memory: %zu bytes", size);
        return NULL;
    }
    uintptr_t start = ((uintptr_t)block + SD_ALIGNMENT + alignment - 1) & ~(uintptr_t)(alignment - 1);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment == HUGE_PAGE) madvise((void*)start, size, MADV_HUGEPAGE);
#endif
    memset((void*)start, 0, size);
    ((header*)(start - SD_ALIGNMENT))->block = block;
    atomic_fetch_add(&n_live, 1);
    return (void*)start;
}

void sd_free(void* block) {
    if (block == NULL) return;
    atomic_fetch_sub(&n_live, 1);
    free(((header*)((uintptr_t)block - SD_ALIGNMENT))->block);
}

void* sd_arena_take(sd_arena* arena, size_t count, size_t size) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - arena->used - SD_ALIGNMENT) {
        arena->overflowed = 1;
        return NULL;
    }
    bytes = (bytes + SD_ALIGNMENT - 1) / SD_ALIGNMENT * SD_ALIGNMENT;
    char* piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += bytes;
    assert(arena->base == NULL || arena->used <= arena->size);
    return piece;
}

sd_status sd_arena_commit(sd_arena* arena) {
    assert(arena->base == NULL);
    if (arena->overflowed) return sd_fail(SD_ERR_MEMORY, "out of memory: sizes overflow");
    char* base = sd_alloc(arena->used);
    if (base == NULL) return SD_ERR_MEMORY;
    arena->base = base;
    arena->size = arena->used;
    arena->used = 0;
    return SD_OK;
}

void sd_arena_free(sd_arena* arena) {
    sd_free(arena->base);
    *arena = (sd_arena){0};
}
