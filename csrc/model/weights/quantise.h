/* Quantising rows to the blocks of GGUF files, as ggml defines what they mean.
 *
 * Q8_0 and Q4_0 get the codes and scales that packing to int8 and int4 gives. In Q4_K, Q5_K and Q6_K each
 * sub-block of 32 or 16 inputs gets the scale, and in Q4_K and Q5_K the minimum, of the least weighted
 * square error among those of some trials; these are then rounded to what a block can hold, and the codes to
 * nearest. Bits do not depend on the number of threads, nor on the processor. */
#ifndef SD_QUANTISE_H
#define SD_QUANTISE_H

#include "pack.h"

/* Can rows be quantised to this type? */
int sd_can_quantise(sd_number type);

/* x [n_rows, n_in] f32, finite, n_in a multiple of the type's block; importance [n_in] at least 0, for types
 * of blocks of 256: weights of the inputs' errors, or NULL: none is worth more than another; out [n_rows]
 * rows of blocks; all borrowed. With n_threads reserved threads. Fails on a number that is too large for Q8_0
 * or Q4_0. */
sd_status sd_quantise(sd_number type, const float* x, int n_rows, int n_in, const float* importance,
                      unsigned char* out, int n_threads);

#endif
