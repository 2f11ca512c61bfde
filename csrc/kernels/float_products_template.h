/* Products of rows of floats with panels of f32 and bf16. Included after products_template.h. */

/* --------------------------------------------------------------------------------------- f32 */

/* n_rows rows times n_halves halves of a panel, from half `half` on. All three are constant where this is
 * inlined, so that the sums stay in registers. So are `values` (the panel has values of a bf16 cache) and
 * `flush` (sums flush subnormals). With `add`, the chains continue from y. x: chunks `chunk` floats apart. */
INLINE void float_block(const int n_rows, const int n_halves, const int half, const int values,
                        const int flush, const float* x, ptrdiff_t chunk, const char* panel, int n_k,
                        ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = n_k < SD_BLOCK ? n_k : SD_BLOCK;
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            if (!values || n_halves == 2 || k % 2 == 0) request(fetch);
            if (!values && n_halves == 2) request(fetch);
            vec w[2];
            FOR_HALVES w[h] = !values         ? v_load((const float*)(const void*)panel + SD_LANES * h)
                              : half + h == 0 ? v_even_bf16((const uint16_t*)(const void*)panel)
                                              : v_odd_bf16((const uint16_t*)(const void*)panel);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + k]);
                FOR_HALVES sum[m][h] = flush ? v_fma_flush(b, w[h], sum[m][h]) : v_fma(b, w[h], sum[m][h]);
            }
            panel += SD_PANEL * (values ? sizeof(uint16_t) : sizeof(float));
        }
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

INLINE void f32_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                      const float* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 0, 0, 0, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}

INLINE void values_block(const int n_rows, const int n_halves, const int half, const float* x,
                         ptrdiff_t chunk, const char* panel, int n_k, ahead* fetch, int add, float* y,
                         ptrdiff_t ldy) {
    float_block(n_rows, n_halves, half, 1, 0, x, chunk, panel, n_k, fetch, add, y, ldy);
}

/* Values of an int8 cache: blocks of 32 slots, [32][32] codes and then the slots' scales in f16. `half`: the
 * first half, if n_halves is 1. A weight is multiplied with its slot's scale, rounded, then with codes. */
INLINE void codes_block(const int n_rows, const int n_halves, const int half, const float* x, ptrdiff_t chunk,
                        const char* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk, panel += SD_INT8_BLOCK_BYTES) {
        int n_here = n_k < SD_BLOCK ? n_k : SD_BLOCK;
        const uint16_t* scales = (const uint16_t*)(const void*)(panel + SD_BLOCK * SD_PANEL);
        float scale[SD_BLOCK], scaled[MAX_ROWS * SD_BLOCK];
        for (int i = 0; i < SD_BLOCK; i += UNIT_LANES) u_store(scale + i, u_half(scales + i));
        for (int i = 0; i < SD_BLOCK; i += SD_LANES) {
            vec of_slots = v_load(scale + i);
            FOR_ROWS v_store(scaled + m * SD_BLOCK + i, v_mul(v_load(x + m * SD_BLOCK + i), of_slots));
        }
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            if (k % (4 / n_halves) == 0) request(fetch);
            const int8_t* codes = (const int8_t*)panel + k * SD_PANEL + half * SD_LANES;
            vec w[2];
            FOR_HALVES w[h] = v_wide_int8(codes + SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(scaled[m * SD_BLOCK + k]);
                FOR_HALVES sum[m][h] = v_fma(b, w[h], sum[m][h]);
            }
        }
        request(fetch);
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

/* As BOTH_HALVES, but both halves of the values begin at the same place. */
#define BOTH_HALVES_OF_VALUES(block, rows)                                                            \
    ptrdiff_t chunk = (ptrdiff_t)a->n_all * SD_BLOCK;                                                 \
    const float* x = (const float*)(const void*)a->x + (ptrdiff_t)a->k * a->n_all + first * SD_BLOCK; \
    float* y = a->y + first * a->ldy;                                                                 \
    ahead fetch = a->fetch;                                                                           \
    if (rows <= MAX_ROWS_WIDE) {                                                                      \
        block(rows <= MAX_ROWS_WIDE ? rows : 1, 2, 0, x, chunk, a->panel, a->n_k, &fetch, a->add, y,  \
              a->ldy);                                                                                \
    } else {                                                                                          \
        block(rows, 1, 0, x, chunk, a->panel, a->n_k, &fetch, a->add, y, a->ldy);                     \
        block(rows, 1, 1, x, chunk, a->panel, a->n_k, &fetch, a->add, y + SD_LANES, a->ldy);          \
    }

