/* AMX: AVX-512 with tiles, which multiply the codes of many rows.
 *
 * The sums of a block of 32 inputs are whole numbers, so a tile may add them in any order; scaling and adding
 * them stays the work of AVX-512. Only products differ from the table "avx512"; prepared rows do not. */
#include "kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#include <string.h>

#include "row_block.h"
#include "tile_memory.h"
#include "tiles_amx.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define FOR_ROWS UNROLL for (int m = 0; m < n_rows; m++)

/* Rows of a block: 24 sums, two scales and what a row begins with fit the registers. */
#define MAX_ROWS_TILE 12
/* Blocks of inputs of a part of a panel, whose codes take a third of a first-level cache. */
#define PART 16
/* The tiles are multiplied so many blocks of inputs before their sums are scaled. */
#define LEAD 2
#define HALF_BYTES (4 * SD_LANES) /* of a line of codes: those of 16 outputs */

/* The tile registers: sums of both halves, codes of rows, weights of both halves. Macros, as GCC 12 writes
 * their names into assembly. */
#define SUMS 0
#define SUMS_ODD 1
#define ROWS 2
#define WEIGHTS 3
#define WEIGHTS_ODD 4
#define N_TILES 5

/* Shape the tiles for blocks of n_rows rows. */
static void shape_for(int n_rows) {
    const sd_tile_shape sums = {(uint8_t)n_rows, SD_LANES * sizeof(int32_t)};
    const sd_tile_shape rows = {(uint8_t)n_rows, SD_BLOCK}, weights = {SD_BLOCK / 4, HALF_BYTES};
    const sd_tile_shape shapes[N_TILES] = {sums, sums, rows, weights, weights};
    sdk_shape_tiles(shapes, N_TILES);
}

/* Some blocks of inputs of a panel. */
typedef struct part {
    int n_blocks;
    const uint8_t* packed; /* [n_blocks] of a panel */
    const uint8_t* codes;  /* [n_blocks, 8, 32, 4]: those, or codes that were unpacked */
    int fetch;             /* ask memory for the next part */
} part;

/* Bytes of a block of a panel, and from a block of codes to the next. */
#define PACKED_BYTES(is_int4) ((is_int4) ? SD_INT4_BLOCK_BYTES : SD_INT8_BLOCK_BYTES)
#define CODES_BYTES(is_int4) ((is_int4) ? SD_BLOCK * SD_PANEL : SD_INT8_BLOCK_BYTES)

/* Sums of the codes of n_rows rows in a block, as integers. */
typedef struct tile_sums {
    int32_t of[SD_PANEL / SD_LANES][16][SD_LANES];
} tile_sums;

INLINE void multiply_tiles(const int8_t* x, const uint8_t* codes, tile_sums* sums) {
    SD_TILE_LOAD(ROWS, x, SD_BLOCK);
    _tile_zero(SUMS);
    SD_TILE_LOAD(WEIGHTS, codes, 2 * HALF_BYTES);
    _tile_dpbsud(SUMS, ROWS, WEIGHTS);
    _tile_zero(SUMS_ODD);
    SD_TILE_LOAD(WEIGHTS_ODD, codes + HALF_BYTES, 2 * HALF_BYTES);
    _tile_dpbsud(SUMS_ODD, ROWS, WEIGHTS_ODD);
    SD_TILE_STORE(SUMS, sums->of[0], sizeof sums->of[0][0]);
    SD_TILE_STORE(SUMS_ODD, sums->of[1], sizeof sums->of[1][0]);
}

