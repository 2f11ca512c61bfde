#include "checksum.h"

#include <stdatomic.h>
#include <string.h>

#include "pool.h"

#define PIECE ((size_t)1 << 20)
#define LANES 8
#define FACTOR 0x9e3779b97f4a7c15u

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * FACTOR;
    return x ^ (x >> 29);
}

static uint64_t step(uint64_t sum, uint64_t word) { return ((sum ^ word) * FACTOR) ^ (sum >> 32); }

/* The sum of a piece: eight sums side by side, each a chain of multiplications, so that the order counts. */
static uint64_t of_piece(const char* data, size_t size) {
    uint64_t lanes[LANES], words[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = mixed((uint64_t)i + size);
    for (; size >= sizeof words; data += sizeof words, size -= sizeof words) {
        memcpy(words, data, sizeof words);
        for (int i = 0; i < LANES; i++) lanes[i] = step(lanes[i], words[i]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, data, size);
    uint64_t sum = 0;
    for (int i = 0; i < LANES; i++) sum = mixed(sum + mixed(step(lanes[i], words[i])));
    return sum;
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
        uint64_t sum = of_piece(j->data + begin, left < PIECE ? left : PIECE);
        atomic_fetch_add(&j->sum, mixed(sum + mixed((uint64_t)i)));
    }
}

uint64_t sd_checksum(const void* data, size_t size, int n_threads) {
    job j = {.data = data, .size = size};
    atomic_init(&j.sum, mixed(size));
    sd_team team = sd_team_open(n_threads);
    sd_team_run(&team, (int)((size + PIECE - 1) / PIECE), 4, add_pieces, &j);
    sd_team_close(&team);
    return atomic_load(&j.sum);
}