/* -------------------------------------------------------------------------------------- bf16 */

/* sum = fma(x[2i], w[2i], fma(x[2i + 1], w[2i + 1], sum)), i ascending, subnormals flushed, as the
 * instruction VDPBF16PS computes it (pairs_avx512.c). Prepared rows are rounded floats, pairs swapped.
 * With `keep`, the widened panel is stored at wide [n_k rounded up to even][32], in the order of the rows. */
INLINE void bf16_block(const int n_rows, const int n_halves, const int keep, const float* x, ptrdiff_t chunk,
                       const uint16_t* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy,
                       float* wide) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = n_k < SD_BLOCK ? n_k : SD_BLOCK;
        _Pragma("GCC unroll 2") for (int k = 0; k < n_here; k += 2) {
            FOR_HALVES request(fetch);
            vec w[2];
            FOR_HALVES {
                w[h] = v_odd_bf16(panel + 2 * SD_LANES * h);
                if (keep) v_store(wide + SD_LANES * h, w[h]);
            }
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + k]);
                FOR_HALVES sum[m][h] = v_fma_flush_in_place(b, w[h], sum[m][h]);
            }
            LOAD_AGAIN(panel);
            FOR_HALVES {
                w[h] = v_even_bf16(panel + 2 * SD_LANES * h);
                if (keep) v_store(wide + SD_PANEL + SD_LANES * h, w[h]);
            }
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + k + 1]);
                FOR_HALVES sum[m][h] = v_fma_flush_in_place(b, w[h], sum[m][h]);
            }
            if (keep) wide += 2 * SD_PANEL;
            panel += 2 * SD_PANEL;
        }
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

/* The same for a part of a panel that is already widened. */
#if !FLUSHES_ALL
INLINE void widened_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                          const float* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 0, 0, 1, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}
#endif

INLINE void direct_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                         const uint16_t* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    bf16_block(n_rows, n_halves, 0, x, chunk, panel, n_k, fetch, add, y, ldy, NULL);
}

/* Like BOTH_HALVES, but keeps the widened panel. */
INLINE void keeping_blocks(const int rows, const block_args* a, int first) {
    ptrdiff_t chunk = (ptrdiff_t)a->n_all * SD_BLOCK;
    const float* x =
        (const float*)(const void*)a->x + ((ptrdiff_t)a->k / SD_BLOCK * a->n_all + first) * SD_BLOCK;
    const uint16_t* panel = (const uint16_t*)(const void*)a->panel;
    float* y = a->y + first * a->ldy;
    ahead fetch = a->fetch;
    if (rows <= MAX_ROWS_WIDE) {
        bf16_block(rows <= MAX_ROWS_WIDE ? rows : 1, 2, 1, x, chunk, panel, a->n_k, &fetch, a->add, y, a->ldy,
                   a->wide);
    } else {
        bf16_block(rows, 1, 1, x, chunk, panel, a->n_k, &fetch, a->add, y, a->ldy, a->wide);
        bf16_block(rows, 1, 1, x, chunk, panel + 2 * SD_LANES, a->n_k, &fetch, a->add, y + SD_LANES, a->ldy,
                   a->wide + SD_LANES);
    }
}

#define DEFINE_FLOAT_BLOCKS(rows, _)                                                                        \
    static void f32_##rows(const block_args* a, int first) {                                                \
        BOTH_HALVES(f32_block, rows, SD_BLOCK, float, SD_LANES)                                             \
    }                                                                                                       \
    static void values_##rows(const block_args* a, int first) { BOTH_HALVES_OF_VALUES(values_block, rows) } \
    static void codes_##rows(const block_args* a, int first) { BOTH_HALVES_OF_VALUES(codes_block, rows) }   \
    static void bf16_##rows(const block_args* a, int first) {                                               \
        BOTH_HALVES(direct_block, rows, SD_BLOCK, uint16_t, 2 * SD_LANES)                                   \
    }                                                                                                       \
    static void keeping_##rows(const block_args* a, int first) { keeping_blocks(rows, a, first); }
#if FLUSHES_ALL
#define DEFINE_WIDENED_BLOCK(rows, _)
#define WIDENED f32
#else
#define DEFINE_WIDENED_BLOCK(rows, _)                               \
    static void widened_##rows(const block_args* a, int first) {    \
        BOTH_HALVES(widened_block, rows, SD_BLOCK, float, SD_LANES) \
    }
