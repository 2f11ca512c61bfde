/* Matrix products of many rows, in f32, by OpenBLAS.
 *
 * A product is computed in slices, each by one call on one thread. The slices depend on the product's shape
 * only, so neither the number of threads nor other work changes a bit. OpenBLAS chooses the order of a sum.
 * It depends on its kernels for the processor, on the shape, and with some kernels on a row's position in its
 * slice. */
#pragma once

#include <stddef.h>

#include "pool.h"

/* Most rows and outputs of a slice. */
#define SD_GEMM_ROWS 256
#define SD_GEMM_COLUMNS 512

/* y[m, j] = Σ_k x[m, k] · matrix[j, k]; all pointers borrowed. The library must be loaded. */
typedef struct sd_gemm {
    int n_rows, n_out, n_in;
    const float* x; /* [n_rows, n_in], rows ldx apart */
    ptrdiff_t ldx;
    const float* matrix; /* [n_out, n_in] row-major */
    float* y;            /* [n_rows, n_out], rows ldy apart; out */
    ptrdiff_t ldy;
} sd_gemm;

/* Rows and outputs that one call computes. */
typedef struct sd_gemm_slice {
    int row, n_rows, column, n_columns;
} sd_gemm_slice;

int sd_gemm_slices(const sd_gemm* gemm);
sd_gemm_slice sd_gemm_slice_at(const sd_gemm* gemm, int i);
void sd_gemm_compute(const sd_gemm* gemm, sd_gemm_slice slice);

/* Compute all slices on a team. */
void sd_gemm_run(const sd_team* team, const sd_gemm* gemm);
