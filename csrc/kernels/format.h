/* Number formats of packed weights, and the layout of a panel in each.
 *
 * A panel holds SD_PANEL outputs of a matrix, interleaved along the inputs k, so that one stream of
 * memory feeds all lanes. Inputs past n_in are padded with weights of value 0.
 *
 *   f32    [n_in][32] f32
 *   bf16   [⌈n_in / 2⌉][32][2] bf16: pairs along k
 *   int8   per block of 32 k: [8][32][4] codes q + 128, then [32] scales in f16: 1088 bytes
 *   int4   per block of 32 k: [4][32][4] bytes, then [32] scales in f16: 576 bytes; byte (s, j, i)
 *          holds code q + 8 of k = 8s + i in its low and of k = 8s + 4 + i in its high half
 *
 * and the coded formats below, which are those of GGUF files.
 *
 * The value of a code of int8 and int4 is q · scale, q in [−127, 127] or [−8, 7]. A panel begins at a
 * multiple of 32 bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "half.h"

/* Number types of files: single numbers, and the blocks of GGUF files (model/weights/blocks.h). */
typedef enum sd_number {
    SD_F32,
    SD_F16,
    SD_BF16,
    SD_Q8_0,
    SD_Q4_0,
    SD_Q4_1,
    SD_Q5_0,
    SD_Q5_1,
    SD_Q2_K,
    SD_Q3_K,
    SD_Q4_K,
    SD_Q5_K,
    SD_Q6_K,
    SD_IQ4_NL,
    SD_IQ4_XS,
    SD_MXFP4,
    SD_N_NUMBERS
} sd_number;

/* f(number, format, n_blocks) for each type of block: the panel format that stores its values exactly,
 * and its length in units of SD_BLOCK numbers. */
#define SD_BLOCK_NUMBERS(f)                                                                           \
    f(SD_Q8_0, SD_FORMAT_INT8, 1) f(SD_Q4_0, SD_FORMAT_INT4, 1) f(SD_Q4_1, SD_FORMAT_Q4_1, 1)         \
        f(SD_Q5_0, SD_FORMAT_Q5_0, 1) f(SD_Q5_1, SD_FORMAT_Q5_1, 1) f(SD_Q2_K, SD_FORMAT_Q2_K, 8)     \
            f(SD_Q3_K, SD_FORMAT_Q3_K, 8) f(SD_Q4_K, SD_FORMAT_Q4_K, 8) f(SD_Q5_K, SD_FORMAT_Q5_K, 8) \
                f(SD_Q6_K, SD_FORMAT_Q6_K, 8) f(SD_IQ4_NL, SD_FORMAT_IQ4_NL, 1)                       \
                    f(SD_IQ4_XS, SD_FORMAT_IQ4_XS, 8) f(SD_MXFP4, SD_FORMAT_MXFP4, 1)

/* Version of the panels' layout; raise it when the layout changes, so that older packed files are refused. */
#define SD_PANEL_LAYOUT 1u

/* Outputs of a panel. */
#define SD_PANEL 32
/* Inputs that share a scale, and inputs in a chunk of prepared rows. */
#define SD_BLOCK 32

/* f(name, format) for each format of GGUF files (below), in their order. */
#define SD_CODED_FORMATS(f)                                                                             \
    f(q4_1, SD_FORMAT_Q4_1) f(q5_0, SD_FORMAT_Q5_0) f(q5_1, SD_FORMAT_Q5_1) f(q2_k, SD_FORMAT_Q2_K)     \
        f(q3_k, SD_FORMAT_Q3_K) f(q4_k, SD_FORMAT_Q4_K) f(q5_k, SD_FORMAT_Q5_K) f(q6_k, SD_FORMAT_Q6_K) \
            f(iq4_nl, SD_FORMAT_IQ4_NL) f(iq4_xs, SD_FORMAT_IQ4_XS) f(mxfp4, SD_FORMAT_MXFP4)

#define SD_FORMAT_ENTRY(name, format) format,
typedef enum sd_format {
    SD_FORMAT_F32,
    SD_FORMAT_BF16,
    SD_FORMAT_INT8,
    SD_FORMAT_INT4,
    SD_N_OWN_FORMATS, /* formats to which other numbers can be converted */
    SD_LAST_OWN_FORMAT = SD_N_OWN_FORMATS - 1,
    SD_CODED_FORMATS(SD_FORMAT_ENTRY) SD_N_FORMATS
} sd_format;

/* Number of coded formats. */
#define SD_N_CODED_FORMATS (SD_N_FORMATS - SD_N_OWN_FORMATS)

/* "f32", "bf16", "int8", "int4", "q4_1", "q5_0" … */
extern const char* const sd_format_names[SD_N_FORMATS];

#define SD_INT8_BLOCK_BYTES (SD_BLOCK * SD_PANEL + 2 * SD_PANEL)
#define SD_INT4_BLOCK_BYTES (SD_BLOCK * SD_PANEL / 2 + 2 * SD_PANEL)

static inline size_t sd_blocks(size_t n) { return (n + SD_BLOCK - 1) / SD_BLOCK; }

