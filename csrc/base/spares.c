#include "spares.h"

#include <stdatomic.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

/* A sanitizer shall see what is used after that was freed. */
#if defined(__linux__) && !defined(SANITIZED)

/* Sizes of blocks, four in an octave: LEAST · 1, 5/4, 6/4, 7/4, 2, 10/4, … 2^OCTAVES. Where less was asked
 * for, the last pages of a block are never touched. */
#define LEAST ((size_t)64 << 10)
#define OCTAVES 6
#define N_SIZES (4 * OCTAVES + 1)

/* As much as the caches of 64 short texts of a model of 100M parameters. */
#define MOST_BYTES ((size_t)256 << 20)
#define MOST_OF_SIZE 128

/* NULL: nothing waits here. Any thread takes or leaves a block with one exchange, without a lock that a fork
 * could leave closed. */
static _Atomic(void*) spares[N_SIZES][MOST_OF_SIZE];
static atomic_size_t n_bytes;      /* of what waits */
static atomic_uint next_to_return; /* the place whose turn it is to return its block to the system */

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

/* The block that waits at a place, if there is one, which then waits no more. */
static void* take_at(int size, int place) {
    if (atomic_load_explicit(&spares[size][place], memory_order_relaxed) == NULL) return NULL;
    void* block = atomic_exchange(&spares[size][place], NULL);
    if (block != NULL) atomic_fetch_sub(&n_bytes, size_at(size));
    return block;
}

void* sd_spares_take(size_t size, int* used) {
    for (int i = index_of(size), place = 0; place < MOST_OF_SIZE; place++) {
        void* block = take_at(i, place);
        *used = block != NULL;
        if (block != NULL) return block;
    }
    void* block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

/* Return blocks of any sizes to the system until `bytes` or fewer wait. */
static int drop_to(size_t bytes) {
    int n = 0;
    for (int i = 0; i < N_SIZES * MOST_OF_SIZE && atomic_load(&n_bytes) > bytes; i++) {
        int at = (int)(atomic_fetch_add(&next_to_return, 1) % (N_SIZES * MOST_OF_SIZE));
        void* block = take_at(at / MOST_OF_SIZE, at % MOST_OF_SIZE);
        if (block != NULL) munmap(block, size_at(at / MOST_OF_SIZE)), n++;
    }
    return n;
}

void sd_spares_give(void* block, size_t size) {
    drop_to(MOST_BYTES - size);
    atomic_fetch_add(&n_bytes, size);
    for (int i = index_of(size), place = 0; place < MOST_OF_SIZE && block != NULL; place++) {
        void* none = NULL;
        if (atomic_compare_exchange_strong(&spares[i][place], &none, block)) block = NULL;
    }
    if (block == NULL) return;
    atomic_fetch_sub(&n_bytes, size);
    munmap(block, size);
}

int sd_spares_drop(void) { return drop_to(0); }
size_t sd_spares_bytes(void) { return atomic_load(&n_bytes); }

#else
size_t sd_spares_size(size_t bytes) { return (void)bytes, 0; }
void* sd_spares_take(size_t size, int* used) { return (void)size, *used = 0, NULL; }
void sd_spares_give(void* block, size_t size) { (void)block, (void)size; }
int sd_spares_drop(void) { return 0; }
size_t sd_spares_bytes(void) { return 0; }
#endif
