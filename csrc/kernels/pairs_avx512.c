/* bf16 kernels with AVX512_BF16 instructions: products of pairs, and rounding. */
#include "parts.h"

#if defined(__AVX512BF16__)
#define ISA avx512
#define DOT_PRODUCTS 1
#define BF16_PAIRS 1
#include "avx512_template.h"

#include "base_template.h"
#include "products_template.h"

#include "rounded_template.h"
#include "tiles_amx.h"

/* sum = fma(x[2i], w[2i], fma(x[2i + 1], w[2i + 1], sum)), i ascending, subnormals flushed, by the
 * instruction VDPBF16PS, for prepared pairs in 32-bit words. */
INLINE void pairs_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                        const uint16_t* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = ((n_k < SD_BLOCK ? n_k : SD_BLOCK) + 1) / 2;
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            FOR_HALVES request(fetch);
            vec w[2];
            FOR_HALVES w[h] = v_load((const float*)(const void*)(panel + 2 * SD_LANES * h));
            FOR_ROWS FOR_HALVES v_pair(sum[m][h], w[h], x + m * (SD_BLOCK / 2) + k);
            panel += 2 * SD_PANEL;
        }
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

#define DEFINE_PAIRS_BLOCK(rows, _)                                          \
    static void pairs_##rows(const block_args* a, int first) {               \
        BOTH_HALVES(pairs_block, rows, SD_BLOCK / 2, uint16_t, 2 * SD_LANES) \
    }
ROWS_UP_TO(MAX_ROWS, DEFINE_PAIRS_BLOCK, )
static const block_fn pairs_blocks[] = FUNCTIONS(MAX_ROWS, pairs);
static const block_set pairs_set = {pairs_blocks, MAX_ROWS, MAX_ROWS_WIDE, 512, SD_FORMAT_BF16, 1};

/* Whether the rows of a bf16 product are prepared as pairs. */
INLINE int by_pairs(int n_rows) { return n_rows < sd_thresholds_used.floats_from[SD_FORMAT_BF16]; }

static void panel_bf16(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                       ptrdiff_t ldy) {
    if (by_pairs(n_rows)) /* the instruction flushes by itself */
        multiply(&pairs_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy);
    else
        sdk_panel_bf16_avx512(n_rows, x, panel, n_in, near, y, ldy);
}

static void prepare_bf16(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    if (by_pairs(part.n_all))
        prepare_rounded(1, 0, part, x, ldx, out);
    else
        prepare_rounded(0, 1, part, x, ldx, out);
}

void sdk_prepare_pairs_avx512(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    prepare_rounded(1, 0, part, x, ldx, out);
}

void sdk_weigh_pairs_avx512(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                            float* lanes, void* out) {
    weigh_rows_tiles(1, n_rows, n_chunks, x, largest, factor, lanes, out);
}

void sdk_pairs_avx512(sd_kernels* table) {
    table->prepare[SD_ROWS_BF16] = prepare_bf16;
    table->panel[SD_FORMAT_BF16] = panel_bf16;
    table->prepare_tiles = NAME(prepare_tiles);
    table->weigh_tiles = NAME(weigh_tiles);
    table->to_bf16 = NAME(to_bf16);
    table->thresholds.fetch_from[SD_FORMAT_BF16] = 6;
}
#endif
