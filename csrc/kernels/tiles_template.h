/* Products of bf16 in the order of tiles, for sets without the instruction TDPBF16PS (docs/NUMERICS.md).
 *
 * Included by kernels_template.h after products_template.h, over the same operations. A sum of two numbers is
 * v_fma_flush(1, a, b), which rounds once.
 *
 * Per output and chunk of 32 inputs, missing ones being 0: two chains from +0, one over the even inputs, one
 * over the odd ones, each k ascending; their sum is added to the output. Subnormals are flushed throughout.
 * Prepared rows are chunks as in products_template.h, of numbers rounded to bf16, as floats, in the order of
 * the inputs. */

/* Rows of a block: two chains for each row, in both halves of a panel where registers are many. */
#define TILE_HALVES (MAX_ROWS_WIDE >= 6 ? 2 : 1)
#define TILE_ROWS (TILE_HALVES == 2 ? 6 : 3)

/* y (+)= a chunk of n_rows rows times a chunk of a panel, of which n_pairs pairs of inputs are there. n_rows
 * is constant where this is inlined; y [n_rows, SD_PANEL], rows ldy apart, with `add` added to. */
INLINE void tile_block(const int n_rows, const float* x, const uint16_t* chunk, int n_pairs, int add,
                       float* y, ptrdiff_t ldy) {
    const int n_halves = TILE_HALVES;
    for (int first = 0; first < 2; first += n_halves) {
        vec even[TILE_ROWS][TILE_HALVES], odd[TILE_ROWS][TILE_HALVES];
        FOR_ROWS FOR_HALVES even[m][h] = odd[m][h] = v_set1(0.0f);
        const uint16_t* panel = chunk + 2 * SD_LANES * first;
        for (int i = 0; i < n_pairs; i++, panel += 2 * SD_PANEL) {
            vec w[TILE_HALVES];
            FOR_HALVES w[h] = v_even_bf16(panel + 2 * SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + 2 * i]);
                FOR_HALVES even[m][h] = v_fma_flush(b, w[h], even[m][h]);
            }
            FOR_HALVES w[h] = v_odd_bf16(panel + 2 * SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + 2 * i + 1]);
                FOR_HALVES odd[m][h] = v_fma_flush(b, w[h], odd[m][h]);
            }
        }
        const vec one = v_set1(1.0f);
        FOR_ROWS FOR_HALVES {
            float* to = y + m * ldy + SD_LANES * (first + h);
            vec sum = v_fma_flush(one, even[m][h], odd[m][h]);
            if (n_pairs < SD_BLOCK / 2) sum = v_add(sum, v_set1(0.0f)); /* missing inputs make -0 +0 */
            v_store(to, v_fma_flush(one, sum, add ? v_load(to) : v_set1(0.0f)));
        }
    }
}

/* The rows of a block: a function for each number, as in products_template.h. */
static void NAME(tile_blocks)(int n_rows, const float* x, const uint16_t* chunk, int n_pairs, int add,
                              float* y, ptrdiff_t ldy) {
    switch (n_rows) {
    case 1: tile_block(1, x, chunk, n_pairs, add, y, ldy); break;
    case 2: tile_block(2, x, chunk, n_pairs, add, y, ldy); break;
    case 3: tile_block(3, x, chunk, n_pairs, add, y, ldy); break;
#define MORE(n) \
    case n: tile_block(TILE_ROWS < n ? 1 : n, x, chunk, n_pairs, add, y, ldy); break
        MORE(4);
        MORE(5);
        MORE(6);
#undef MORE
    }
}

/* Chunk by chunk of the panel, which lies in the first-level cache for all rows. */
INLINE void multiply_tiles(int n_rows, const float* x, const uint16_t* panel, int n_in, float* y,
                           ptrdiff_t ldy) {
    int n_blocks = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int k = 0; k < n_in;
         k += SD_BLOCK, panel += SD_BLOCK * SD_PANEL, x += (ptrdiff_t)n_rows * SD_BLOCK) {
        int n_pairs = ((n_in - k < SD_BLOCK ? n_in - k : SD_BLOCK) + 1) / 2;
        for (int b = 0, first = 0; b < n_blocks; b++) {
            int rows = (n_rows - first + n_blocks - b - 1) / (n_blocks - b); /* even shares */
            NAME(tile_blocks)(rows, x + first * SD_BLOCK, panel, n_pairs, k > 0, y + first * ldy, ldy);
            first += rows;
        }
    }
}

static void NAME(panel_tiles)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                              ptrdiff_t ldy) {
    (void)near;
    FLUSHED(multiply_tiles(n_rows, x, panel, n_in, y, ldy));
}
