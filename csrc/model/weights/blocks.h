/* Rows of GGUF blocks: codes with scales, for 32 or 256 numbers. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "format.h"
#include "pack.h"

/* "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1" … */
extern const char* const sd_number_names[SD_N_NUMBERS];

static inline int sd_has_blocks(sd_number number) { return number > SD_BF16; }

/* Numbers per block, and bytes per block; numbers without blocks count as blocks of 1. */
int sd_number_block(sd_number number);
size_t sd_number_bytes(sd_number number);

/* The panel format for the values of such blocks. */
sd_format sd_block_format(sd_number number);

/* Read numbers [first, first + n) of a row into out [n] f32, borrowed. */
void sd_blocks_read(sd_number number, const uint8_t* row, int first, int n, float* out);

/* Are the values of numbers 32b … 32b + 31 of a row finite? */
int sd_block_is_finite(sd_number number, const uint8_t* row, int b);

/* Pack block `block` of n_rows rows, at most SD_PANEL, `stride` bytes apart, as inputs of a panel in the
 * format of such blocks; lanes without a row get zeros. Returns the first row with a non-finite number, or
 * −1. All borrowed. */
int sd_blocks_put(sd_number number, const uint8_t* rows, ptrdiff_t stride, int n_rows, int block,
                  char* panel);

/* First of these rows with a non-finite number in block `block`, or −1. */
int sd_blocks_find_bad(sd_number number, const uint8_t* rows, ptrdiff_t stride, int n_rows, int block);

/* Transpose: word l of rows[i], 4 bytes each, becomes word i of line l at `to`. Lines are SD_PANEL words
 * apart. All are borrowed, of any alignment. */
static inline void sd_transpose_words(const void* const rows[4], void* to) {
    typedef uint32_t four_words __attribute__((vector_size(16))); /* available on every processor */
    four_words r[4], lines[4];
    for (int i = 0; i < 4; i++) memcpy(&r[i], rows[i], sizeof r[i]);
    four_words low02 = __builtin_shufflevector(r[0], r[2], 0, 4, 1, 5);
    four_words low13 = __builtin_shufflevector(r[1], r[3], 0, 4, 1, 5);
    four_words high02 = __builtin_shufflevector(r[0], r[2], 2, 6, 3, 7);
    four_words high13 = __builtin_shufflevector(r[1], r[3], 2, 6, 3, 7);
    lines[0] = __builtin_shufflevector(low02, low13, 0, 4, 1, 5);
    lines[1] = __builtin_shufflevector(low02, low13, 2, 6, 3, 7);
    lines[2] = __builtin_shufflevector(high02, high13, 0, 4, 1, 5);
    lines[3] = __builtin_shufflevector(high02, high13, 2, 6, 3, 7);
    for (int l = 0; l < 4; l++) memcpy((char*)to + 4 * SD_PANEL * l, &lines[l], sizeof lines[l]);
}
