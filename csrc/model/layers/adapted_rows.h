/* Rows of a forward pass that belong to texts of adapted models, and what adapters add to their products.
 *
 * The rows of one adapter are computed together, in blocks, even if other rows lie between them. The bits of
 * a row depend neither on its block nor on other rows. */
#pragma once

#include "adapter.h"

/* Most rows multiplied together. */
#define SD_ADAPTED_BLOCK 12

/* Rows of one adapter. */
typedef struct sd_adapted_group {
    const sd_adapter* adapter; /* borrowed */
    int first, n;              /* its rows are `rows` [first, first + n), ascending */
} sd_adapted_group;

/* Rows of a pass by adapter. The workspace owns it and its arrays. */
typedef struct sd_adapted_rows {
    int n_groups;
    sd_adapted_group* groups; /* [max_rows] */
    int32_t* rows;            /* [max_rows] row numbers in the pass */
    /* Blocks of rows as inputs of `down`, prepared as f32: n_inputs floats for each of max_rows */
    float* inputs;
    /* down · x, n_low floats for each of max_rows, block by block [panels][rows of the block][SD_PANEL], the
     * layout of rows prepared as f32. For two matrices at once: [1] for one that is mlp_input, [0] for
     * others. */
    float* low[2];
    ptrdiff_t n_inputs, n_low;
} sd_adapted_rows;

/* Take memory for max_rows rows of adapters with at most so many numbers each, from an arena. */
sd_adapted_rows sd_adapted_rows_take(sd_arena* arena, int max_rows, int n_inputs, int n_low);

/* Group n rows by their adapters of_row [n], borrowed; NULL: a row has none. */
void sd_adapted_rows_group(sd_adapted_rows* rows, const sd_adapter* const* of_row, int n);

/* Store inputs [input, input + n) of rows [row, row + n_rows) of the pass for the products of `matrix`: x
 * [n_rows, n], rows ldx apart, borrowed. `input` is a multiple of SD_BLOCK. If rows is NULL, here and below,
 * nothing happens. Threads may store different rows or inputs. */
void sd_adapted_rows_read(const sd_adapted_rows* rows, const sd_matrix* matrix, int row, int n_rows,
                          int input, int n, const float* x, ptrdiff_t ldx);

/* Multiply the stored inputs by the `down` of each adapter, on a team. */
void sd_adapted_rows_reduce(const sd_adapted_rows* rows, const sd_matrix* matrix, const sd_team* team);

/* Add up · (down · x) to panels [panel, panel + n_panels) of the products of `matrix` with rows [row, row +
 * n_rows) of the pass; y [n_rows, n_panels · SD_PANEL], rows ldy apart, borrowed. */
void sd_adapted_rows_add(const sd_adapted_rows* rows, const sd_matrix* matrix, int panel, int n_panels,
                         int row, int n_rows, float* y, ptrdiff_t ldy);
