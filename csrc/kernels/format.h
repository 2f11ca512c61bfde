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

typedef enum sd_format {
    SD_FORMAT_F32,
    SD_FORMAT_BF16,
    SD_FORMAT_INT8,
    SD_FORMAT_INT4,
    SD_N_OWN_FORMATS, /* those that a model can be made in from other numbers */
    SD_FORMAT_Q4_1 = SD_N_OWN_FORMATS,
    SD_FORMAT_Q5_0,
    SD_FORMAT_Q5_1,
    SD_FORMAT_Q2_K,
    SD_FORMAT_Q3_K,
    SD_FORMAT_Q4_K,
    SD_FORMAT_Q5_K,
    SD_FORMAT_Q6_K,
    SD_FORMAT_IQ4_NL,
    SD_FORMAT_IQ4_XS,
    SD_FORMAT_MXFP4,
    SD_N_FORMATS
} sd_format;

/* The formats of coded.h. */
#define SD_N_CODED_FORMATS (SD_N_FORMATS - SD_N_OWN_FORMATS)

/* "f32", "bf16", "int8", "int4", "q4_1", "q5_0" … */
extern const char* const sd_format_names[SD_N_FORMATS];

#define SD_INT8_BLOCK_BYTES (SD_BLOCK * SD_PANEL + 2 * SD_PANEL)
#define SD_INT4_BLOCK_BYTES (SD_BLOCK * SD_PANEL / 2 + 2 * SD_PANEL)

static inline size_t sd_blocks(size_t n) { return (n + SD_BLOCK - 1) / SD_BLOCK; }

/* Bytes of a block of 32 inputs of a format of coded.h, and of the header of 8 blocks; 0 in other formats. */
static inline size_t sd_coded_block_bytes(sd_format format) {
    const size_t nibbles = SD_BLOCK * SD_PANEL / 2, pairs = nibbles / 2, bits = nibbles / 4, byte = SD_PANEL;
    switch (format) {
    case SD_FORMAT_Q4_1: return nibbles + 4 * byte;
    case SD_FORMAT_Q5_0: return nibbles + bits + 2 * byte;
    case SD_FORMAT_Q5_1: return nibbles + bits + 4 * byte;
    case SD_FORMAT_Q2_K: return pairs + 2 * byte;
    case SD_FORMAT_Q3_K: return pairs + bits + 2 * byte;
    case SD_FORMAT_Q4_K: return nibbles + 2 * byte;
    case SD_FORMAT_Q5_K: return nibbles + bits + 2 * byte;
    case SD_FORMAT_Q6_K: return nibbles + pairs + 2 * byte;
    case SD_FORMAT_IQ4_NL: return nibbles + 2 * byte;
    case SD_FORMAT_IQ4_XS: return nibbles + byte;
    case SD_FORMAT_MXFP4: return nibbles + byte;
    default: return 0;
    }
}
static inline size_t sd_coded_header_bytes(sd_format format) {
    switch (format) {
    case SD_FORMAT_Q2_K:
    case SD_FORMAT_Q4_K:
    case SD_FORMAT_Q5_K: return 4 * SD_PANEL;
    case SD_FORMAT_Q3_K:
    case SD_FORMAT_Q6_K:
    case SD_FORMAT_IQ4_XS: return 2 * SD_PANEL;
    default: return 0;
    }
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
    case SD_FORMAT_Q2_K:
    case SD_FORMAT_Q3_K:
    case SD_FORMAT_Q6_K: return SD_ROWS_HALVES;
    default: return SD_ROWS_CODES;
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
