#include "memory.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "system.h"

/* Header line of a block: what the system allocated. */
typedef struct header {
    void* block;
    size_t mapped; /* bytes to unmap; 0: none */
    size_t spared; /* bytes of a recycled block; 0 with `mapped` 0: it is malloc's */
    size_t size;   /* bytes requested */
} header;

#define HUGE_PAGE ((size_t)2 << 20)

static atomic_long n_live;
static atomic_llong n_bytes;
static atomic_long n_until_failure = -1;

void sd_alloc_fail_after(long n) { atomic_store(&n_until_failure, n); }
long sd_alloc_live(void) { return atomic_load(&n_live); }
long long sd_alloc_bytes(void) { return atomic_load(&n_bytes); }

static int should_fail(void) {
    long n = atomic_load(&n_until_failure);
    if (n < 0) return 0;
    if (n == 0) return 1;
    atomic_store(&n_until_failure, n - 1);
    return 0;
}

static int guarded;
void sd_arena_guard(int on) { guarded = on; }

/* Like sd_arena_take: the piece ends where a page ends, and the next page is protected. */
static void* take_guarded(sd_arena* arena, size_t bytes) {
    size_t page = sd_page_size(), end = (arena->used + bytes + page - 1) / page * page;
    arena->used = end + page;
    if (arena->base == NULL) return NULL;
    sd_pages_protect(arena->base + end, page);
    return arena->base + end - bytes;
}

/* Large blocks are mapped. Their pages are zero, and the thread that first writes a page allocates it. Pages
 * of 2 MiB save a tenth of the time of reading weights and caches (benchmarks/SPEED.md). Only blocks of
 * several pages gain. */
#define LARGE (2 * HUGE_PAGE)

static void* take_pages(size_t size, header* from) {
    size_t total = size + HUGE_PAGE + SD_ALIGNMENT;
    void* block = total < size ? NULL : sd_pages_take(total);
    if (block == NULL) return NULL;
    uintptr_t start = ((uintptr_t)block + SD_ALIGNMENT + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    sd_pages_prefer_huge((void*)start, size);
    *from = (header){.block = block, .mapped = total, .size = size};
    return (void*)start;
}

/* By calloc, which does not zero fresh pages: unused memory costs nothing. */
static void* take_zeroed(size_t size, header* from) {
    size_t total = size + 2 * SD_ALIGNMENT;
    void* block = total < size ? NULL : calloc(1, total);
    if (block == NULL) return NULL;
    uintptr_t start = ((uintptr_t)block + 2 * SD_ALIGNMENT - 1) & ~(uintptr_t)(SD_ALIGNMENT - 1);
    *from = (header){.block = block, .size = size};
    return (void*)start;
}

/* From the spares, if they keep blocks of this size. */
static void* take_spare(size_t size, header* from) {
    int used;
    size_t total = sd_spares_size(size + SD_ALIGNMENT);
    char* block = sd_spares_take(total, &used);
    if (block == NULL) return NULL;
    *from = (header){.block = block, .spared = total, .size = size};
    char* start = block + SD_ALIGNMENT;
    if (used) memset(start, 0, size);
    return start;
}

static void* take(size_t size, header* from) {
    if (size >= LARGE || guarded) return take_pages(size, from);
    return sd_spares_size(size + SD_ALIGNMENT) > 0 ? take_spare(size, from) : take_zeroed(size, from);
}

void* sd_alloc(size_t size) {
    header from;
    char* start = NULL; /* guarded pages are never returned to malloc */
    if (!should_fail()) {
        start = take(size, &from);
        if (start == NULL && sd_spares_drop() > 0) start = take(size, &from);
    }
    if (start == NULL) {
        sd_fail(SD_ERR_MEMORY, "out of memory: %zu bytes", size);
        return NULL;
    }
    *(header*)(void*)(start - SD_ALIGNMENT) = from;
    atomic_fetch_add(&n_live, 1);
    atomic_fetch_add(&n_bytes, (long long)size);
    return start;
}

void sd_free(void* block) {
    if (block == NULL) return;
    atomic_fetch_sub(&n_live, 1);
    header from = *(header*)(void*)((char*)block - SD_ALIGNMENT);
    atomic_fetch_sub(&n_bytes, (long long)from.size);
    if (from.mapped)
        sd_pages_give(from.block, from.mapped);
    else if (from.spared)
        sd_spares_give(from.block, from.spared);
    else
        free(from.block);
}

/* FNV-1a prime, 64 bits. */
#define FNV_PRIME 0x100000001b3u

void* sd_arena_take(sd_arena* arena, size_t count, size_t size) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - arena->used - SD_ALIGNMENT) {
        arena->overflowed = 1;
        return NULL;
    }
    bytes = (bytes + SD_ALIGNMENT - 1) / SD_ALIGNMENT * SD_ALIGNMENT;
    arena->shape = (((arena->shape ^ count) * FNV_PRIME) ^ size) * FNV_PRIME;
    if (guarded) return take_guarded(arena, bytes);
    char* piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += bytes;
    assert(arena->base == NULL || arena->used <= arena->size);
    return piece;
}

