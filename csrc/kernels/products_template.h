/* Products of prepared rows with packed panels, by block functions: one per format and number of rows.
 *
 * Included after base_template.h. Products of floats and of codes use, besides the vector of 16 floats,
 *   v_even_bf16(p), v_odd_bf16(p)   first or second elements of 16 pairs of bf16 at p, widened
 *   v_wide_int8(p)                  16 int8 at p, widened
 *   FLUSHED(statement)              run it with v_fma_flush flushing subnormals to zero
 *   FLUSHES_ALL                     1: in it v_fma flushes too; 0: only v_fma_flush
 *   unit, iunit                     UNIT_LANES (16 or 8) floats or int32; u_zero, u_set1, u_sub, u_fma,
 *                                   u_load, u_store, u_half (from f16), u_of_bits(iunit), i_set1
 *   codes8, c8_load(p)              UNIT_LANES groups of 4 codes, a byte each
 *   codes4, c4_low(p), c4_high(p)   the same from the low or high nibbles of bytes
 *   c4_load(p)                      codes4 from bytes, each 63 at most
 *   OFFSET8, OFFSET4                offsets of codes8 and codes4: code − value
 *   MAX_ROWS_DOT                    rows of a block in int8 and int4
 *   MAX_ROWS_DOT_WIDE               most rows for which all 32 outputs are computed at once
 *   FEW_REGISTERS                   1 if the set has 16 registers
 *   FEW_ROWS                        then, the most rows of a block whose sums stay in registers
 *   and what lines_template.h lists
 *
 * and for the coded formats: u_mul; u_fnma(a, b, c) = c - a · b; u_bytes, u_signed_bytes: UNIT_LANES
 * bytes as floats; c4_with(codes, p, left, mask): codes and the bits `mask` of the bytes at p, shifted left,
 * or right where left < 0.
 *
 * Thresholds set the rows of a block, and which blocks prefetch.
 *
 * Prepared rows are stored by chunks: the 32 inputs of chunk c of row m begin at element (c · n_rows + m) ·
 * 32. So one pointer with constant offsets addresses a block of rows, and rows are never a power of two
 * apart. Attention's scores already have the layout of its next input. */
#pragma once

/* The memory to prefetch. For each cache line of a panel that a block reads, it prefetches the address
 * `at`, then adds `step` bytes. With a step of 64 a block prefetches as much as it reads. Blocks that
 * read the same lines in turn use smaller steps, so that together they prefetch as much, at an even pace;
 * a burst of requests would delay loads. A step of 0 requests one line repeatedly, which costs little. */
typedef struct ahead {
    const char* at;
    ptrdiff_t step;
} ahead;

INLINE void request(ahead* fetch) {
    __builtin_prefetch(fetch->at, 0, 2);
    fetch->at += fetch->step;
}

/* With 16 registers, sums stay in memory between sub-blocks, and numbers are reloaded at each use. */
#if FEW_REGISTERS
#define IN_MEMORY(sums) __asm__("" : "+m"(sums))
#define LOAD_AGAIN(p) __asm__("" : "+r"(p))
#else
#define IN_MEMORY(sums) (void)0
#define LOAD_AGAIN(p) (void)0
#endif

/* For blocks whose sums use all registers but four. */
#ifndef v_fma_flush_in_place
#define v_fma_flush_in_place v_fma_flush
#endif

/* Blocks of this few rows can keep sums in registers and unroll whole sub-blocks. */
#ifndef FEW_ROWS
#define FEW_ROWS MAX_ROWS_DOT
#endif

#define FOR_ROWS UNROLL for (int m = 0; m < n_rows; m++)
#define FOR_HALVES UNROLL for (int h = 0; h < n_halves; h++)

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
    float* wide; /* for the widened panel, in blocks that keep it */
} block_args;
typedef void (*block_fn)(const block_args* a, int first);

/* Compute both halves of the panel at once if registers suffice, else one after the other. */
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

/* ROWS_n: f(rows, a) for 1, 2, … n rows. FUNCTIONS: an array initializer of the functions for 1 … n rows. */
#define ROWS_2(f, a) f(1, a) f(2, a)
#define ROWS_6(f, a) f(1, a) f(2, a) f(3, a) f(4, a) f(5, a) f(6, a)
#define ROWS_9(f, a) ROWS_6(f, a) f(7, a) f(8, a) f(9, a)
#define ROWS_12(f, a) ROWS_9(f, a) f(10, a) f(11, a) f(12, a)
#define ROWS_UP_TO_(n, f, a) ROWS_##n(f, a)
#define ROWS_UP_TO(n, f, a) ROWS_UP_TO_(n, f, a)
#define ENTRY_OF(rows, name) name##_##rows,
#define FUNCTIONS(n, name) {ROWS_UP_TO(n, ENTRY_OF, name)}

/* The block functions of one panel format. */
typedef struct block_set {
    const block_fn* of_rows; /* [max_rows], for 1, 2, … rows */
    int max_rows, max_rows_wide;
    int chunk;        /* most inputs of a part of a panel: 16 to 32 KiB (benchmarks/SPEED.md) */
    sd_format format; /* its thresholds set the rows of a block and prefetching */
    int counts_as;    /* rows of `format` that take as long per byte as one row, for prefetching */
} block_set;

/* Far enough ahead to hide the latency of memory, near enough to stay in the second-level cache. */
#define FETCH_AHEAD 12288

/* Number of blocks that n_rows rows are divided into. */
INLINE int blocks_of(const block_set* set, int n_rows) {
    int block_rows = sd_thresholds_used.block_rows[set->format];
    if (block_rows > set->max_rows) block_rows = set->max_rows;
    return (n_rows + block_rows - 1) / block_rows;
}

/* First row of block b; rows are divided evenly. */
INLINE int first_row(int n_rows, int b, int n_blocks) { return (int)((int64_t)n_rows * b / n_blocks); }

/* Multiply blocks [begin, end) of rows with a part of a panel while it is in the first-level cache.
 * Together they prefetch the next part, `fetched` bytes at `next`. */
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

/* Inputs of a part: whole blocks, or whole groups of blocks that share a header, divided evenly. So the next
 * part, which is prefetched meanwhile, has about the same length, even if it begins the next panel. */
INLINE int even_part(const block_set* set, int n_in) {
    int unit = set->format < SD_N_OWN_FORMATS ? SD_BLOCK : SD_PART_BLOCKS * SD_BLOCK;
    int n_parts = (n_in + set->chunk - 1) / set->chunk, n_units = (n_in + unit - 1) / unit;
    return (n_units + n_parts - 1) / n_parts * unit;
}

/* Multiply all rows with one panel: in one pass for few rows, else one part of the panel at a time. */
INLINE void multiply(const block_set* set, int n_rows, const void* x, const void* panel, int n_in,
                     size_t bytes_per_k32, int near, int add, float* y, ptrdiff_t ldy) {
    block_args a = {
        .x = x, .n_all = n_rows, .n_in = n_in, .n_k = n_in, .add = add, .panel = panel, .y = y, .ldy = ldy};
    const sd_thresholds* thresholds = &sd_thresholds_used;
    int n_blocks = blocks_of(set, n_rows);
    if (n_blocks == 1 && n_rows <= set->max_rows_wide) {
        const int* fetch_from = near ? thresholds->fetch_from_near : thresholds->fetch_from;
        a.fetch =
            (ahead){a.panel + (n_rows * set->counts_as >= fetch_from[set->format] ? FETCH_AHEAD : 0), 64};
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
