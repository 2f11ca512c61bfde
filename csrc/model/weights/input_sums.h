/* Sums of squares of what the matrices of a model are multiplied with, input by input: how much errors of the
 * weights of an input count on some text. */
#pragma once

#include "weights.h"

typedef struct sd_input_sum {
    const sd_matrix* matrix; /* of the model, borrowed */
    int of_expert;           /* rows come by sd_input_sums_add_chosen */
    int64_t n_rows;          /* rows that were multiplied so far */
    double* squares;         /* [matrix->n_in] sums over these, owned by the arena of all sums */
} sd_input_sum;

typedef struct sd_input_sums {
    const sd_model* model; /* borrowed; NULL: there are none */
    sd_arena arena;        /* owns what is below */
    int n;
    sd_input_sum* sums; /* [n] by ascending addresses of their matrices */
} sd_input_sums;

/* Sums of all matrices of a model but those of its encoder, from 0. The sums own their memory; one thread at
 * a time adds to them. */
sd_status sd_input_sums_create(sd_input_sums* sums, const sd_model* model);
void sd_input_sums_free(sd_input_sums* sums);

/* The sums of a matrix, borrowed; NULL: it has none. */
sd_input_sum* sd_input_sums_find(const sd_input_sums* sums, const sd_matrix* matrix);

/* Add inputs [first, first + n) of n_rows rows; x [n_rows, n], rows ldx apart, borrowed. The inputs of a row
 * begin with 0. sums NULL: nothing happens; nor of an expert that only some rows go through. */
void sd_input_sums_add(sd_input_sums* sums, const sd_matrix* matrix, int n_rows, int first, int n,
                       const float* x, ptrdiff_t ldx);

/* The same of the first matrix of an expert that these rows go through. */
void sd_input_sums_add_chosen(sd_input_sums* sums, const sd_matrix* matrix, int n_rows, int n, const float* x,
                              ptrdiff_t ldx);