void* sd_arena_copy(sd_arena* arena, const void* from, int count, size_t size) {
    void* to = from ? sd_arena_take(arena, (size_t)count, size) : NULL;
    return arena->base && to ? memcpy(to, from, (size_t)count * size) : to;
}

sd_status sd_arena_commit(sd_arena* arena) {
    assert(arena->base == NULL);
    if (arena->overflowed) return sd_fail(SD_ERR_MEMORY, "out of memory: sizes overflow");
    char* base = sd_alloc(arena->used);
    if (base == NULL) return SD_ERR_MEMORY;
    arena->base = base;
    arena->size = arena->used;
    arena->used = 0;
    arena->shape = 0;
    return SD_OK;
}

sd_status sd_arena_adopt(sd_arena* arena, sd_memory_block block) {
    assert(arena->base == NULL);
    if (arena->overflowed || guarded || block.size != arena->used || (uintptr_t)block.at % SD_ALIGNMENT)
        return sd_fail(SD_ERR_VALUE, "a block of %zu bytes, expected %zu, aligned", block.size, arena->used);
    arena->base = block.at;
    arena->size = arena->used;
    arena->used = 0;
    arena->shape = 0;
    arena->borrowed = 1;
    return SD_OK;
}

void sd_arena_free(sd_arena* arena) {
    if (!arena->borrowed) sd_free(arena->base);
    *arena = (sd_arena){0};
}

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Under a sanitizer blocks are not recycled, so that it sees use after free. */
#if !defined(SANITIZED)

/* Block sizes, four per octave: LEAST · 1, 5/4, 6/4, 7/4, 2, 10/4, … 2^OCTAVES. The last pages of a block
 * stay untouched if less was requested. */
#define LEAST ((size_t)64 << 10)
#define OCTAVES 6
#define N_SIZES (4 * OCTAVES + 1)

/* As much as the caches of 64 short texts of a model with 100M parameters. */
#define MOST_BYTES ((size_t)256 << 20)
#define MOST_OF_SIZE 128

/* NULL: empty. A thread takes or stores a block with one exchange: there is no lock that a fork could leave
 * locked. */
static _Atomic(void*) spares[N_SIZES][MOST_OF_SIZE];
static atomic_size_t n_spare_bytes; /* of all stored blocks */
static atomic_uint next_to_return;  /* slot that next returns its block to the system */

static size_t size_at(int i) { return (LEAST << i / 4) + (LEAST << i / 4) / 4 * (size_t)(i % 4); }

static int index_of(size_t bytes) {
    int i = 0;
    while (i < N_SIZES && size_at(i) < bytes) i++;
    return i;
}

size_t sd_spares_size(size_t bytes) {
    int i = bytes < LEAST ? N_SIZES : index_of(bytes);
    return i < N_SIZES ? size_at(i) : 0;
}

/* Take the block out of a slot; NULL if it is empty. */
static void* take_at(int size, int slot) {
    if (atomic_load_explicit(&spares[size][slot], memory_order_relaxed) == NULL) return NULL;
    void* block = atomic_exchange(&spares[size][slot], NULL);
    if (block != NULL) atomic_fetch_sub(&n_spare_bytes, size_at(size));
    return block;
}

void* sd_spares_take(size_t size, int* used) {
    for (int i = index_of(size), slot = 0; slot < MOST_OF_SIZE; slot++) {
        void* block = take_at(i, slot);
        *used = block != NULL;
        if (block != NULL) return block;
    }
    return sd_pages_take(size);
}

/* Return blocks of any size to the system until at most `bytes` remain. */
static int drop_to(size_t bytes) {
    int n = 0;
    for (int i = 0; i < N_SIZES * MOST_OF_SIZE && atomic_load(&n_spare_bytes) > bytes; i++) {
        int at = (int)(atomic_fetch_add(&next_to_return, 1) % (N_SIZES * MOST_OF_SIZE));
        void* block = take_at(at / MOST_OF_SIZE, at % MOST_OF_SIZE);
        if (block != NULL) sd_pages_give(block, size_at(at / MOST_OF_SIZE)), n++;
    }
    return n;
}

void sd_spares_give(void* block, size_t size) {
    drop_to(MOST_BYTES - size);
    atomic_fetch_add(&n_spare_bytes, size);
    for (int i = index_of(size), slot = 0; slot < MOST_OF_SIZE && block != NULL; slot++) {
        void* none = NULL;
        if (atomic_compare_exchange_strong(&spares[i][slot], &none, block)) block = NULL;
    }
    if (block == NULL) return;
    atomic_fetch_sub(&n_spare_bytes, size);
    sd_pages_give(block, size);
}

int sd_spares_drop(void) { return drop_to(0); }
size_t sd_spares_bytes(void) { return atomic_load(&n_spare_bytes); }

#else
size_t sd_spares_size(size_t bytes) { return (void)bytes, 0; }
void* sd_spares_take(size_t size, int* used) { return (void)size, *used = 0, NULL; }
void sd_spares_give(void* block, size_t size) { (void)block, (void)size; }
int sd_spares_drop(void) { return 0; }
size_t sd_spares_bytes(void) { return 0; }
#endif
