/* Products of quantized rows with panels in the coded formats (docs/NUMERICS.md).
 *
 * Included after dot_products_template.h. A few blocks of a panel are unpacked at a time, for all rows. The
 * formats of coded_direct_template.h unpack in registers instead. */

/* Arguments of a block of rows times a part of a panel. */
typedef struct coded_args {
    const int8_t* x; /* of the first row in the part's first block; blocks are n_all rows apart */
    const sd_row_block* block;
    const sd_row_halves* halves;
    ptrdiff_t n_all;
    const sd_unpacked* part;
    int n_blocks, add;
    float* y;
    ptrdiff_t ldy;
} coded_args;
typedef void (*coded_fn)(const coded_args* a);

/* The start values of the sums of codes, as start_of takes them. */
INLINE const void* coded_starts(const sd_coded coded, const sd_row_block* block, const sd_row_halves* halves,
                                const int half) {
    if (coded.offset == 128) return &block->start8;
    return coded.offset == 32 ? (const void*)&halves->start[half] : (const void*)&block->base;
}

/* Sub-blocks ascending: sum = fma(float(Σ x_q · code) · x_scale, scale, sum), and with minima
 * sum = fma(float(Σ x_q) · x_scale, minimum, sum). n_rows and `coded` are constant where this is inlined. */
INLINE void coded_block(const int n_rows, const sd_coded coded, const coded_args* a) {
    const int at_once = coded.offset == 128 ? UNITS_AT_ONCE8(n_rows) : UNITS_AT_ONCE4(n_rows);
    const int n_lines = 8 / coded.n_halves, most_bits = coded.offset == 32 ? 6 : 5;
    const int8_t* x = a->x;
    const sd_row_block* block = a->block;
    const sd_row_halves* halves = a->halves;
    unit sum[MAX_ROWS_DOT][N_UNITS];
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) sum[m][u] =
        a->add ? u_load(a->y + m * a->ldy + UNIT_LANES * u) : u_zero();
    for (int b = 0; b < a->n_blocks; b++, x += a->n_all * SD_BLOCK, block += a->n_all, halves += a->n_all) {
        UNROLL for (int first = 0; first < N_UNITS; first += at_once)
            UNROLL for (int h = 0; h < coded.n_halves; h++) {
            if (n_rows > FEW_ROWS) IN_MEMORY(sum);
            __asm__("" : "+r"(block)); /* as in int_block */
            iunit dot[MAX_ROWS_DOT][N_UNITS];
            const uint8_t* codes = a->part->codes[b][0][0];
            const void* starts = coded_starts(coded, block, halves, h);
            if (coded.offset == 128)
                sum_lines8(n_rows, first, at_once, 0, codes, x, block, NULL, dot);
            else
                sum_lines4(n_rows, first, at_once, LINES_BYTES, most_bits, codes, h * n_lines, n_lines, x,
                           starts, NULL, dot);
            FOR_UNITS {
                unit scale = u_load(a->part->scale[b][h] + UNIT_LANES * u);
                FOR_ROWS {
                    unit scaled = u_sub(u_of_bits(dot[m][u]), u_set1(block[m].base));
                    sum[m][u] = u_fma(scaled, scale, sum[m][u]);
                }
                if (!coded.has_minimum) continue;
                unit minimum = u_load(a->part->minimum[b][h] + UNIT_LANES * u);
                FOR_ROWS sum[m][u] =
                    u_fma(u_set1(coded.n_halves == 1 ? block[m].sum : halves[m].sum[h]), minimum, sum[m][u]);
            }
        }
    }
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) u_store(a->y + m * a->ldy + UNIT_LANES * u, sum[m][u]);
}

/* A function for each number of rows and each formula of codes, named after one format that uses it: with
 * minima or signed scales around 0, on whole blocks or halves. */