/* Components of a coded format; all 0 for other formats. */
typedef struct sd_coded {
    int low_bits, high_bits; /* bits of a code in the first plane, 4 or 2; in the second, 2, 1 or 0 */
    int n_shared;            /* f16 numbers per output in the header of eight blocks, at most 2 */
    int n_scales;            /* numbers per output after the planes of a block */
    int scale_bytes;         /* bytes of each: 2 (f16) or 1 */
    int n_halves;            /* sub-blocks of a block: 1 or 2 */
    int offset;              /* of unpacked codes: 0, 32 or 128 */
    int has_minimum;         /* otherwise the minimum is 0 */
    int signed_scales;
} sd_coded;

/* Return a format's components, a constant where the format is one. */
static inline sd_coded sd_coded_of(sd_format format) {
    static const sd_coded formats[SD_N_FORMATS] = {
        /* in the order of the struct */
        [SD_FORMAT_Q4_1] = {4, 0, 0, 2, 2, 1, 0, 1, 0},
        [SD_FORMAT_Q5_0] = {4, 1, 0, 1, 2, 1, 128, 0, 1},
        [SD_FORMAT_Q5_1] = {4, 1, 0, 2, 2, 1, 0, 1, 0},
        [SD_FORMAT_Q2_K] = {2, 0, 2, 2, 1, 2, 0, 1, 0},
        [SD_FORMAT_Q3_K] = {2, 1, 1, 2, 1, 2, 32, 0, 1},
        [SD_FORMAT_Q4_K] = {4, 0, 2, 2, 1, 1, 0, 1, 0},
        [SD_FORMAT_Q5_K] = {4, 1, 2, 2, 1, 1, 0, 1, 0},
        [SD_FORMAT_Q6_K] = {4, 2, 1, 2, 1, 2, 32, 0, 1},
        [SD_FORMAT_IQ4_NL] = {4, 0, 0, 1, 2, 1, 128, 0, 1},
        [SD_FORMAT_IQ4_XS] = {4, 0, 1, 1, 1, 1, 128, 0, 1},
        [SD_FORMAT_MXFP4] = {4, 0, 0, 1, 1, 1, 128, 0, 1},
    };
    return formats[format];
}

/* Bytes of the planes of a block of 32 inputs, of the whole block, and of the header of 8 blocks. */
static inline size_t sd_coded_code_bytes(sd_format format) {
    const sd_coded coded = sd_coded_of(format);
    return (size_t)(coded.low_bits + coded.high_bits) * SD_BLOCK * SD_PANEL / 8;
}
static inline size_t sd_coded_block_bytes(sd_format format) {
    const sd_coded coded = sd_coded_of(format);
    return sd_coded_code_bytes(format) + (size_t)(coded.n_scales * coded.scale_bytes) * SD_PANEL;
}
static inline size_t sd_coded_header_bytes(sd_format format) {
    return (size_t)sd_coded_of(format).n_shared * 2 * SD_PANEL;
}

/* Bytes of a panel with n_in inputs. */
static inline size_t sd_panel_bytes(sd_format format, size_t n_in) {
    switch (format) {
    case SD_FORMAT_F32: return n_in * SD_PANEL * 4;
    case SD_FORMAT_BF16: return (n_in + 1) / 2 * SD_PANEL * 4;
    case SD_FORMAT_INT8: return sd_blocks(n_in) * SD_INT8_BLOCK_BYTES;
    case SD_FORMAT_INT4: return sd_blocks(n_in) * SD_INT4_BLOCK_BYTES;
    default: break;
    }
    return sd_blocks(n_in) * sd_coded_block_bytes(format) +
           (n_in + 255) / 256 * sd_coded_header_bytes(format);
}

/* Types of prepared rows of activations: floats, rounded floats, codes with a scale per block, and the same
 * with sums of each half of a block (sd_row_block). */
typedef enum sd_row_type {
    SD_ROWS_F32,
    SD_ROWS_BF16,
    SD_ROWS_CODES,
    SD_ROWS_HALVES,
    SD_N_ROW_TYPES
} sd_row_type;

/* The row type that panels of a format are multiplied with. */
static inline sd_row_type sd_rows_of(sd_format format) {
    switch (format) {
    case SD_FORMAT_F32: return SD_ROWS_F32;
    case SD_FORMAT_BF16: return SD_ROWS_BF16;
    default: return sd_coded_of(format).n_halves == 2 ? SD_ROWS_HALVES : SD_ROWS_CODES;
    }
}

/* Whether panels of a format can be multiplied with rows of this type; codes may have sums that are
 * unused. */
static inline int sd_rows_suit(sd_row_type rows, sd_format format) {
    sd_row_type own = sd_rows_of(format);
    return rows == own || (rows == SD_ROWS_HALVES && own == SD_ROWS_CODES);
}

/* Upper bound of the bytes of one prepared row of activations. */
static inline size_t sd_prepared_bytes(size_t n_in) { return sd_blocks(n_in) * SD_BLOCK * 4; }

