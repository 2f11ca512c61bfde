/* Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011).
 *
 * A number is a pure function of its key: no draw depends on earlier draws, the batch or the number of
 * threads. */
#pragma once

#include <stdint.h>

/* What a number decides. Numbers for different purposes are independent. */
typedef enum sd_purpose {
    SD_DRAW_DRAFT = 0,            /* the draft's own choice of a token */
    SD_DRAW_ACCEPT = 1,           /* accept or reject a draft token (r_i of Algorithm 1) */
    SD_DRAW_SAMPLE = 2,           /* the recovered or bonus token (t of Algorithm 1) */
    SD_DRAW_FIXED_ACCEPTANCE = 3, /* is a token of the fixed acceptance drafter right? */
    SD_DRAW_NOISE = 4,            /* one number for every token of the vocabulary (distribution.h) */
    SD_DRAW_WINDOW = 5,           /* text tokens that fill lookahead decoding's window at first */
    SD_DRAW_INNER = 6,            /* the seed of a drafter within a drafter (sd_stream_inner) */
} sd_purpose;

/* The source of draws: one sequence of one seeded run. */
typedef struct sd_stream {
    uint64_t seed;
    uint32_t sequence;
} sd_stream;

/* One block of Philox4x32-10: counter [4] and key [2] in, four words out. */
void sd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 53 random bits. `position` is the length of the text when the round begins, so no
 * two rounds share a number; `index` separates the draws of one round. */
double sd_uniform(sd_stream stream, uint32_t position, sd_purpose purpose, uint32_t index);

/* Stream of a drafter inside another drafter, such as one of several, or a draft that itself speculates. Its
 * seed is drawn from `stream`: both streams, and those of other positions and indices, are independent. */
sd_stream sd_stream_inner(sd_stream stream, uint32_t position, uint32_t index);
