/* What a block of a quantised row adds to, beside its codes.
 *
 * The block's scale is a power of two, 2^e, so that neither a conversion nor a product is needed to apply it:
 * a sum of integers that starts from the bits of 1.5 · 2^(23 + e) is, read as a float,
 * 2^e · (1.5 · 2²³ + sum), exactly. */
#ifndef SD_ROW_BLOCK_H
#define SD_ROW_BLOCK_H

#include <stdint.h>

#include "format.h"

typedef struct sd_row_block {
    int32_t start; /* those bits − OFFSET · Σ codes of the row, so that the sum counts q alone */
    float base;    /* 1.5 · 2^(23 + e): what is to be taken off */
} sd_row_block;

/* The blocks [⌈n_in / 32⌉, n_rows] of prepared rows: they lie behind the codes of all rows. */
static inline sd_row_block* sd_row_blocks(void* prepared, int n_rows, int n_in) {
    return (sd_row_block*)(void*)((char*)prepared + sd_blocks((size_t)n_in) * (size_t)n_rows * SD_BLOCK);
}

#endif
