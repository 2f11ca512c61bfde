/* Products of prepared rows with packed panels: a block function per format and number of rows.
 *
 * Included by kernels_template.h, over the vector of 16 floats and
 *   v_even_bf16(p), v_odd_bf16(p)   of 16 pairs of bf16 at p, the first or second ones, widened
 *   v_wide_bf16(p)                  16 bf16 at p, widened
 *   BF16_PAIRS                      1: v_pair(sum, w, p) multiplies 16 pairs w with the pair at p in one
 *                                   instruction, v_store_pairs(p, v) stores prepared ones; 0: there is none
 *   FLUSHED(statement)              run it with subnormals flushed to zero in v_fma_flush
 *   FLUSHES_ALL                     1: v_fma flushes there too; 0: v_fma_flush alone
 *   unit, iunit                     UNIT_LANES (16 or 8) floats, as many int32; u_zero, u_set1, u_sub, u_fma,
 *                                   u_load, u_store, u_half (from f16), u_of_bits(iunit), i_set1
 *   codes8, c8_load(p)              UNIT_LANES groups of 4 codes, a byte each
 *   codes4, c4_low(p), c4_high(p)   the same from the low or the high halves of bytes
 *   c4_load(p)                      codes4 from bytes, each 63 at most
 *   OFFSET8, OFFSET4                how much codes8 and codes4 are above q
 *   MAX_ROWS_DOT                    rows of a block in int8 and int4
 *   MAX_ROWS_DOT_WIDE               up to this many rows all 32 outputs are computed at once
 *   FEW_REGISTERS, FEW_ROWS         1 with 16 registers; there, rows of a block above which sums go through
 *                                   memory
 *   and what lines_template.h lists
 *
 * and for the coded formats: u_mul; u_fnma(a, b, c) = c - a · b; u_bytes, u_signed_bytes: UNIT_LANES
 * bytes as floats; c4_with(codes, p, left, mask): codes and the bits `mask` of the bytes at p, shifted left,
 * or right where left < 0.
 *
 * How many rows a block has, and which blocks prefetch, is for thresholds to say.
 *
 * Prepared rows lie chunk by chunk: the 32 inputs of chunk c of row m begin at element
 * (c · n_rows + m) · 32. So a block of rows is reached from one address with constant offsets, rows
 * never lie a power of two apart, and the scores of attention come out as its next input. */

/* Which memory is asked for: a block makes one request for each cache line of a panel that it reads, for
 * what is `at`, which then moves on by `step` bytes. With a step of 64 it asks for as much as it reads.
 * Blocks that read the same lines one after the other take smaller steps, and ask together for as much at an
 * even pace. (Requests in a burst wait for memory, and loads wait behind them.) A step of 0 asks for one line
 * again and again, which costs little. */
typedef struct ahead {
    const char* at;
    ptrdiff_t step;
} ahead;

INLINE void request(ahead* fetch) {
    __builtin_prefetch(fetch->at, 0, 2);
    fetch->at += fetch->step;
}

#ifndef v_store_pairs
#define v_store_pairs v_store_bf16
#endif

/* 16 registers: sums that lie in memory from one sub-block to the next, and numbers that are loaded again
 * where they are used. */
#if FEW_REGISTERS
#define IN_MEMORY(sums) __asm__("" : "+m"(sums))
#define LOAD_AGAIN(p) __asm__("" : "+r"(p))
#else
#define IN_MEMORY(sums) (void)0
#define LOAD_AGAIN(p) (void)0
#endif

/* For blocks whose sums take all registers but four. */
#ifndef v_fma_flush_in_place
#define v_fma_flush_in_place v_fma_flush
#endif

/* Blocks of so few rows leave registers for sums, and for whole sub-blocks without a loop. */
#ifndef FEW_ROWS
#define FEW_ROWS MAX_ROWS_DOT
#endif