#define WIDENED widened
#endif

ROWS_UP_TO(MAX_ROWS, DEFINE_FLOAT_BLOCKS, )
ROWS_UP_TO(MAX_ROWS, DEFINE_WIDENED_BLOCK, )

/* Inputs of a part of a bf16 panel that is widened: 16 KiB of floats. */
#define WIDENED_CHUNK 128

static const block_fn f32_blocks[] = FUNCTIONS(MAX_ROWS, f32);
static const block_fn values_blocks[] = FUNCTIONS(MAX_ROWS, values);
static const block_fn codes_blocks_of[] = FUNCTIONS(MAX_ROWS, codes);
static const block_fn bf16_blocks[] = FUNCTIONS(MAX_ROWS, bf16);
static const block_fn keeping_blocks_of[] = FUNCTIONS(MAX_ROWS, keeping);
static const block_fn widened_blocks[] = FUNCTIONS(MAX_ROWS, WIDENED);
static const block_set f32_set = {f32_blocks, MAX_ROWS, MAX_ROWS_WIDE, 192, SD_FORMAT_F32, 1};
static const block_set values_set = {values_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_F32, 2};
/* for few rows too: processors do not prefetch the scales, which are read before the codes */
static const block_set codes_set = {codes_blocks_of, MAX_ROWS, MAX_ROWS_WIDE, 512, SD_FORMAT_F32, SD_NEVER};
static const block_set bf16_set = {bf16_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_BF16, 1};
static const block_set keeping_set = {keeping_blocks_of, MAX_ROWS,       MAX_ROWS_WIDE,
                                      WIDENED_CHUNK,     SD_FORMAT_BF16, 1};
static const block_set widened_set = {widened_blocks, MAX_ROWS,       MAX_ROWS_WIDE,
                                      WIDENED_CHUNK,  SD_FORMAT_BF16, 1};

/* More rows than one block times a bf16 panel: the first block widens each part for all others. */
static void NAME(multiply_widened)(int n_rows, const void* x, const void* panel, int n_in, float* y,
                                   ptrdiff_t ldy) {
    _Alignas(SD_ALIGNMENT) float wide[WIDENED_CHUNK * SD_PANEL];
    const ptrdiff_t distance = WIDENED_CHUNK * SD_PANEL * (ptrdiff_t)sizeof(uint16_t);
    const char* part = panel;
    block_args a = {.x = x, .n_all = n_rows, .n_in = n_in, .y = y, .ldy = ldy, .wide = wide};
    int n_blocks = blocks_of(&keeping_set, n_rows);
    for (; a.k < n_in; a.k += WIDENED_CHUNK, a.add = 1, part += distance) {
        a.n_k = n_in - a.k < WIDENED_CHUNK ? n_in - a.k : WIDENED_CHUNK;
        a.n_k += a.n_k % 2; /* whole pairs, swapped */
        a.panel = part;
        multiply_part(&keeping_set, &a, 0, 1, n_blocks, part + distance, distance);
        a.panel = (const char*)wide;
        multiply_part(&widened_set, &a, 1, n_blocks, n_blocks, part + distance, distance);
    }
}

static void NAME(panel_f32)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                            ptrdiff_t ldy) {
    multiply(&f32_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 4, near, 0, y, ldy);
}
void NAME(sdk_panel_bf16)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                          ptrdiff_t ldy) {
    if (blocks_of(&bf16_set, n_rows) == 1)
        FLUSHED(multiply(&bf16_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy));
    else
        FLUSHED(NAME(multiply_widened)(n_rows, x, panel, n_in, y, ldy));
}

static void NAME(add_values_f32)(int n_rows, const float* x, const void* panel, int n_in, float* y,
                                 ptrdiff_t ldy) {
    multiply(&f32_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 4, 0, 1, y, ldy);
}
static void NAME(add_values_bf16)(int n_rows, const float* x, const void* panel, int n_in, float* y,
                                  ptrdiff_t ldy) {
    multiply(&values_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, 0, 1, y, ldy);
}
static void NAME(add_values_int8)(int n_rows, const float* x, const void* panel, int n_in, float* y,
                                  ptrdiff_t ldy) {
    multiply(&codes_set, n_rows, x, panel, n_in, SD_INT8_BLOCK_BYTES, 0, 1, y, ldy);
}
