/* Sums of squares of the inputs of a model's matrices: how much errors in each input's weights matter on some
 * text. */
#pragma once

#include "weights.h"

typedef struct sd_input_sum {
    const sd_matrix* matrix; /* of the model, borrowed */
    int of_expert;           /* rows are added by sd_input_sums_add_chosen */
    int64_t n_rows;          /* rows multiplied so far */
    double* squares;         /* [matrix->n_in] sums over these rows, owned by the arena of all sums */
} sd_input_sum;

typedef struct sd_input_sums {
    const sd_model* model; /* borrowed; NULL: no sums */
    sd_arena arena;        /* owns the arrays below */
    int n;
    sd_input_sum* sums; /* [n] by ascending address of the matrix */
} sd_input_sums;

/* Create sums of 0 for all matrices of a model except its encoder's. They own their memory; one thread at a
 * time adds to them. */
sd_status sd_input_sums_create(sd_input_sums* sums, const sd_model* model);
void sd_input_sums_free(sd_input_sums* sums);

/* Sums of a matrix, borrowed; NULL: none. */
sd_input_sum* sd_input_sums_find(const sd_input_sums* sums, const sd_matrix* matrix);

/* Add inputs [first, first + n) of n_rows rows; x [n_rows, n], rows ldx apart, borrowed. The inputs of a row
 * start with 0. Does nothing if sums is NULL, and for an expert that only some rows pass. */
void sd_input_sums_add(sd_input_sums* sums, const sd_matrix* matrix, int n_rows, int first, int n,
                       const float* x, ptrdiff_t ldx);

/* The same for the first matrix of an expert that these rows pass. */
void sd_input_sums_add_chosen(sd_input_sums* sums, const sd_matrix* matrix, int n_rows, int n, const float* x,
                              ptrdiff_t ldx);