#define FOR_ROWS UNROLL for (int m = 0; m < n_rows; m++)
#define FOR_HALVES UNROLL for (int h = 0; h < n_halves; h++)

/* --------------------------------------------------------------------------------------- f32 */

/* n_rows rows times n_halves halves of a panel, both constant where this is inlined, so that the
 * sums live in registers; so are `values`: the panel is [n_k][32] of bf16, the values of a bf16 cache, and
 * `flush`: sums flush subnormals. With `add` the chains go on from y. x: chunks `chunk` floats apart. */
INLINE void float_block(const int n_rows, const int n_halves, const int values, const int flush,
                        const float* x, ptrdiff_t chunk, const char* panel, int n_k, ahead* fetch, int add,
                        float* y, ptrdiff_t ldy) {
    vec sum[MAX_ROWS][2];
    FOR_ROWS FOR_HALVES sum[m][h] = add ? v_load(y + m * ldy + SD_LANES * h) : v_set1(0.0f);
    for (; n_k > 0; n_k -= SD_BLOCK, x += chunk) {
        int n_here = n_k < SD_BLOCK ? n_k : SD_BLOCK;
        _Pragma("GCC unroll 4") for (int k = 0; k < n_here; k++) {
            if (!values || n_halves == 2 || k % 2 == 0) request(fetch);
            if (!values && n_halves == 2) request(fetch);
            vec w[2];
            FOR_HALVES w[h] = values ? v_wide_bf16((const uint16_t*)(const void*)panel + SD_LANES * h)
                                     : v_load((const float*)(const void*)panel + SD_LANES * h);
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
    float_block(n_rows, n_halves, 0, 0, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}

INLINE void values_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                         const uint16_t* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 1, 0, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}

/* -------------------------------------------------------------------------------------- bf16 */

/* sum = fma(x[2i], w[2i], fma(x[2i + 1], w[2i + 1], sum)), i ascending, subnormals flushed: what the
 * instruction VDPBF16PS computes, for prepared pairs of one 32-bit word. */
#if BF16_PAIRS
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
#endif

/* The same with two fused multiply-adds, for prepared rows of rounded floats, the second of a pair first.
 * With `keep` the widened panel is left at wide [n_k rounded up to even][32], in the order of the rows. */
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

/* And for a part of a panel that was widened. */
#if !FLUSHES_ALL
INLINE void widened_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                          const float* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    float_block(n_rows, n_halves, 0, 1, x, chunk, (const char*)panel, n_k, fetch, add, y, ldy);
}
#endif

/* ----------------------------------------------------------------------------- int8 and int4 */

#include "lines_template.h"

/* sum = fma(float(Σ x_q · w_q) · x_scale, w_scale, sum), blocks ascending; the inner sums are
 * integers, exact, so their order is free. x and block: of the first row in the first block; `n_all`
 * rows lie between blocks. */
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
            /* Or the compiler keeps the starts of the next unit in registers that the sums need. */
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

/* ----------------------------------------------------------------- a function for each n_rows */

/* x: the prepared rows of all blocks, `first` the block's first row of n_all; n_k inputs from input
 * k on, a multiple of 32; n_in: inputs of the whole product. */
typedef struct block_args {
    const char* x;
    int n_all, n_in, k, n_k, add;
    ahead fetch;       /* of the block */
    const char* panel; /* from input k on */
    float* y;          /* of row 0 */
    ptrdiff_t ldy;
    float* wide; /* where the panel is left widened, by the blocks that do so */
} block_args;
typedef void (*block_fn)(const block_args* a, int first);

/* Both halves of the panel at once as far as registers go, else one after the other. */
#define BOTH_HALVES(block, rows, row_floats, type, half_elements)                                         \
    const float* x =                                                                                      \
        (const float*)(const void*)a->x + ((ptrdiff_t)a->k / SD_BLOCK * a->n_all + first) * (row_floats); \
    const type* panel = (const type*)(const void*)a->panel;                                               \
    float* y = a->y + first * a->ldy;                                                                     \
    ptrdiff_t chunk = (ptrdiff_t)a->n_all * (row_floats);                                                 \
    ahead fetch = a->fetch;                                                                               \
    if (rows <= MAX_ROWS_WIDE) {                                                                          \
        block(rows <= MAX_ROWS_WIDE ? rows : 1, 2, x, chunk, panel, a->n_k, &fetch, a->add, y, a->ldy);   \
    } else {                                                                                              \
        block(rows, 1, x, chunk, panel, a->n_k, &fetch, a->add, y, a->ldy);                               \
        block(rows, 1, x, chunk, panel + (half_elements), a->n_k, &fetch, a->add, y + SD_LANES, a->ldy);  \
    }

INLINE void direct_block(const int n_rows, const int n_halves, const float* x, ptrdiff_t chunk,
                         const uint16_t* panel, int n_k, ahead* fetch, int add, float* y, ptrdiff_t ldy) {
    bf16_block(n_rows, n_halves, 0, x, chunk, panel, n_k, fetch, add, y, ldy, NULL);
}

/* As BOTH_HALVES, the widened panel being kept. */
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

#define DEFINE_FLOAT_BLOCKS(rows, _)                                      \
    static void f32_##rows(const block_args* a, int first) {              \
        BOTH_HALVES(f32_block, rows, SD_BLOCK, float, SD_LANES)           \
    }                                                                     \
    static void values_##rows(const block_args* a, int first) {           \
        BOTH_HALVES(values_block, rows, SD_BLOCK, uint16_t, SD_LANES)     \
    }                                                                     \
    static void bf16_##rows(const block_args* a, int first) {             \
        BOTH_HALVES(direct_block, rows, SD_BLOCK, uint16_t, 2 * SD_LANES) \
    }                                                                     \
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
#if BF16_PAIRS
#define DEFINE_PAIRS_BLOCK(rows, _)                                          \
    static void pairs_##rows(const block_args* a, int first) {               \
        BOTH_HALVES(pairs_block, rows, SD_BLOCK / 2, uint16_t, 2 * SD_LANES) \
    }