/* sum = fma(float(Σ x_q · w_q) · x_scale, w_scale, sum) */
INLINE void scale_sums(const int n_rows, const tile_sums* sums, const sd_row_block* block,
                       const uint8_t* scales, __m512 (*sum)[2]) {
    __m512 scale[2];
    UNROLL for (int h = 0; h < 2; h++) scale[h] =
        _mm512_cvtph_ps(_mm256_loadu_si256((const void*)(scales + 2 * SD_LANES * h)));
    FOR_ROWS {
        __m512i start = _mm512_set1_epi32(block[m].start);
        __m512 base = _mm512_set1_ps(block[m].base);
        UNROLL for (int h = 0; h < 2; h++) {
            __m512i bits = _mm512_add_epi32(_mm512_load_si512(sums->of[h][m]), start);
            __m512 scaled = _mm512_sub_ps(_mm512_castsi512_ps(bits), base);
            sum[m][h] = _mm512_fmadd_ps(scaled, scale[h], sum[m][h]);
        }
    }
}

/* y (+)= n_rows rows times a part of a panel. x, block: of the first row in the part's first block; n_all
 * rows lie between blocks. */
INLINE void tile_block(const int n_rows, const int is_int4, const int8_t* x, const sd_row_block* block,
                       ptrdiff_t n_all, const part* p, int add, float* y, ptrdiff_t ldy) {
    enum { N_SUMS = 2 * LEAD };
    _Alignas(64) tile_sums sums[N_SUMS];
    const uint8_t *codes = p->codes, *packed = p->packed;
    const int n_blocks = p->n_blocks, fetch = p->fetch, bytes = PACKED_BYTES(is_int4);
    __m512 sum[MAX_ROWS_TILE][2];
    FOR_ROWS UNROLL for (int h = 0; h < 2; h++) sum[m][h] =
        add ? _mm512_loadu_ps(y + m * ldy + SD_LANES * h) : _mm512_setzero_ps();
    for (int b = -LEAD; b < n_blocks; b++) {
        if (b + LEAD < n_blocks) {
            multiply_tiles(x, codes, &sums[(b + LEAD) % N_SUMS]);
            x += n_all * SD_BLOCK;
            codes += CODES_BYTES(is_int4);
        }
        if (b < 0) continue;
        if (fetch) {
            const uint8_t* next = packed + PART * bytes;
            UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
        }
        scale_sums(n_rows, &sums[b % N_SUMS], block, packed + bytes - 2 * SD_PANEL, sum);
        block += n_all;
        packed += bytes;
    }
    FOR_ROWS UNROLL for (int h = 0; h < 2; h++) _mm512_storeu_ps(y + m * ldy + SD_LANES * h, sum[m][h]);
}

typedef void (*tile_fn)(const int8_t* x, const sd_row_block* block, ptrdiff_t n_all, const part* p, int add,
                        float* y, ptrdiff_t ldy);
#define FOR_NUMBERS_OF_ROWS(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12)
#define DEFINE_TILE_BLOCK(name, rows, is_int4)                                                            \
    static void name##_##rows(const int8_t* x, const sd_row_block* block, ptrdiff_t n_all, const part* p, \
                              int add, float* y, ptrdiff_t ldy) {                                         \
        tile_block(rows, is_int4, x, block, n_all, p, add, y, ldy);                                       \
    }
#define DEFINE_TILE_BLOCKS(rows) DEFINE_TILE_BLOCK(int8, rows, 0) DEFINE_TILE_BLOCK(int4, rows, 1)
FOR_NUMBERS_OF_ROWS(DEFINE_TILE_BLOCKS)
#define INT8_ENTRY(rows) int8_##rows,
#define INT4_ENTRY(rows) int4_##rows,
static const tile_fn int8_blocks[MAX_ROWS_TILE] = {FOR_NUMBERS_OF_ROWS(INT8_ENTRY)};
static const tile_fn int4_blocks[MAX_ROWS_TILE] = {FOR_NUMBERS_OF_ROWS(INT4_ENTRY)};

/* The codes of a part of an int4 panel, as bytes in the order of an int8 panel. */
static void unpack_int4(const uint8_t* panel, int n_blocks, uint8_t* codes) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int b = 0; b < n_blocks; b++, panel += SD_INT4_BLOCK_BYTES)
        for (int s = 0; s < 4; s++, codes += 4 * HALF_BYTES)
            for (int h = 0; h < 2; h++) {
                __m512i both = _mm512_loadu_si512(panel + (2 * s + h) * HALF_BYTES);
                __m512i high = _mm512_srli_epi16(both, 4);
                _mm512_store_si512(codes + h * HALF_BYTES, _mm512_and_si512(both, low));
                _mm512_store_si512(codes + (2 + h) * HALF_BYTES, _mm512_and_si512(high, low));
            }
}