#define DEFINE_CODED_BLOCK(rows, format)                       \
    static void coded_##format##_##rows(const coded_args* a) { \
        coded_block(rows, sd_coded_of(SD_FORMAT_##format), a); \
    }
#define DEFINE_CODED_BLOCKS(name, format)                \
    ROWS_UP_TO(MAX_ROWS_DOT, DEFINE_CODED_BLOCK, format) \
    static const coded_fn name[] = FUNCTIONS(MAX_ROWS_DOT, coded_##format);
DEFINE_CODED_BLOCKS(coded_affine, Q4_K)
DEFINE_CODED_BLOCKS(coded_centered_halves, Q6_K)
DEFINE_CODED_BLOCKS(coded_affine_halves, Q2_K)
DEFINE_CODED_BLOCKS(coded_centered, IQ4_NL)

INLINE const coded_fn* coded_blocks_of(const sd_format format) {
    const sd_coded coded = sd_coded_of(format);
    if (coded.offset == 128) return coded_centered;
    if (coded.offset == 32) return coded_centered_halves;
    return coded.n_halves == 2 ? coded_affine_halves : coded_affine;
}

/* All rows times one panel, part by part. */
INLINE void multiply_coded(const sd_format format, int n_rows, const void* x, const char* panel, int n_in,
                           float* y, ptrdiff_t ldy) {
    sd_unpacked part;
    const coded_fn* blocks = coded_blocks_of(format);
    const ptrdiff_t bytes = (ptrdiff_t)sd_panel_bytes(format, SD_PART_BLOCKS * SD_BLOCK);
    const int n_in_blocks = (int)sd_blocks((size_t)n_in);
    int block_rows = sd_thresholds_used.block_rows[format];
    if (block_rows > MAX_ROWS_DOT) block_rows = MAX_ROWS_DOT;
    int n_blocks = (n_rows + block_rows - 1) / block_rows;
    coded_args a = {.n_all = n_rows, .part = &part, .ldy = ldy};
    for (int b = 0; b < n_in_blocks; b += SD_PART_BLOCKS, panel += bytes, a.add = 1) {
        a.n_blocks = n_in_blocks - b < SD_PART_BLOCKS ? n_in_blocks - b : SD_PART_BLOCKS;
        for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(panel + bytes + i, 0, 2);
        UNPACK[format](panel, a.n_blocks, &part);
        for (int i = 0; i < n_blocks; i++) {
            int first = first_row(n_rows, i, n_blocks), rows = first_row(n_rows, i + 1, n_blocks) - first;
            ptrdiff_t at = (ptrdiff_t)b * n_rows + first;
            a.x = (const int8_t*)x + at * SD_BLOCK;
            a.block = sd_row_blocks((void*)(uintptr_t)x, n_rows, n_in) + at;
            a.halves = sd_row_halves_of((void*)(uintptr_t)x, n_rows, n_in) + at;
            a.y = y + first * ldy;
            blocks[rows - 1](&a);
        }
    }
}

#define DEFINE_CODED_PANEL(name, format)                                                             \
    static void NAME(panel_##name)(int n_rows, const void* x, const void* panel, int n_in, int near, \
                                   float* y, ptrdiff_t ldy) {                                        \
        (void)near;                                                                                  \
        multiply_coded(format, n_rows, x, panel, n_in, y, ldy);                                      \
    }
DEFINE_CODED_PANEL(q4_1, SD_FORMAT_Q4_1)
DEFINE_CODED_PANEL(q5_0, SD_FORMAT_Q5_0)
DEFINE_CODED_PANEL(q5_1, SD_FORMAT_Q5_1)
DEFINE_CODED_PANEL(q2_k, SD_FORMAT_Q2_K)
DEFINE_CODED_PANEL(q3_k, SD_FORMAT_Q3_K)
DEFINE_CODED_PANEL(iq4_nl, SD_FORMAT_IQ4_NL)
DEFINE_CODED_PANEL(iq4_xs, SD_FORMAT_IQ4_XS)
DEFINE_CODED_PANEL(mxfp4, SD_FORMAT_MXFP4)

#include "coded_direct_template.h"
