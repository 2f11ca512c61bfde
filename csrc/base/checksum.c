#include "checksum.h"

#include <stdatomic.h>
#include <string.h>

#include "pool.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

/* The specification, in whole numbers of 64 bits without sign, in the processor's order of bytes.
 *
 *   mixed(x) = y ^ (y >> 29), where y = (x ^ (x >> 32)) · FACTOR
 *
 *   The bytes are cut into pieces of 1 MiB, the last one may be shorter. A piece of n bytes is padded with
 *   zeros, at least one, to whole lines of eight words. Its words go to eight lanes, word i to lane
 *   i mod 8. Each lane has two sums, which begin as first = mixed(lane + n), second = 0. For each word:
 *
 *     first = rotated left by 29(first + word), second = second + first
 *
 *   The sum of a piece is 0, then, lane by lane, sum = mixed(sum + mixed(first) + second).
 *   The checksum of all is mixed(bytes) + Σ mixed(sum of piece i + mixed(i)).
 *
 * A lane needs no product, so that every processor computes several lanes in one instruction. */
#define PIECE ((size_t)1 << 20)
#define LANES 8
#define FACTOR 0x9e3779b97f4a7c15u
#define AHEAD 2048 /* bytes that are asked for before they are read: the hardware stops where a page ends */

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * FACTOR;
    return x ^ (x >> 29);
}

typedef struct sums {
    uint64_t first[LANES], second[LANES];
} sums;

static inline void add_line(sums* s, const char* line) {
    uint64_t words[LANES];
    memcpy(words, line, sizeof words);
    for (int i = 0; i < LANES; i++) {
        uint64_t sum = s->first[i] + words[i];
        s->first[i] = sum << 29 | sum >> 35;
        s->second[i] += s->first[i];
    }
}

static uint64_t of_piece(const char* data, size_t size) {
    enum { LINE = LANES * sizeof(uint64_t) };
    sums s = {{0}, {0}};
    for (int i = 0; i < LANES; i++) s.first[i] = mixed((uint64_t)i + size);
    const char* end = data + size / LINE * LINE;
    for (; data < end; data += LINE) {
        if (end - data > AHEAD) __builtin_prefetch(data + AHEAD);
        add_line(&s, data);
    }
    char rest[LINE] = {0};
    memcpy(rest, data, size % LINE);
    add_line(&s, rest);
    uint64_t sum = 0;
    for (int i = 0; i < LANES; i++) sum = mixed(sum + mixed(s.first[i]) + s.second[i]);
    return sum;
}

/* Map whole pages of a mapped file in one call, in place of a fault for each few of them. */
static void map_pages(const char* data, size_t size) {
#if defined(__linux__) && defined(MADV_POPULATE_READ)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + size) / page * page;
    if (begin < end) madvise((void*)begin, end - begin, MADV_POPULATE_READ); /* only a hint */
#else
    (void)data, (void)size;
#endif
}

typedef struct job {
    const char* data; /* borrowed */
    size_t size;
    _Atomic uint64_t sum;
} job;

/* Add the sums of pieces, each mixed with the number of its piece, so that the order counts. */
static void add_pieces(void* argument, int thread, int first, int end) {
    (void)thread;
    job* j = argument;
    for (int i = first; i < end; i++) {
        size_t begin = (size_t)i * PIECE, left = j->size - begin;
        size_t size = left < PIECE ? left : PIECE;
        map_pages(j->data + begin, size);
        uint64_t sum = of_piece(j->data + begin, size);
        atomic_fetch_add(&j->sum, mixed(sum + mixed((uint64_t)i)));
    }
}

uint64_t sd_checksum(const void* data, size_t size, int n_threads) {
    job j = {.data = data, .size = size};
    atomic_init(&j.sum, mixed(size));
    sd_team team = sd_team_open(n_threads);
    sd_team_run(&team, (int)((size + PIECE - 1) / PIECE), 1, add_pieces, &j);
    sd_team_close(&team);
    return atomic_load(&j.sum);
}