#endif
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

/* f(rows, a) for 1, 2, … n rows; the functions of these numbers of rows as entries of an array. */
#define ROWS_6(f, a) f(1, a) f(2, a) f(3, a) f(4, a) f(5, a) f(6, a)
#define ROWS_9(f, a) ROWS_6(f, a) f(7, a) f(8, a) f(9, a)
#define ROWS_12(f, a) ROWS_9(f, a) f(10, a) f(11, a) f(12, a)
#define ROWS_UP_TO_(n, f, a) ROWS_##n(f, a)
#define ROWS_UP_TO(n, f, a) ROWS_UP_TO_(n, f, a)
#define ENTRY_OF(rows, name) name##_##rows,
#define FUNCTIONS(n, name) {ROWS_UP_TO(n, ENTRY_OF, name)}
ROWS_UP_TO(MAX_ROWS, DEFINE_FLOAT_BLOCKS, )
ROWS_UP_TO(MAX_ROWS, DEFINE_WIDENED_BLOCK, )
#if BF16_PAIRS
ROWS_UP_TO(MAX_ROWS, DEFINE_PAIRS_BLOCK, )
#endif
ROWS_UP_TO(MAX_ROWS_DOT, DEFINE_INT_BLOCKS, )

/* How the blocks of one kind of panel are called. */
typedef struct block_set {
    const block_fn* of_rows; /* [max_rows], for 1, 2, … rows */
    int max_rows, max_rows_wide;
    int chunk;        /* inputs of a part of a panel, at most: 16 to 32 KiB (benchmarks/SPEED.md) */
    sd_format format; /* whose thresholds say from how many rows on to prefetch (benchmarks/SPEED.md) */
} block_set;

