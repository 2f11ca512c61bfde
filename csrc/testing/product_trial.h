/* What products of many rows take, as a pass computes them. */
#ifndef SD_PRODUCT_TRIAL_H
#define SD_PRODUCT_TRIAL_H

#include "matrix.h"

typedef struct sd_product_trial {
    sd_engine engine;
    sd_format format;
    int n_out, n_in, n_matrices, max_rows, n_threads;
    sd_arena arena;      /* owns what is below */
    sd_matrix* matrices; /* [n_matrices] with equal weights; products go through them in turn */
    int next;            /* the matrix of the next product */
    float* x;            /* [max_rows, n_in] */
    void* prepared;      /* max_rows rows of n_in */
    float* y;            /* [max_rows, ldy] */
    ptrdiff_t ldy;
} sd_product_trial;

/* Make the matrices of a trial whose numbers, those before the arena, are set. weights [n_out, n_in] f32,
 * borrowed for the call. After a failure too the trial is to be freed. OpenBLAS has been loaded where it is
 * the engine. */
sd_status sd_product_trial_create(sd_product_trial* trial, const float* weights);

/* Seconds of a product of n_rows rows, which are prepared before. */
double sd_product_trial_run(sd_product_trial* trial, int n_rows);

void sd_product_trial_free(sd_product_trial* trial);

#endif
