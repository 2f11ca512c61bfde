/* Products of quantized rows with panels of int8 and int4. Included after products_template.h. */

#include "lines_template.h"

/* sum = fma(float(Σ x_q · w_q) · x_scale, w_scale, sum), blocks ascending; the inner sums are
 * exact integers, so their order is free. x and block: those of the first row in the first block; blocks
 * are `n_all` rows apart. */
INLINE void int_block(const int n_rows, const int is_int4, const int8_t* x, const sd_row_block* block,
                      ptrdiff_t n_all, const uint8_t* panel, int n_k, ahead* fetch, int add, float* y,
                      ptrdiff_t ldy) {
    const int bytes = is_int4 ? SD_BLOCK * SD_PANEL / 2 : SD_BLOCK * SD_PANEL;
    const int at_once = is_int4 ? UNITS_AT_ONCE4(n_rows) : UNITS_AT_ONCE8(n_rows);
    unit sum[MAX_ROWS_DOT][N_UNITS];
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) sum[m][u] =
        add ? u_load(y + m * ldy + UNIT_LANES * u) : u_zero();
    for (; n_k > 0; n_k -= SD_BLOCK) {
        UNROLL for (int first = 0; first < N_UNITS; first += at_once) {
            if (n_rows > FEW_ROWS) IN_MEMORY(sum);
            /* Keeps the compiler from holding the next unit's starts in registers that the sums need. */
            __asm__("" : "+r"(block));
            iunit dot[MAX_ROWS_DOT][N_UNITS];
            if (is_int4)
                sum_lines4(n_rows, first, at_once, LINES_NIBBLES, 4, panel, 0, 8, x, &block->start4, fetch,
                           dot);
            else
                sum_lines8(n_rows, first, at_once, 1, panel, x, block, fetch, dot);
            FOR_UNITS {
                unit scale = u_half((const uint16_t*)(const void*)(panel + bytes) + UNIT_LANES * u);
                FOR_ROWS {
                    unit scaled = u_sub(u_of_bits(dot[m][u]), u_set1(block[m].base));
                    sum[m][u] = u_fma(scaled, scale, sum[m][u]);
                }
            }
        }
        request(fetch);
        panel += bytes + 2 * SD_PANEL;
        x += n_all * SD_BLOCK;
        block += n_all;
    }
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) u_store(y + m * ldy + UNIT_LANES * u, sum[m][u]);
}

#define DEFINE_INT_BLOCK(name, rows, is_int4)                                                          \
    static void name##_##rows(const block_args* a, int first) {                                        \
        ptrdiff_t row = (ptrdiff_t)a->k / SD_BLOCK * a->n_all + first;                                 \
        const int8_t* x = (const int8_t*)a->x + row * SD_BLOCK;                                        \
        const sd_row_block* block = sd_row_blocks((void*)(uintptr_t)a->x, a->n_all, a->n_in) + row;    \
        ahead fetch = a->fetch;                                                                        \
        int_block(rows, is_int4, x, block, a->n_all, (const uint8_t*)a->panel, a->n_k, &fetch, a->add, \
                  a->y + first * a->ldy, a->ldy);                                                      \
    }
#define DEFINE_INT_BLOCKS(rows, _) DEFINE_INT_BLOCK(int8, rows, 0) DEFINE_INT_BLOCK(int4, rows, 1)
ROWS_UP_TO(MAX_ROWS_DOT, DEFINE_INT_BLOCKS, )

static const block_fn int8_blocks[] = FUNCTIONS(MAX_ROWS_DOT, int8);
static const block_fn int4_blocks[] = FUNCTIONS(MAX_ROWS_DOT, int4);
static const block_set int8_set = {int8_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 512, SD_FORMAT_INT8, 1};
static const block_set int4_set = {int4_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 1536, SD_FORMAT_INT4, 1};

static void NAME(panel_int8)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
    multiply(&int8_set, n_rows, x, panel, n_in, SD_INT8_BLOCK_BYTES, near, 0, y, ldy);
}
static void NAME(panel_int4)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
    multiply(&int4_set, n_rows, x, panel, n_in, SD_INT4_BLOCK_BYTES, near, 0, y, ldy);
}
