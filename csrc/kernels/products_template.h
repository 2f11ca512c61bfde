/* Products of prepared rows with packed panels: a block function per format and number of rows.
 *
 * Included by kernels_template.h, over the vector of 16 floats and
 *   v_even_bf16(p), v_odd_bf16(p)   of 16 pairs of bf16 at p, the first or second ones, widened
 *   v_wide_bf16(p)                  16 bf16 at p, widened
 *   BF16_PAIRS                      1: v_pair(sum, w, p) multiplies 16 pairs w with the pair at p in one
 *                                   instruction; 0: pairs are emulated
 *   FLUSHED(statement)              run it with subnormals flushed to zero in v_fma_flush
 *   unit, iunit                     UNIT_LANES (16 or 8) floats, as many int32; u_zero, u_set1, u_sub, u_fma,
 *                                   u_load, u_store, u_half (from f16), u_of_bits(iunit), i_set1
 *   dot8(sum, w, p), dot4           sum += Σ of the 4 codes of each lane times the 4 int8 at p
 *   codes8, c8_load(p); codes4, c4_low(p), c4_high(p)   UNIT_LANES groups of 4 codes
 *   OFFSET8, OFFSET4                how much dot8 and dot4 take a code to be above q
 *   MAX_ROWS_DOT                    rows of a block in int8 and int4
 *   MAX_ROWS_DOT_WIDE               up to this many rows all 32 outputs are computed at once
 *
 * How many rows a block has, and which blocks prefetch, is for thresholds.h to say.
 *
 * Prepared rows lie chunk by chunk: the 32 inputs of chunk c of row m begin at element
 * (c · n_rows + m) · 32. So a block of rows is reached from one address with constant offsets, rows
 * never lie a power of two apart, and the scores of attention come out as its next input. */

/* Where memory is asked for: `even` and `odd` bytes ahead of each pair of cache lines. 0 asks for
 * what has just been read, which costs nothing. */
typedef struct ahead {
    ptrdiff_t even, odd;
} ahead;

#define FETCH(address) __builtin_prefetch((const char*)(address), 0, 2)
#define FETCH_PAIR(panel)                             \
    do {                                              \
        FETCH((const char*)(panel) + fetch.even);     \
        FETCH((const char*)(panel) + 64 + fetch.odd); \
    } while (0)

#define FOR_ROWS UNROLL for (int m = 0; m < n_rows; m++)
#define FOR_HALVES UNROLL for (int h = 0; h < n_halves; h++)

/* --------------------------------------------------------------------------------------- f32 */

/* n_rows rows times n_halves halves of a panel, both constant where this is inlined, so that the
 * sums live in registers; so is `widened`: the panel is [n_k][32] of bf16, the values of a bf16 cache.
 * With `add` the chains go on from y. x: chunks `chunk` floats apart. */
INLINE void float_block(const int n_rows, const int n_halves, const int widened, const float* x,
                        ptrdiff_t chunk, const char* panel, int n_k, ahead fetch, int add, float* y,
                        ptrdiff_t ldy) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = n_k < SD_BLOCK ? n_k : SD_BLOCK;
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            FETCH(panel + fetch.even);
            if (!widened) FETCH(panel + 64 + fetch.odd);
            vec w[2];
            FOR_HALVES w[h] = widened ? v_wide_bf16((const uint16_t*)(const void*)panel + SD_LANES * h)
                                      : v_load((const float*)(const void*)panel + SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + k]);
                FOR_HALVES sum[m][h] = v_fma(b, w[h], sum[m][h]);
            }
            panel += SD_PANEL * (widened ? sizeof(uint16_t) : sizeof(float));
        }
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

INLINE void f32_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                      const float* panel, int n_k, ahead fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 0, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}

INLINE void values_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                         const uint16_t* panel, int n_k, ahead fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 1, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}

/* -------------------------------------------------------------------------------------- bf16 */

/* sum = fma(x[2i], w[2i], fma(x[2i + 1], w[2i + 1], sum)), i ascending, subnormals flushed: what the
 * instruction VDPBF16PS computes. A prepared pair is one 32-bit word where there is the instruction,
 * two floats where it is emulated. */
#define PAIR_FLOATS (BF16_PAIRS ? 1 : 2)

