/* A checksum of bytes that detects damage, computed by all threads. */
#include "kernels.h"

#include <assert.h>
#include <string.h>

#include "interrupt.h"
#include "pool.h"

/* The specification, in unsigned 64-bit integers and the processor's byte order.
 *
 *   mixed(x) = y ^ (y >> 29), where y = (x ^ (x >> 32)) · FACTOR
 *
 *   The bytes of a stretch are cut into pieces of 1 MiB; the last one may be shorter. A piece of n bytes is
 *   padded with at least one zero to whole lines of eight words. Its words go to eight lanes, word i to
 *   lane i mod 8. Each lane has two sums, which begin as first = mixed(lane + n), second = 0. For each word:
 *
 *     first = rotate_left(first + word, 29), second = second + first
 *
 *   The sum of a piece begins as 0; then, lane by lane, sum = mixed(sum + mixed(first) + second).
 *   The checksum of the stretch is mixed(bytes) + Σ mixed(sum of piece i + mixed(i)).
 *
 * A lane needs no multiplication, so every processor computes several lanes per instruction
 * (checksum_template.h). */
#define PIECE SD_CHECKSUM_PIECE
#define LANES SD_CHECKSUM_LANES
#define FACTOR 0x9e3779b97f4a7c15u

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * FACTOR;
    return x ^ (x >> 29);
}

static uint64_t of_piece(const char* data, size_t size) {
    enum { LINE = LANES * sizeof(uint64_t) };
    uint64_t first[LANES], second[LANES] = {0};
    for (int i = 0; i < LANES; i++) first[i] = mixed((uint64_t)i + size);
    size_t n_lines = size / LINE;
    sd_kernels_get()->checksum_lines(n_lines, data, first, second);
    char rest[LINE] = {0};
    memcpy(rest, data + n_lines * LINE, size % LINE);
    sd_kernels_get()->checksum_lines(1, rest, first, second);
    uint64_t sum = 0;
    for (int i = 0; i < LANES; i++) sum = mixed(sum + mixed(first[i]) + second[i]);
    return sum;
}

typedef struct job {
    const char* data; /* borrowed */
    size_t size, stretch;
    size_t begin; /* offset of the pieces that are read now */
    uint64_t* sums;
} job;

/* Add the sums of pieces, each mixed with the piece's number, so that their order matters. */
static void add_pieces(void* argument, int thread, int first, int end) {
    (void)thread;
    job* j = argument;
    for (int i = first; i < end; i++) {
        size_t begin = j->begin + (size_t)i * PIECE, left = j->size - begin;
        uint64_t sum = of_piece(j->data + begin, left < PIECE ? left : PIECE);
        uint64_t number = begin % j->stretch / PIECE;
        __atomic_fetch_add(&j->sums[begin / j->stretch], mixed(sum + mixed(number)), __ATOMIC_RELAXED);
    }
}

sd_status sd_checksums(const void* data, size_t size, size_t stretch, int n_threads, uint64_t* sums) {
    enum { TOGETHER = 256 }; /* pieces between two checks for an interrupt */
    job j = {.data = data, .size = size, .stretch = stretch, .sums = sums};
    assert(stretch > 0 && stretch % PIECE == 0);
    for (size_t i = 0, left = size; i == 0 || left > 0; i++) {
        size_t here = left < stretch ? left : stretch;
        sums[i] = mixed(here);
        left -= here;
    }
    for (; j.begin < size; j.begin += TOGETHER * PIECE) {
        SD_TRY(sd_interrupted());
        size_t n = (size - j.begin + PIECE - 1) / PIECE;
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, n < TOGETHER ? (int)n : TOGETHER, 1, add_pieces, &j);
        sd_team_close(&team);
    }
    return SD_OK;
}
