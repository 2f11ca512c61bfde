/* Number formats of packed weights, and where a panel keeps what.
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
 * and the formats of coded.h, which are those of GGUF files.
 *
 * The value of a code of int8 and int4 is q · scale, q in [−127, 127] or [−8, 7]. A panel begins at a
 * multiple of 32 bytes. */
#ifndef SD_FORMAT_H
#define SD_FORMAT_H

#include <stddef.h>

/* What is changed when numbers come to lie elsewhere in a panel: files of packed weights are then refused. */
#define SD_PANEL_LAYOUT 1u

/* Outputs of a panel. */
#define SD_PANEL 32
/* Inputs that share a scale; rows of activations are laid out in chunks of as many. */
#define SD_BLOCK 32

/* f(name, format) for each format of GGUF files (coded.h), in their order. */
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
    SD_N_OWN_FORMATS, /* those that a model can be made in from other numbers */
    SD_LAST_OWN_FORMAT = SD_N_OWN_FORMATS - 1,
    SD_CODED_FORMATS(SD_FORMAT_ENTRY) SD_N_FORMATS
} sd_format;

/* The formats of coded.h. */
#define SD_N_CODED_FORMATS (SD_N_FORMATS - SD_N_OWN_FORMATS)

/* "f32", "bf16", "int8", "int4", "q4_1", "q5_0" … */
extern const char* const sd_format_names[SD_N_FORMATS];

#define SD_INT8_BLOCK_BYTES (SD_BLOCK * SD_PANEL + 2 * SD_PANEL)
#define SD_INT4_BLOCK_BYTES (SD_BLOCK * SD_PANEL / 2 + 2 * SD_PANEL)

static inline size_t sd_blocks(size_t n) { return (n + SD_BLOCK - 1) / SD_BLOCK; }

/* What a format of coded.h is made of; all 0 in other formats. */
typedef struct sd_coded {
    int low_bits, high_bits; /* of a code: those in the first plane, 4 or 2; in the second, 2, 1 or 0 */
    int n_shared;    /* numbers in f16 of each output that the header of eight blocks has, at most 2 */
    int n_scales;    /* numbers of each output behind the planes of a block */
    int scale_bytes; /* of each of these: 2, f16, or 1 */
    int n_halves;    /* sub-blocks of a block: 1 or 2 */
    int offset;      /* of unpacked codes: 0, 32 or 128 */
    int has_minimum; /* else it is 0 */
    int signed_scales;
} sd_coded;

/* Constant where the format is. */
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

/* What a row of activations is made when it is prepared for products: floats, rounded floats, or codes with a
 * scale for each block, without or with sums of the halves of blocks (row_block.h). */
typedef enum sd_row_kind {
    SD_ROWS_F32,
    SD_ROWS_BF16,
    SD_ROWS_CODES,
    SD_ROWS_HALVES,
    SD_N_ROW_KINDS
} sd_row_kind;

/* The kind of rows that panels of a format are multiplied with. */
static inline sd_row_kind sd_rows_of(sd_format format) {
    switch (format) {
    case SD_FORMAT_F32: return SD_ROWS_F32;
    case SD_FORMAT_BF16: return SD_ROWS_BF16;
    default: return sd_coded_of(format).n_halves == 2 ? SD_ROWS_HALVES : SD_ROWS_CODES;
    }
}

/* Whether panels of a format may be multiplied with rows of this kind: codes may have sums that go unused. */
static inline int sd_rows_suit(sd_row_kind rows, sd_format format) {
    sd_row_kind own = sd_rows_of(format);
    return rows == own || (rows == SD_ROWS_HALVES && own == SD_ROWS_CODES);
}

/* Bytes that one row of activations takes when prepared for a product: at most. */
static inline size_t sd_prepared_bytes(size_t n_in) { return sd_blocks(n_in) * SD_BLOCK * 4; }

#endif
