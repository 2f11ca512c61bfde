/* What the sums of a block of a quantised row start from, beside its codes: for panels of every format that
 * has codes.
 *
 * The block's scale is a power of two, 2^e, so that neither a conversion nor a product is needed to apply it:
 * a sum of integers that starts from the bits of 1.5 · 2^(23 + e) is, read as a float, 2^e · (1.5 · 2²³ +
 * sum), exactly. Codes of weights are stored above their values by an offset of the format; what a sum starts
 * from is less by OFFSET · Σ codes of the row, so that the sum counts values alone. */
#ifndef SD_ROW_BLOCK_H
#define SD_ROW_BLOCK_H

#include <stdint.h>

#include "format.h"

typedef struct sd_row_block {
    int32_t start8; /* those bits, less OFFSET8 · Σ codes: 128 or 0, as the table of kernels has it */
    int32_t start4; /* the same for the offset 8 */
    float base;     /* 1.5 · 2^(23 + e): what is to be taken off; its bits are the start for the offset 0 */
    float sum;      /* 2^e · Σ codes */
} sd_row_block;

/* The same of the halves of a block, 16 inputs each: in rows of the kind SD_ROWS_HALVES. */
typedef struct sd_row_halves {
    int32_t start[2]; /* the bits of 1.5 · 2^(23 + e), less 32 · Σ codes */
    float sum[2];     /* 2^e · Σ codes */
} sd_row_halves;

/* The blocks [⌈n_in / 32⌉, n_rows] of prepared rows: they lie behind the codes of all rows. */
static inline sd_row_block* sd_row_blocks(void* prepared, int n_rows, int n_in) {
    return (sd_row_block*)(void*)((char*)prepared + sd_blocks((size_t)n_in) * (size_t)n_rows * SD_BLOCK);
}

/* Their halves, as many, behind them. */
static inline sd_row_halves* sd_row_halves_of(void* prepared, int n_rows, int n_in) {
    return (sd_row_halves*)(void*)(sd_row_blocks(prepared, n_rows, n_in) +
                                   sd_blocks((size_t)n_in) * (size_t)n_rows);
}

#endif