/* Panels in the number formats of GGUF files: codes with scales and, in some formats, minima.
 *
 * A block of 32 inputs has one or two sub-blocks, of 32 or 16 inputs, each with its own scale and minimum:
 * the value of a code is (code − offset) · scale + minimum. Scale, minimum and product are exact in f32;
 * sd_coded_of returns the components of each format. In some formats, eight blocks share a header:
 *
 *   header   [32] d in f16; in formats with minima [32] dmin in f16
 *   block    planes of codes, then the bytes of scales and minima of the 32 outputs
 *
 * Line l of the codes of a block is [32][4]: inputs 4l … 4l + 3 of 32 outputs. A plane holds some bits of
 * each code:
 *
 *   nibbles  [4][32][4]: lines 2s in the low halves, lines 2s + 1 in the high halves of the bytes
 *   pairs    [2][32][4]: line 4t + u in bits 2u and 2u + 1 of byte t
 *   bits     [32][4]: line l in bit l
 *
 *   format  header  planes, lowest bits first        scales and minima
 *   q4_1            nibbles                          scale, minimum in f16
 *   q5_0            nibbles, bits                    scale in f16
 *   q5_1            nibbles, bits                    scale, minimum in f16
 *   q2_k    yes     pairs                            [2] bytes: scale / d low, −minimum / dmin high
 *   q3_k    yes     pairs, bits                      [2] signed bytes: scale / d
 *   q4_k    yes     nibbles                          byte: scale / d; byte: −minimum / dmin
 *   q5_k    yes     nibbles, bits                    byte: scale / d; byte: −minimum / dmin
 *   q6_k    yes     nibbles, pairs                   [2] signed bytes: scale / d
 *   iq4_nl          nibbles, places in a table       scale in f16
 *   iq4_xs  yes     nibbles, places in a table       signed byte: scale / d
 *   mxfp4           nibbles, places in a table       byte: the scale is 2^(byte − 128) */
#define SD_NIBBLES (SD_BLOCK * SD_PANEL / 2)
#define SD_BITS (SD_BLOCK * SD_PANEL / 8)

/* Blocks that are unpacked together: those that share a header. */
#define SD_PART_BLOCKS 8

/* Unpacked blocks of a panel, as products read them: codes of one byte each, in the order of int8. */
typedef struct sd_unpacked {
    uint8_t codes[SD_PART_BLOCKS][SD_BLOCK / 4][SD_PANEL][4]; /* (value − minimum) / scale + offset */
    float scale[SD_PART_BLOCKS][2][SD_PANEL], minimum[SD_PART_BLOCKS][2][SD_PANEL]; /* of the sub-blocks */
} sd_unpacked;

/* The values [16] of the codes in formats with a table. */
static inline const int8_t* sd_values_iq4(void) {
    static const int8_t values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return values;
}
static inline const int8_t* sd_values_mxfp4(void) {
    static const int8_t values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return values;
}

/* 2^(exponent − 128). */
static inline float sd_scale_of_mxfp4(uint8_t exponent) {
    return sd_float_from_bits(exponent < 2 ? 0x200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

/* Start values of the sums of a block of a quantized row, stored after the row's codes, for every format with
 * codes.
 *
 * The block's scale is a power of two, 2^e, so applying it needs neither a conversion nor a product: a
 * sum of integers that starts from the bits of 1.5 · 2^(23 + e) is, read as a float, exactly 2^e · (1.5 ·
 * 2²³ + sum). Codes of weights are stored with an offset that depends on the format. Each start is lower
 * by OFFSET · Σ codes of the row, which removes the offset from the sum. */
typedef struct sd_row_block {
    int32_t start8; /* those bits − OFFSET8 · Σ codes; OFFSET8 is 128 or 0, by table of kernels */
    int32_t start4; /* the same for offset 8 */
    float base;     /* 1.5 · 2^(23 + e), to be subtracted; its bits are the start for offset 0 */
    float sum;      /* 2^e · Σ codes */
} sd_row_block;

/* The same for the two halves of a block, 16 inputs each, in rows of type SD_ROWS_HALVES. */
typedef struct sd_row_halves {
    int32_t start[2]; /* the bits of 1.5 · 2^(23 + e) − 32 · Σ codes */
    float sum[2];     /* 2^e · Σ codes */
} sd_row_halves;

/* The blocks [⌈n_in / 32⌉, n_rows] of prepared rows, stored after the codes of all rows. */
static inline sd_row_block* sd_row_blocks(void* prepared, int n_rows, int n_in) {
    return (sd_row_block*)(void*)((char*)prepared + sd_blocks((size_t)n_in) * (size_t)n_rows * SD_BLOCK);
}

/* The halves [⌈n_in / 32⌉, n_rows], stored after the blocks. */
static inline sd_row_halves* sd_row_halves_of(void* prepared, int n_rows, int n_in) {
    return (sd_row_halves*)(void*)(sd_row_blocks(prepared, n_rows, n_in) +
                                   sd_blocks((size_t)n_in) * (size_t)n_rows);
}