/* All rows times one panel, part by part, each part for all blocks of rows. */
INLINE void multiply(const int is_int4, int n_rows, const void* x, const uint8_t* panel, int n_in, int near,
                     float* y, ptrdiff_t ldy) {
    _Alignas(64) uint8_t unpacked[PART * SD_BLOCK * SD_PANEL];
    const tile_fn* blocks = is_int4 ? int4_blocks : int8_blocks;
    const sd_row_block* row_blocks = sd_row_blocks((void*)(uintptr_t)x, n_rows, n_in);
    int n_in_blocks = (int)sd_blocks((size_t)n_in);
    shape_for(n_rows < MAX_ROWS_TILE ? n_rows : MAX_ROWS_TILE);
    for (int b = 0; b < n_in_blocks; b += PART, panel += PART * PACKED_BYTES(is_int4)) {
        part p = {n_in_blocks - b < PART ? n_in_blocks - b : PART, panel, panel, !near};
        if (is_int4) {
            unpack_int4(panel, p.n_blocks, unpacked);
            p.codes = unpacked;
        }
        /* The last block of rows may be smaller. Its tiles are not: what lies behind its rows fills them. */
        for (int first = 0, rows; first < n_rows; first += rows, p.fetch = 0) {
            rows = n_rows - first < MAX_ROWS_TILE ? n_rows - first : MAX_ROWS_TILE;
            ptrdiff_t at = (ptrdiff_t)b * n_rows + first;
            blocks[rows - 1]((const int8_t*)x + at * SD_BLOCK, row_blocks + at, n_rows, &p, b > 0,
                             y + first * ldy, ldy);
        }
    }
}

/* A second block of fewer rows takes nearly the time of a whole one, and AVX-512 is no slower. */
#define SECOND_FROM 6

static int tiles_pay(sd_format format, int n_rows) {
    return n_rows >= sd_thresholds_used.tiles_from[format] &&
           (n_rows <= MAX_ROWS_TILE || n_rows >= MAX_ROWS_TILE + SECOND_FROM);
}

#define DEFINE_PANEL(name, format, is_int4)                                                      \
    static void name(int n_rows, const void* x, const void* panel, int n_in, int near, float* y, \
                     ptrdiff_t ldy) {                                                            \
        if (tiles_pay(format, n_rows))                                                           \
            multiply(is_int4, n_rows, x, panel, n_in, near, y, ldy);                             \
        else                                                                                     \
            sdk_table_avx512()->panel[format](n_rows, x, panel, n_in, near, y, ldy);             \
    }
DEFINE_PANEL(panel_int8, SD_FORMAT_INT8, 0)
DEFINE_PANEL(panel_int4, SD_FORMAT_INT4, 1)

const sd_kernels* sdk_table_amx(void) {
    static sd_kernels table;
    if (table.name != NULL) return &table; /* other threads may compute with it */
    table = *sdk_table_avx512();
    table.name = "amx";
    table.panel[SD_FORMAT_INT8] = panel_int8;
    table.panel[SD_FORMAT_INT4] = panel_int4;
    table.prepare_tiles = sdk_prepare_pairs_avx512;
    table.tiles[SD_FORMAT_BF16] = sdk_tiles_bf16_amx;
    table.tiles[SD_FORMAT_INT8] = sdk_tiles_int8_amx;
    table.tiles[SD_FORMAT_INT4] = sdk_tiles_int4_amx;
    table.thresholds.tiles_from[SD_FORMAT_INT8] = 10;
    table.thresholds.tiles_from[SD_FORMAT_INT4] = 10;
    return &table;
}
#else
const sd_kernels* sdk_table_amx(void) { return NULL; }
#endif
