/* How many tokens of a prompt a forward reads. */
#ifndef SD_PROMPT_SLICE_H
#define SD_PROMPT_SLICE_H

#include "gemm.h"
#include "matrix.h"

/* The longest slices are those of OpenBLAS, whose bits depend on the slices: they begin at multiples of
 * it. */
#define SD_BLAS_SLICE SD_GEMM_ROWS
#define SD_MOST_SLICE SD_BLAS_SLICE

/* Tokens of a slice that the row kernels multiply, in their order or that of tiles, of a model with these
 * weights: enough that arithmetic outweighs reading the weights. It changes no bits. */
int sd_row_slice(sd_format weights, sd_engine engine);

#ifdef SPECDEC_TESTING
/* Testing: the slices of models that are made from now on; 0: those that sd_row_slice chooses. */
void sd_row_slice_force(int n);
#endif

#endif
