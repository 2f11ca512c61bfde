#include "blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "format.h"
#include "half.h"

const char* const sd_number_names[SD_N_NUMBERS] = {"f32",  "f16",    "bf16",   "q8_0", "q4_0", "q4_1",
                                                   "q5_0", "q5_1",   "q2_k",   "q3_k", "q4_k", "q5_k",
                                                   "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};

static const struct {
    int n;
    size_t bytes;
    sd_format format;
} blocks[SD_N_NUMBERS] = {
    [SD_F32] = {1, 4, SD_FORMAT_F32},           [SD_F16] = {1, 2, SD_FORMAT_F32},
    [SD_BF16] = {1, 2, SD_FORMAT_BF16},         [SD_Q8_0] = {32, 34, SD_FORMAT_INT8},
    [SD_Q4_0] = {32, 18, SD_FORMAT_INT4},       [SD_Q4_1] = {32, 20, SD_FORMAT_Q4_1},
    [SD_Q5_0] = {32, 22, SD_FORMAT_Q5_0},       [SD_Q5_1] = {32, 24, SD_FORMAT_Q5_1},
    [SD_Q2_K] = {256, 84, SD_FORMAT_Q2_K},      [SD_Q3_K] = {256, 110, SD_FORMAT_Q3_K},
    [SD_Q4_K] = {256, 144, SD_FORMAT_Q4_K},     [SD_Q5_K] = {256, 176, SD_FORMAT_Q5_K},
    [SD_Q6_K] = {256, 210, SD_FORMAT_Q6_K},     [SD_IQ4_NL] = {32, 18, SD_FORMAT_IQ4_NL},
    [SD_IQ4_XS] = {256, 136, SD_FORMAT_IQ4_XS}, [SD_MXFP4] = {32, 17, SD_FORMAT_MXFP4},
};

int sd_number_block(sd_number number) { return blocks[number].n; }
size_t sd_number_bytes(sd_number number) { return blocks[number].bytes; }
sd_format sd_block_format(sd_number number) { return blocks[number].format; }

/* Most words of a block. */
#define MOST_WORDS 53

void sd_blocks_read(sd_number number, const uint8_t* row, int first, int n, float* out) {
    const int size = blocks[number].n;
    const size_t bytes = blocks[number].bytes;
    uint32_t words[MOST_WORDS];
    float values[SD_BLOCK];
    for (int k = first, n_here, at_words = -1; k < first + n; k += n_here, out += n_here) {
        int at = k % SD_BLOCK, block = k / size;
        if (block != at_words) {
            words[(bytes - 1) / 4] = 0;
            memcpy(words, row + (size_t)block * bytes, bytes);
            at_words = block;
        }
        sd_kernels_get()->read_block[number](words, k % size / SD_BLOCK, values);
        n_here = SD_BLOCK - at < first + n - k ? SD_BLOCK - at : first + n - k;
        memcpy(out, values + at, (size_t)n_here * sizeof *out);
    }
}

int sd_block_is_finite(sd_number number, const uint8_t* row, int b) {
    float values[SD_BLOCK];
    sd_blocks_read(number, row, b * SD_BLOCK, SD_BLOCK, values);
    for (int k = 0; k < SD_BLOCK; k++)
        if (!isfinite(values[k])) return 0;
    return 1;
}

/* Transpose blocks of 32 rows into words stored row by row, with zeros for the bytes after the last word. */
static void turn(const uint8_t* const rows[SD_PANEL], size_t bytes, uint32_t* words) {
    size_t w = 0;
    for (; 4 * w + 16 <= bytes; w += 4) {
        for (int j = 0; j < SD_PANEL; j += 4) {
            const void* four[4];
            for (int l = 0; l < 4; l++) four[l] = rows[j + l] + 4 * w;
            sd_transpose_words(four, words + SD_PANEL * w + j);
        }
    }
    for (; 4 * w < bytes; w++) {
        size_t left = bytes - 4 * w;
        for (int j = 0; j < SD_PANEL; j++) {
            uint32_t word = 0;
            if (left >= 4)
                memcpy(&word, rows[j] + 4 * w, 4);
            else
                for (size_t i = 0; i < left; i++) word |= (uint32_t)rows[j][4 * w + i] << 8 * i;
            words[SD_PANEL * w + (size_t)j] = word;
        }
    }
}

int sd_blocks_put(sd_number number, const uint8_t* rows, ptrdiff_t stride, int n_rows, int block,
                  char* panel) {
    enum { AHEAD = 512 }; /* hardware prefetchers follow fewer streams than there are rows */
    static const uint8_t zeros[4 * MOST_WORDS];
    const size_t bytes = blocks[number].bytes;
    const uint8_t* at[SD_PANEL];
    uint32_t words[MOST_WORDS * SD_PANEL];
    for (int j = 0; j < SD_PANEL; j++) at[j] = zeros;
    for (int j = 0; j < n_rows; j++) {
        at[j] = rows + j * stride + (size_t)block * bytes;
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at[j] + AHEAD + i);
    }
    turn(at, bytes, words);
    size_t first = (size_t)block * (size_t)blocks[number].n;
    uint8_t* part = (uint8_t*)panel + sd_panel_bytes(blocks[number].format, first);
    if (!sd_kernels_get()->put_blocks[number](words, part)) return -1;
    for (int j = 0; j < n_rows; j++)
        for (int b = 0; b < blocks[number].n / SD_BLOCK; b++)
            if (!sd_block_is_finite(number, at[j], b)) return j;
    return -1;
}

/* Kernels inspect the scales of 32 rows while they pack them, so pack a block and discard it: that takes an
 * eighth of the time of reading its numbers. */
int sd_blocks_find_bad(sd_number number, const uint8_t* rows, ptrdiff_t stride, int n_rows, int block) {
    _Alignas(64) char part[1 << 14];
    assert(sd_panel_bytes(blocks[number].format, (size_t)blocks[number].n) <= sizeof part);
    return sd_blocks_put(number, rows + (size_t)block * blocks[number].bytes, stride, n_rows, 0, part);
}