INLINE void bf16_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                       const uint16_t* panel, int n_k, ahead fetch, int add, float* y, ptrdiff_t ldy) {
    const int row = PAIR_FLOATS * SD_BLOCK / 2;
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = ((n_k < SD_BLOCK ? n_k : SD_BLOCK) + 1) / 2;
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            FETCH_PAIR(panel);
            const float* pair = x + PAIR_FLOATS * k;
#if BF16_PAIRS
            vec w[2];
            FOR_HALVES w[h] = v_load((const float*)(const void*)(panel + 2 * SD_LANES * h));
            FOR_ROWS FOR_HALVES v_pair(sum[m][h], w[h], pair + m * row);
#else
            vec even[2], odd[2];
            FOR_HALVES {
                even[h] = v_even_bf16(panel + 2 * SD_LANES * h);
                odd[h] = v_odd_bf16(panel + 2 * SD_LANES * h);
            }
            FOR_ROWS {
                vec b = v_set1(pair[m * row + 1]);
                FOR_HALVES sum[m][h] = v_fma_flush(b, odd[h], sum[m][h]);
                b = v_set1(pair[m * row]);
                FOR_HALVES sum[m][h] = v_fma_flush(b, even[h], sum[m][h]);
            }
#endif
            panel += 2 * SD_PANEL;
        }
    }
    FOR_ROWS FOR_HALVES v_store(y + m * ldy + SD_LANES * h, sum[m][h]);
}

/* ----------------------------------------------------------------------------- int8 and int4 */

#define N_UNITS (SD_PANEL / UNIT_LANES)
#define FOR_UNITS UNROLL for (int u = first; u < first + at_once; u++)

/* sum = fma(float(Σ x_q · w_q) · x_scale, w_scale, sum), blocks ascending; the inner sums are
 * integers, exact, so their order is free. x and block: of the first row in the first block; `n_all`
 * rows lie between blocks. */
INLINE void int_block(const int n_rows, const int is_int4, const int8_t* x, const sd_row_block* block,
                      ptrdiff_t n_all, const uint8_t* panel, int n_k, ahead fetch, int add, float* y,
                      ptrdiff_t ldy) {
    enum { STEP = UNIT_LANES * 4 };
    const int bytes = is_int4 ? SD_BLOCK * SD_PANEL / 2 : SD_BLOCK * SD_PANEL;
    /* All units at once read memory in order; one after the other skips every other line, which the
     * processor does not prefetch, but takes fewer registers. */
    const int at_once = n_rows <= MAX_ROWS_DOT_WIDE ? N_UNITS : 1;
    unit sum[MAX_ROWS_DOT][N_UNITS];
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) sum[m][u] =
        add ? u_load(y + m * ldy + UNIT_LANES * u) : u_zero();
    for (; n_k > 0; n_k -= SD_BLOCK) {
        UNROLL for (int first = 0; first < N_UNITS; first += at_once) {
            /* Or the compiler keeps the starts of the next unit in registers that the sums need. */
            __asm__("" : "+r"(block));
            iunit dot[MAX_ROWS_DOT][N_UNITS];
            FOR_ROWS FOR_UNITS dot[m][u] = i_set1(block[m].start);
            if (is_int4) {
                UNROLL for (int s = 0; s < 4; s++) FOR_UNITS {
                    const uint8_t* codes = panel + 128 * s + STEP * u;
                    if (STEP * u % 64 == 0) FETCH(codes + (u == 0 ? fetch.even : fetch.odd));
                    codes4 low = c4_low(codes), high = c4_high(codes);
                    FOR_ROWS dot4(dot[m][u], low, x + m * SD_BLOCK + 8 * s);
                    FOR_ROWS dot4(dot[m][u], high, x + m * SD_BLOCK + 8 * s + 4);
                }
            } else {
                UNROLL for (int s = 0; s < 8; s++) FOR_UNITS {
                    const uint8_t* codes = panel + 128 * s + STEP * u;
                    if (STEP * u % 64 == 0) FETCH(codes + (u == 0 ? fetch.even : fetch.odd));
                    codes8 w = c8_load(codes);
                    FOR_ROWS dot8(dot[m][u], w, x + m * SD_BLOCK + 4 * s);
                }
            }
            FOR_UNITS {
                unit scale = u_half((const uint16_t*)(const void*)(panel + bytes) + UNIT_LANES * u);
                FOR_ROWS {
                    unit scaled = u_sub(u_of_bits(dot[m][u]), u_set1(block[m].base));
                    sum[m][u] = u_fma(scaled, scale, sum[m][u]);
                }
            }
        }
        FETCH(panel + bytes + fetch.even);
        panel += bytes + 2 * SD_PANEL;
        x += n_all * SD_BLOCK;
        block += n_all;
    }
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) u_store(y + m * ldy + UNIT_LANES * u, sum[m][u]);
}