/* Inputs of a part of a panel of bf16 that is widened: 16 KiB of floats. */
#define WIDENED_CHUNK 128

static const block_fn f32_blocks[] = FUNCTIONS(MAX_ROWS, f32);
static const block_fn values_blocks[] = FUNCTIONS(MAX_ROWS, values);
static const block_fn bf16_blocks[] = FUNCTIONS(MAX_ROWS, bf16);
static const block_fn keeping_blocks_of[] = FUNCTIONS(MAX_ROWS, keeping);
static const block_fn widened_blocks[] = FUNCTIONS(MAX_ROWS, WIDENED);
#if BF16_PAIRS
static const block_fn pairs_blocks[] = FUNCTIONS(MAX_ROWS, pairs);
#endif
static const block_fn int8_blocks[] = FUNCTIONS(MAX_ROWS_DOT, int8);
static const block_fn int4_blocks[] = FUNCTIONS(MAX_ROWS_DOT, int4);
static const block_set f32_set = {f32_blocks, MAX_ROWS, MAX_ROWS_WIDE, 192, SD_FORMAT_F32};
static const block_set values_set = {values_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_F32};
static const block_set bf16_set = {bf16_blocks, MAX_ROWS, MAX_ROWS_WIDE, 256, SD_FORMAT_BF16};
static const block_set keeping_set = {keeping_blocks_of, MAX_ROWS, MAX_ROWS_WIDE, WIDENED_CHUNK,
                                      SD_FORMAT_BF16};
static const block_set widened_set = {widened_blocks, MAX_ROWS, MAX_ROWS_WIDE, WIDENED_CHUNK, SD_FORMAT_BF16};
#if BF16_PAIRS
static const block_set pairs_set = {pairs_blocks, MAX_ROWS, MAX_ROWS_WIDE, 512, SD_FORMAT_BF16};
#endif
static const block_set int8_set = {int8_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 512, SD_FORMAT_INT8};
static const block_set int4_set = {int4_blocks, MAX_ROWS_DOT, MAX_ROWS_DOT, 1536, SD_FORMAT_INT4};

/* Far enough that memory has answered, near enough to find it in the second-level cache. */
#define FETCH_AHEAD 12288

/* How many blocks rows are divided into. */
INLINE int blocks_of(const block_set* set, int n_rows) {
    int block_rows = sd_thresholds_used.block_rows[set->format];
    if (block_rows > set->max_rows) block_rows = set->max_rows;
    return (n_rows + block_rows - 1) / block_rows;
}

/* The first row of block b: shares are even. */
INLINE int first_row(int n_rows, int b, int n_blocks) { return (int)((int64_t)n_rows * b / n_blocks); }

/* Blocks [begin, end) of rows times a part of a panel while it is in the first-level cache; all of them
 * together fetch the next, `fetched` bytes from `next` on. */
INLINE void multiply_part(const block_set* set, const block_args* part, int begin, int end, int n_blocks,
                          const char* next, ptrdiff_t fetched) {
    ptrdiff_t step = (64 + n_blocks - 1) / n_blocks, asked = begin * (fetched / 64 * step);
    for (int b = begin; b < end; b++, asked += fetched / 64 * step) {
        int first = first_row(part->n_all, b, n_blocks),
            rows = first_row(part->n_all, b + 1, n_blocks) - first;
        block_args a = *part;
        a.fetch = asked < fetched ? (ahead){next + asked, step} : (ahead){part->panel, 0};
        set->of_rows[rows - 1](&a, first);
    }
}

/* Inputs of a part: whole blocks, or whole groups of blocks that share a header, all parts about as long. So
 * the next part, which is asked for meanwhile, is as long as this one, also where it is the first of the next
 * panel. */
INLINE int even_part(const block_set* set, int n_in) {
    int unit = set->format < SD_N_OWN_FORMATS ? SD_BLOCK : SD_PART_BLOCKS * SD_BLOCK;
    int n_parts = (n_in + set->chunk - 1) / set->chunk, n_units = (n_in + unit - 1) / unit;
    return (n_units + n_parts - 1) / n_parts * unit;
}

