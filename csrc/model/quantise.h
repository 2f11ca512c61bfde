/* Quantising rows to the blocks of GGUF files: Q4_K, Q5_K and Q6_K, as ggml defines what they mean.
 *
 * Each sub-block of 32 or 16 inputs gets the scale, and in Q4_K and Q5_K the minimum, of the least weighted
 * square error among those of some trials; these are then rounded to what a block can hold, and the codes to
 * nearest. Bits do not depend on the number of threads, nor on the processor. */
#ifndef SD_QUANTISE_H
#define SD_QUANTISE_H

#include "pack.h"

/* Inputs of a block of these types. */
#define SD_K_BLOCK 256

/* type: SD_Q4_K, SD_Q5_K or SD_Q6_K. x [n_rows, n_in] f32, finite, n_in a multiple of SD_K_BLOCK; importance
 * [n_in] at least 0: weights of the inputs' errors, or NULL: none is worth more than another; out [n_rows,
 * n_in / SD_K_BLOCK] blocks; all borrowed. With n_threads reserved threads. */
sd_status sd_quantise(sd_number type, const float* x, int n_rows, int n_in, const float* importance,
                      unsigned char* out, int n_threads);

#endif