/* ----------------------------------------------------------------- a function for each n_rows */

/* x: the prepared rows of all blocks, `first` the block's first row of n_all; n_k inputs from input
 * k on, a multiple of 32; n_in: inputs of the whole product. */
typedef struct block_args {
    const char* x;
    int n_all, n_in, k, n_k, add;
    ahead fetch;
    const char* panel; /* from input k on */
    float* y;          /* of row 0 */
    ptrdiff_t ldy;
} block_args;
typedef void (*block_fn)(const block_args* a, int first);

/* Both halves of the panel at once as far as registers go, else one after the other. */
#define BOTH_HALVES(block, rows, row_floats, type, half_elements)                                          \
    const float* x =                                                                                       \
        (const float*)(const void*)a->x + ((ptrdiff_t)a->k / SD_BLOCK * a->n_all + first) * (row_floats);  \
    const type* panel = (const type*)(const void*)a->panel;                                                \
    float* y = a->y + first * a->ldy;                                                                      \
    ptrdiff_t chunk = (ptrdiff_t)a->n_all * (row_floats);                                                  \
    if (rows <= MAX_ROWS_WIDE) {                                                                           \
        block(rows <= MAX_ROWS_WIDE ? rows : 1, 2, x, chunk, panel, a->n_k, a->fetch, a->add, y, a->ldy);  \
    } else {                                                                                               \
        const ahead only_even = {a->fetch.even, 0}, only_odd = {0, a->fetch.odd};                          \
        block(rows, 1, x, chunk, panel, a->n_k, only_even, a->add, y, a->ldy);                             \
        block(rows, 1, x, chunk, panel + (half_elements), a->n_k, only_odd, a->add, y + SD_LANES, a->ldy); \
    }

#define DEFINE_FLOAT_BLOCKS(rows)                                                         \
    static void f32_##rows(const block_args* a, int first) {                              \
        BOTH_HALVES(f32_block, rows, SD_BLOCK, float, SD_LANES)                           \
    }                                                                                     \
    static void values_##rows(const block_args* a, int first) {                           \
        BOTH_HALVES(values_block, rows, SD_BLOCK, uint16_t, SD_LANES)                     \
    }                                                                                     \
    static void bf16_##rows(const block_args* a, int first) {                             \
        BOTH_HALVES(bf16_block, rows, PAIR_FLOATS * SD_BLOCK / 2, uint16_t, 2 * SD_LANES) \
    }
#define DEFINE_INT_BLOCK(name, rows, is_int4)                                                            \
    static void name##_##rows(const block_args* a, int first) {                                          \
        ptrdiff_t row = (ptrdiff_t)a->k / SD_BLOCK * a->n_all + first;                                   \
        const int8_t* x = (const int8_t*)a->x + row * SD_BLOCK;                                          \
        const sd_row_block* block = sd_row_blocks((void*)(uintptr_t)a->x, a->n_all, a->n_in) + row;      \
        int_block(rows, is_int4, x, block, a->n_all, (const uint8_t*)a->panel, a->n_k, a->fetch, a->add, \
                  a->y + first * a->ldy, a->ldy);                                                        \
    }
#define DEFINE_INT_BLOCKS(rows) DEFINE_INT_BLOCK(int8, rows, 0) DEFINE_INT_BLOCK(int4, rows, 1)

#define ROWS_6(f) f(1) f(2) f(3) f(4) f(5) f(6)
#define ROWS_9(f) ROWS_6(f) f(7) f(8) f(9)
#define ROWS_12(f) ROWS_9(f) f(10) f(11) f(12)
#define ROWS_UP_TO_(n, f) ROWS_##n(f)
#define ROWS_UP_TO(n, f) ROWS_UP_TO_(n, f)
ROWS_UP_TO(MAX_ROWS, DEFINE_FLOAT_BLOCKS)
ROWS_UP_TO(MAX_ROWS_DOT, DEFINE_INT_BLOCKS)

#define F32_ENTRY(rows) f32_##rows,
#define VALUES_ENTRY(rows) values_##rows,
#define BF16_ENTRY(rows) bf16_##rows,
#define INT8_ENTRY(rows) int8_##rows,
#define INT4_ENTRY(rows) int4_##rows,

