/* One pass of rows through the layers, and what its parts share: rows as inputs of products, products. */
#pragma once

#include "workspace.h"

/* With as many rows as this the team shares loops over rows; with fewer the caller is done before the others
 * have come. */
#define SD_SHARED_ROWS 12
#define SD_ROW_GRAIN 4

/* The caller's thread runs a pass from layer to layer; the team computes the pieces of its loops. */
typedef struct sd_pass {
    sd_workspace* w;           /* borrowed */
    const sd_branch* branches; /* [n_branches] borrowed */
    int n_branches, n_rows, n_logits;
    /* An encoder's pass: its rows are all rows of one source, there are no branches, and the keys and values
     * of the layer that runs go here. NULL: the rows are nodes of texts. */
    const sd_key_values* keys;
    int first, end;               /* layers [first, end); from a later one on with rows of the caches */
    const unsigned char* skipped; /* [n_layer] what is passed by; NULL: nothing; borrowed */
    sd_engine engine;             /* what multiplies the rows */
    int keep;                     /* before this layer the rows are kept with their caches; -1: nowhere */
    sd_team team;
    /* Once it is not SD_OK the caller wants to stop: loops of sd_pass_run do nothing more, and the results of
     * the pass are undefined. */
    sd_status status;
} sd_pass;

/* A norm of rows; weight NULL: none. Borrowed. */
typedef struct sd_norm_weights {
    const float *weight, *bias;
} sd_norm_weights;

/* Begin the residual stream with the embeddings of w->tokens, or with w->inputs, at w->positions. Ids past
 * the model's vocabulary are read as its last token. */
void sd_pass_embed(const sd_pass* pass);

/* Make the n_rows rows x [n_rows, n], normalized, the input of products: `out`, borrowed, prepared as the
 * matrix wants them; for OpenBLAS as they are, [n_rows, n]. */
void sd_pass_prepare(const sd_pass* pass, const sd_matrix* matrix, int n_rows, const float* x, int n,
                     sd_norm_weights norm, void* out);

/* What the adapters of rows need for a product with a matrix: of inputs that were read (adapted_rows.h).
 * sd_pass_prepare does this too. */
void sd_pass_reduce(const sd_pass* pass, const sd_matrix* matrix);

/* A product of prepared rows with a matrix; all pointers borrowed. y = softcap(factor · (x · matrixᵀ +
 * bias)), and with `hidden` this is added to it. */
typedef struct sd_product {
    const sd_matrix* matrix;
    const float* bias; /* [n_out]; NULL: none */
    int n_rows;
    const void* x; /* prepared */
    float* y;      /* [n_rows, n_out in whole panels], rows ldy apart */
    ptrdiff_t ldy;
    float* hidden; /* [n_rows, n_out]; NULL: nothing is added */
    float factor;
    float softcap; /* 0: none */
} sd_product;

void sd_pass_multiply(sd_pass* pass, sd_product product);

/* The same of rows x [n_rows, n_in], ldx apart, as they are: they are prepared first, to `prepared`, which
 * has room for n_rows rows. All borrowed; not by OpenBLAS. */
void sd_pass_multiply_rows(sd_pass* pass, const float* x, ptrdiff_t ldx, void* prepared, sd_product product);

/* The end of a half of a layer: hidden += residual_scale · norm(x · matrixᵀ + bias), or hidden = norm(hidden
 * + residual_scale · (x · matrixᵀ + bias)) where the norm is that of the stream; x is prepared. */
void sd_pass_add_product(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* x,
                         sd_norm_weights norm);

/* The same of w->update: hidden += residual_scale · norm(update), or hidden = norm(hidden + residual_scale ·
 * update), for all rows of the pass. */
void sd_pass_add_update(const sd_pass* pass, sd_norm_weights norm);

/* Run items [0, n) of a long loop on the team, as sd_team_run does, in portions of some tens of milliseconds.
 * Between two of them the caller may stop the pass (pass->status), and other callers may take the pool.
 * n_multiplications: of all items together. A pass without a workspace is never stopped. */
void sd_pass_run(sd_pass* pass, double n_multiplications, int n, int grain, sd_work work, void* argument);

/* Run `loop` over the rows of a pass: on the team where they are many. */
void sd_pass_loop_rows(const sd_pass* pass, int n_rows, sd_work loop, void* argument);

/* Are x [n] finite? */
int sd_all_finite(const float* x, int n);

/* y += bias for all rows of n columns; without bias nothing happens. */
void sd_add_bias(int n_rows, int n, float* y, ptrdiff_t ldy, const float* bias);
