/* One pass of rows through the layers, and what its parts share: prepared inputs and products. */
#pragma once

#include "workspace.h"

/* From this many rows on the team shares loops over rows; with fewer the caller is done before the others
 * arrive. */
#define SD_SHARED_ROWS 12
#define SD_ROW_GRAIN 4

/* The caller's thread runs a pass from layer to layer; the team computes the pieces of its loops. */
typedef struct sd_pass {
    sd_workspace* w;           /* borrowed */
    const sd_branch* branches; /* [n_branches] borrowed */
    int n_branches, n_rows, n_logits;
    int n_stored; /* rows that end in the last layer with keys; 0: none, or they have ended */
    int ended;
    /* For an encoder: the rows are all rows of one source, there are no branches, and the current layer's
     * keys and values go here. NULL: the rows are nodes of texts. */
    const sd_key_values* keys;
    int first, end;               /* layers [first, end); a later start continues with rows of the caches */
    const unsigned char* skipped; /* [n_layer] what is skipped; NULL: nothing; borrowed */
    sd_engine engine;             /* engine that multiplies the rows */
    int keep;                     /* the rows are kept with their caches before this layer; -1: never */
    sd_team team;
    /* If not SD_OK the caller wants to stop: loops of sd_pass_run do nothing more, and the results of the
     * pass are undefined. */
    sd_status status;
} sd_pass;

/* Rows that a pass has of one of its branches. */
static inline int sd_pass_rows_of(const sd_pass* pass, const sd_branch* branch) {
    return pass->ended ? branch->n_new - branch->n_stored : branch->n_new;
}

/* A norm of rows; weight NULL: none. Borrowed. */
typedef struct sd_norm_weights {
    const float *weight, *bias;
} sd_norm_weights;

/* Start the residual stream with the embeddings of w->tokens, or with w->inputs, at w->positions. Ids past
 * the model's vocabulary are read as its last token. */
void sd_pass_embed(const sd_pass* pass);

/* Prepare the n_rows rows x [n_rows, n], normalized, as inputs of products with the matrix: `out`, borrowed;
 * for OpenBLAS they stay as they are, [n_rows, n]. */
void sd_pass_prepare(const sd_pass* pass, const sd_matrix* matrix, int n_rows, const float* x, int n,
                     sd_norm_weights norm, void* out);

/* Compute what adapters need for a product with a matrix from inputs already stored (adapted_rows.h).
 * sd_pass_prepare does this too. */
void sd_pass_reduce(const sd_pass* pass, const sd_matrix* matrix);

/* A product of prepared rows with a matrix; all pointers borrowed. y = softcap(factor · (x · matrixᵀ +
 * bias)), which is added to `hidden` if that is set. */
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

/* The same for unprepared rows x [n_rows, n_in], ldx apart: they are prepared first, in `prepared`, which
 * holds n_rows rows. All borrowed; not with OpenBLAS. */
void sd_pass_multiply_rows(sd_pass* pass, const float* x, ptrdiff_t ldx, void* prepared, sd_product product);

/* Finish a half of a layer: hidden += factor · norm(x · matrixᵀ + bias), or hidden = norm(hidden + factor ·
 * (x · matrixᵀ + bias)) if the norm is on the stream; factor = residual_scale · scale; x is prepared. */
void sd_pass_add_product(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* x,
                         sd_norm_weights norm, float scale);

/* The same for w->update: hidden += residual_scale · norm(update), or hidden = norm(hidden + residual_scale ·
 * update), for all rows of the pass. */
void sd_pass_add_update(const sd_pass* pass, sd_norm_weights norm);

/* Run items [0, n) of a long loop on the team, like sd_team_run, in portions of some tens of milliseconds.
 * Between portions the caller may stop the pass (pass->status), and other callers may use the pool.
 * n_multiplications: of all items together. A pass without a workspace is never stopped. */
void sd_pass_run(sd_pass* pass, double n_multiplications, int n, int grain, sd_work work, void* argument);

/* Run `loop` over the rows of a pass: on the team if there are many. */
void sd_pass_loop_rows(const sd_pass* pass, int n_rows, sd_work loop, void* argument);

/* Are all of x [n] finite? */
static inline int sd_all_finite(const float* x, int n) { return sd_kernels_get()->all_finite(n, x); }

/* y += bias for all rows of n columns; bias NULL: nothing happens. */
void sd_add_bias(int n_rows, int n, float* y, ptrdiff_t ldy, const float* bias);