/* How the blocks of one kind of panel are called. */
typedef struct block_set {
    const block_fn* of_rows; /* [max_rows], for 1, 2, … rows */
    int max_rows, max_rows_wide;
    int chunk;        /* inputs whose part of a panel is 16 KiB or little more: half of a first-level cache */
    sd_format format; /* whose thresholds say from how many rows on to prefetch (benchmarks/SPEED.md) */
} block_set;

static const block_fn f32_blocks[] = {ROWS_UP_TO(MAX_ROWS, F32_ENTRY)};
static const block_fn values_blocks[] = {ROWS_UP_TO(MAX_ROWS, VALUES_ENTRY)};
static const block_fn bf16_blocks[] = {ROWS_UP_TO(MAX_ROWS, BF16_ENTRY)};
static const block_fn int8_blocks[] = {ROWS_UP_TO(MAX_ROWS_DOT, INT8_ENTRY)};
static const block_fn int4_blocks[] = {ROWS_UP_TO(MAX_ROWS_DOT, INT4_ENTRY)};
static const block_set f32_set = {f32_blocks, MAX_ROWS, MAX_ROWS_WIDE, 128, SD_FORMAT_F32};
static const block_set values_set = {values_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_F32};
static const block_set bf16_set = {bf16_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_BF16};
static const block_set int8_set = {int8_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 512, SD_FORMAT_INT8};
static const block_set int4_set = {int4_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 1024, SD_FORMAT_INT4};

/* Far enough that memory has answered, near enough to find it in the second-level cache. */
#define FETCH_AHEAD 12288

/* All rows times one panel. Few rows: one pass. More: part by part of the panel, each part for all
 * blocks of rows while it is in the first-level cache and the first two of them fetch the next. */
INLINE void multiply(const block_set* set, int n_rows, const void* x, const void* panel, int n_in,
                     size_t bytes_per_k32, int near, int add, float* y, ptrdiff_t ldy) {
    block_args a = {
        .x = x, .n_all = n_rows, .n_in = n_in, .n_k = n_in, .add = add, .panel = panel, .y = y, .ldy = ldy};
    const sd_thresholds* thresholds = &sd_thresholds_used;
    int block_rows = thresholds->block_rows[set->format];
    if (block_rows > set->max_rows) block_rows = set->max_rows;
    int n_blocks = (n_rows + block_rows - 1) / block_rows;
    if (n_blocks == 1 && n_rows <= set->max_rows_wide) {
        const int* fetch_from = near ? thresholds->fetch_from_near : thresholds->fetch_from;
        ptrdiff_t distance = n_rows >= fetch_from[set->format] ? FETCH_AHEAD : 0;
        a.fetch = (ahead){distance, distance};
        set->of_rows[n_rows - 1](&a, 0);
        return;
    }
    ptrdiff_t distance = (ptrdiff_t)bytes_per_k32 * (set->chunk / SD_BLOCK);
    for (a.k = 0; a.k < n_in; a.k += set->chunk, a.add = 1, a.panel += distance) {
        a.n_k = n_in - a.k < set->chunk ? n_in - a.k : set->chunk;
        for (int b = 0, first = 0; b < n_blocks; b++) {
            int rows = (n_rows - first + n_blocks - b - 1) / (n_blocks - b); /* even shares */
            a.fetch = (ahead){b == 0 ? distance : 0, b == 1 || n_blocks == 1 ? distance : 0};
            set->of_rows[rows - 1](&a, first);
            first += rows;
        }
    }
}

static void NAME(panel_f32)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                            ptrdiff_t ldy) {
    multiply(&f32_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 4, near, 0, y, ldy);
}
static void NAME(panel_bf16)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
#if BF16_PAIRS /* the instruction flushes by itself */
    multiply(&bf16_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy);
#else
    FLUSHED(multiply(&bf16_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy));
#endif
}
static void NAME(panel_int8)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
    multiply(&int8_set, n_rows, x, panel, n_in, SD_INT8_BLOCK_BYTES, near, 0, y, ldy);
}
static void NAME(panel_int4)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
    multiply(&int4_set, n_rows, x, panel, n_in, SD_INT4_BLOCK_BYTES, near, 0, y, ldy);
}
static void NAME(add_values_f32)(int n_rows, const float* x, const void* panel, int n_in, float* y,
                                 ptrdiff_t ldy) {
    multiply(&f32_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 4, 0, 1, y, ldy);
}
static void NAME(add_values_bf16)(int n_rows, const float* x, const void* panel, int n_in, float* y,
                                  ptrdiff_t ldy) {
    multiply(&values_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, 0, 1, y, ldy);
}