/* All rows times one panel. Few rows: one pass. More: part by part of the panel. */
INLINE void multiply(const block_set* set, int n_rows, const void* x, const void* panel, int n_in,
                     size_t bytes_per_k32, int near, int add, float* y, ptrdiff_t ldy) {
    block_args a = {
        .x = x, .n_all = n_rows, .n_in = n_in, .n_k = n_in, .add = add, .panel = panel, .y = y, .ldy = ldy};
    const sd_thresholds* thresholds = &sd_thresholds_used;
    int n_blocks = blocks_of(set, n_rows);
    if (n_blocks == 1 && n_rows <= set->max_rows_wide) {
        const int* fetch_from = near ? thresholds->fetch_from_near : thresholds->fetch_from;
        a.fetch = (ahead){a.panel + (n_rows >= fetch_from[set->format] ? FETCH_AHEAD : 0), 64};
        set->of_rows[n_rows - 1](&a, 0);
        return;
    }
    int chunk = even_part(set, n_in);
    ptrdiff_t bytes;
    for (a.k = 0; a.k < n_in; a.k += chunk, a.add = 1, a.panel += bytes) {
        a.n_k = n_in - a.k < chunk ? n_in - a.k : chunk;
        bytes = (ptrdiff_t)bytes_per_k32 * ((a.n_k + SD_BLOCK - 1) / SD_BLOCK);
        multiply_part(set, &a, 0, n_blocks, n_blocks, a.panel + bytes, bytes);
    }
}

/* More rows than a block times a panel of bf16: the first block widens each part for all others. */
static void NAME(multiply_widened)(int n_rows, const void* x, const void* panel, int n_in, float* y,
                                   ptrdiff_t ldy) {
    _Alignas(SD_ALIGNMENT) float wide[WIDENED_CHUNK * SD_PANEL];
    const ptrdiff_t distance = WIDENED_CHUNK * SD_PANEL * (ptrdiff_t)sizeof(uint16_t);
    const char* part = panel;
    block_args a = {.x = x, .n_all = n_rows, .n_in = n_in, .y = y, .ldy = ldy, .wide = wide};
    int n_blocks = blocks_of(&keeping_set, n_rows);
    for (; a.k < n_in; a.k += WIDENED_CHUNK, a.add = 1, part += distance) {
        a.n_k = n_in - a.k < WIDENED_CHUNK ? n_in - a.k : WIDENED_CHUNK;
        a.n_k += a.n_k % 2; /* whole pairs, whose second is first */
        a.panel = part;
        multiply_part(&keeping_set, &a, 0, 1, n_blocks, part + distance, distance);
        a.panel = (const char*)wide;
        multiply_part(&widened_set, &a, 1, n_blocks, n_blocks, part + distance, distance);
    }
}

/* Whether the rows of a product with bf16 are prepared as pairs. */
INLINE int by_pairs(int n_rows) {
    return BF16_PAIRS && n_rows < sd_thresholds_used.floats_from[SD_FORMAT_BF16];
}

static void NAME(panel_f32)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                            ptrdiff_t ldy) {
    multiply(&f32_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 4, near, 0, y, ldy);
}
static void NAME(panel_bf16)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                             ptrdiff_t ldy) {
#if BF16_PAIRS
    if (by_pairs(n_rows)) { /* the instruction flushes by itself */
        multiply(&pairs_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy);
        return;
    }
#endif
    if (blocks_of(&bf16_set, n_rows) == 1)
        FLUSHED(multiply(&bf16_set, n_rows, x, panel, n_in, SD_BLOCK * SD_PANEL * 2, near, 0, y, ldy));
    else
        FLUSHED(NAME(multiply_widened)(n_rows, x, panel, n_in, y, ldy));
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
