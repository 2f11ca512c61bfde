/* AMX kernels: AVX-512 with tiles, which multiply the codes of many rows.
 *
 * The sums of a block of 32 inputs are integers, so a tile may add them in any order. AVX-512 scales them
 * and adds them up. Only the products differ from the table "avx512"; prepared rows do not. */
#include "kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>
#include <string.h>

#include "format.h"
#include "parts.h"
#include "tiles_amx.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#define FOR_ROWS UNROLL for (int m = 0; m < n_rows; m++)

/* Rows of a block: 24 sums, two scales and a row's start values fit the registers. */
#define MAX_ROWS_TILE 12
/* Blocks of inputs in a part of a panel; their codes take a third of a first-level cache. */
#define PART 16
/* Sums of a block of inputs are stored while the next block is multiplied, and scaled during the one after
 * that. */
#define LEAD 2
/* int4, q4_k, q5_k: blocks between unpacking codes and multiplying them. */
#define UNPACK_AHEAD 2
#define HALF_BYTES (4 * SD_LANES) /* the codes of 16 outputs in a line */

/* The tile registers: sums of both halves of a panel, for even and odd blocks of inputs; codes of rows;
 * weights of both halves. Macros, as GCC 12 writes their names into assembly. */
#define EVEN_SUMS_FIRST 0
#define EVEN_SUMS_SECOND 1
#define ODD_SUMS_FIRST 2
#define ODD_SUMS_SECOND 3
#define ROWS 4
#define WEIGHTS_FIRST 5
#define WEIGHTS_SECOND 6
#define N_TILES 7

/* Shape the tiles for blocks of n_rows rows. */
static void shape_for(int n_rows) {
    const sd_tile_shape sums = {(uint8_t)n_rows, SD_LANES * sizeof(int32_t)};
    const sd_tile_shape rows = {(uint8_t)n_rows, SD_BLOCK}, weights = {SD_BLOCK / 4, HALF_BYTES};
    const sd_tile_shape shapes[N_TILES] = {sums, sums, sums, sums, rows, weights, weights};
    sdk_shape_tiles(shapes, N_TILES);
}

/* A part of a panel: some blocks of inputs. */
typedef struct part {
    int n_blocks;
    const uint8_t* packed; /* [n_blocks] of a panel */
    uint8_t* unpacked;     /* [n_blocks] codes as an int8 panel has them; for formats other than int8 */
    int unpack;            /* whether to store them there: in the first block of rows */
    const uint8_t* next;   /* memory to prefetch, `n_lines` cache lines per block of inputs */
    int n_lines;
} part;

/* Bytes of a block of a panel, averaged over blocks that share a header. Unpacked blocks have the stride of
 * int8 blocks. */
#define PACKED_BYTES(format) ((int)(sd_panel_bytes(format, SD_PART_BLOCKS * SD_BLOCK) / SD_PART_BLOCKS))
#define CODES_BYTES SD_INT8_BLOCK_BYTES

/* Block b of a part, and its header if the format has headers. */
INLINE const uint8_t* header_at(const sd_format format, const uint8_t* packed, int b) {
    return packed + (ptrdiff_t)(b / SD_PART_BLOCKS) * SD_PART_BLOCKS * PACKED_BYTES(format);
}
INLINE const uint8_t* block_at(const sd_format format, const uint8_t* packed, int b) {
    if (format < SD_N_OWN_FORMATS) return packed + (ptrdiff_t)b * PACKED_BYTES(format);
    return header_at(format, packed, b) + sd_coded_header_bytes(format) +
           (size_t)(b % SD_PART_BLOCKS) * sd_coded_block_bytes(format);
}

/* Integer sums of the codes of n_rows rows in a block. */
typedef struct tile_sums {
    int32_t of[SD_PANEL / SD_LANES][16][SD_LANES];
} tile_sums;

#define MULTIPLY_INTO(sums_first, sums_second, x, codes)                    \
    do {                                                                    \
        SD_TILE_LOAD(ROWS, x, SD_BLOCK);                                    \
        _tile_zero(sums_first);                                             \
        SD_TILE_LOAD(WEIGHTS_FIRST, codes, 2 * HALF_BYTES);                 \
        _tile_dpbsud(sums_first, ROWS, WEIGHTS_FIRST);                      \
        _tile_zero(sums_second);                                            \
        SD_TILE_LOAD(WEIGHTS_SECOND, (codes) + HALF_BYTES, 2 * HALF_BYTES); \
        _tile_dpbsud(sums_second, ROWS, WEIGHTS_SECOND);                    \
    } while (0)

INLINE void multiply_tiles(const int odd, const int8_t* x, const uint8_t* codes) {
    if (odd)
        MULTIPLY_INTO(ODD_SUMS_FIRST, ODD_SUMS_SECOND, x, codes);
    else
        MULTIPLY_INTO(EVEN_SUMS_FIRST, EVEN_SUMS_SECOND, x, codes);
}

INLINE void store_tiles(const int odd, tile_sums* sums) {
    if (odd) {
        SD_TILE_STORE(ODD_SUMS_FIRST, sums->of[0], sizeof sums->of[0][0]);
        SD_TILE_STORE(ODD_SUMS_SECOND, sums->of[1], sizeof sums->of[1][0]);
    } else {
        SD_TILE_STORE(EVEN_SUMS_FIRST, sums->of[0], sizeof sums->of[0][0]);
        SD_TILE_STORE(EVEN_SUMS_SECOND, sums->of[1], sizeof sums->of[1][0]);
    }
}

/* Load 16 numbers of a header or a block, f16 or bytes. */
INLINE __m512 wide_halves(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void*)at)); }
INLINE __m512 times_bytes(__m512 factor, const uint8_t* at) {
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void*)at));
    return _mm512_mul_ps(factor, _mm512_cvtepi32_ps(wide));
}

/* sum = fma(float(Σ x_q · w_q) · x_scale, w_scale, sum), and in formats with minima, which are stored
 * negated, sum = fma(float(Σ x_q) · x_scale, minimum, sum). */
INLINE void scale_sums(const int n_rows, const sd_format format, const tile_sums* sums,
                       const sd_row_block* block, const uint8_t* header, const uint8_t* scales,
                       __m512 (*sum)[2]) {
    const int is_coded = format >= SD_N_OWN_FORMATS;
    __m512 scale[2], less[2];
    UNROLL for (int h = 0; h < 2; h++) {
        scale[h] = wide_halves((is_coded ? header : scales) + 2 * SD_LANES * h);
        if (!is_coded) continue;
        scale[h] = times_bytes(scale[h], scales + SD_LANES * h);
        less[h] = wide_halves(header + 2 * SD_PANEL + 2 * SD_LANES * h);
        less[h] = times_bytes(less[h], scales + SD_PANEL + SD_LANES * h);
    }
    FOR_ROWS {
        __m512 base = _mm512_set1_ps(block[m].base);
        __m512i start = is_coded                   ? _mm512_castps_si512(base)
                        : format == SD_FORMAT_INT4 ? _mm512_set1_epi32(block[m].start4)
                                                   : _mm512_set1_epi32(block[m].start8);
        UNROLL for (int h = 0; h < 2; h++) {
            __m512i bits = _mm512_add_epi32(_mm512_load_si512(sums->of[h][m]), start);
            __m512 scaled = _mm512_sub_ps(_mm512_castsi512_ps(bits), base);
            sum[m][h] = _mm512_fmadd_ps(scaled, scale[h], sum[m][h]);
            if (is_coded) sum[m][h] = _mm512_fnmadd_ps(_mm512_set1_ps(block[m].sum), less[h], sum[m][h]);
        }
    }
}

/* Unpack the codes of a block of nibbles to bytes in the order of an int8 panel. In q5_k, bit l of each byte
 * after the nibbles is the fifth bit of a code in line l. */
INLINE void unpack_nibbles(const sd_format format, const uint8_t* panel, uint8_t* codes) {
    const __m512i low = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
    UNROLL for (int s = 0; s < 4; s++, codes += 4 * HALF_BYTES) UNROLL for (int h = 0; h < 2; h++) {
        __m512i both = _mm512_loadu_si512(panel + (2 * s + h) * HALF_BYTES);
        __m512i first = _mm512_and_si512(both, low),
                second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        if (format == SD_FORMAT_Q5_K) {
            __m512i bits = _mm512_loadu_si512(panel + SD_NIBBLES + h * HALF_BYTES);
            __m512i of_first = s < 2 ? _mm512_slli_epi16(bits, (unsigned)(4 - 2 * s))
                                     : _mm512_srli_epi16(bits, (unsigned)(2 * s - 4));
            __m512i of_second = s < 2 ? _mm512_slli_epi16(bits, (unsigned)(3 - 2 * s))
                                      : _mm512_srli_epi16(bits, (unsigned)(2 * s - 3));
            first = _mm512_or_si512(first, _mm512_and_si512(of_first, fifth));
            second = _mm512_or_si512(second, _mm512_and_si512(of_second, fifth));
        }
        _mm512_store_si512(codes + h * HALF_BYTES, first);
        _mm512_store_si512(codes + (2 + h) * HALF_BYTES, second);
    }
}

/* Address of an unpacked block of a part. A part that only one block of rows uses may have more blocks than
 * there are slots. */
INLINE uint8_t* unpacked_at(const part* p, int b) {
    return p->unpacked + (ptrdiff_t)(b % PART) * CODES_BYTES;
}

/* y (+)= n_rows rows times a part of a panel. x, block: those of the first row in the part's first block;
 * blocks are n_all rows apart. */
INLINE void tile_block(const int n_rows, const sd_format format, const int8_t* x, const sd_row_block* block,
                       ptrdiff_t n_all, const part* p, int add, float* y, ptrdiff_t ldy) {
    _Alignas(64) tile_sums sums[2];
    const uint8_t *packed = p->packed, *next = p->next;
    const int n_blocks = p->n_blocks, n_lines = p->n_lines, is_int8 = format == SD_FORMAT_INT8;
    const int unpack = !is_int8 && p->unpack;
    const size_t code_bytes = is_int8                    ? SD_BLOCK * SD_PANEL
                              : format == SD_FORMAT_INT4 ? SD_NIBBLES
                                                         : sd_coded_code_bytes(format);
    __m512 sum[MAX_ROWS_TILE][2];
    FOR_ROWS UNROLL for (int h = 0; h < 2; h++) sum[m][h] =
        add ? _mm512_loadu_ps(y + m * ldy + SD_LANES * h) : _mm512_setzero_ps();
    if (unpack)
        for (int b = 0; b < UNPACK_AHEAD && b < n_blocks; b++)
            unpack_nibbles(format, block_at(format, packed, b), unpacked_at(p, b));
    for (int first = 0; first < n_blocks + LEAD; first += 2) UNROLL for (int odd = 0; odd < 2; odd++) {
            int b = first + odd; /* multiply b, store b − 1, scale b − LEAD */
            if (b < n_blocks) {
                multiply_tiles(odd, x, is_int8 ? block_at(format, packed, b) : unpacked_at(p, b));
                x += n_all * SD_BLOCK;
            }
            if (unpack && b + UNPACK_AHEAD < n_blocks)
                unpack_nibbles(format, block_at(format, packed, b + UNPACK_AHEAD),
                               unpacked_at(p, b + UNPACK_AHEAD));
            if (b > 0 && b <= n_blocks) store_tiles(!odd, &sums[!odd]);
            if (b < LEAD || b >= n_blocks + LEAD) continue;
            for (int i = 0; i < n_lines; i++, next += 64) __builtin_prefetch(next, 0, 2);
            scale_sums(n_rows, format, &sums[odd], block, header_at(format, packed, b - LEAD),
                       block_at(format, packed, b - LEAD) + code_bytes, sum);
            block += n_all;
        }
    FOR_ROWS UNROLL for (int h = 0; h < 2; h++) _mm512_storeu_ps(y + m * ldy + SD_LANES * h, sum[m][h]);
}

typedef void (*tile_fn)(const int8_t* x, const sd_row_block* block, ptrdiff_t n_all, const part* p, int add,
                        float* y, ptrdiff_t ldy);
#define EACH_OF_12(f, a) \
    f(1, a) f(2, a) f(3, a) f(4, a) f(5, a) f(6, a) f(7, a) f(8, a) f(9, a) f(10, a) f(11, a) f(12, a)
#define DEFINE_TILE_BLOCK(name, rows, format)                                                             \
    static void name##_##rows(const int8_t* x, const sd_row_block* block, ptrdiff_t n_all, const part* p, \
                              int add, float* y, ptrdiff_t ldy) {                                         \
        tile_block(rows, format, x, block, n_all, p, add, y, ldy);                                        \
    }
#define DEFINE_TILE_BLOCKS(rows, _)               \
    DEFINE_TILE_BLOCK(int8, rows, SD_FORMAT_INT8) \
    DEFINE_TILE_BLOCK(int4, rows, SD_FORMAT_INT4) \
    DEFINE_TILE_BLOCK(q4_k, rows, SD_FORMAT_Q4_K) \
    DEFINE_TILE_BLOCK(q5_k, rows, SD_FORMAT_Q5_K)
EACH_OF_12(DEFINE_TILE_BLOCKS, )
#define ENTRY_OF(rows, name) name##_##rows,
static const tile_fn int8_blocks[MAX_ROWS_TILE] = {EACH_OF_12(ENTRY_OF, int8)};
static const tile_fn int4_blocks[MAX_ROWS_TILE] = {EACH_OF_12(ENTRY_OF, int4)};
static const tile_fn q4_k_blocks[MAX_ROWS_TILE] = {EACH_OF_12(ENTRY_OF, q4_k)};
static const tile_fn q5_k_blocks[MAX_ROWS_TILE] = {EACH_OF_12(ENTRY_OF, q5_k)};

/* Multiply all rows with one panel, part by part; all blocks of rows together prefetch the next part. */
INLINE void multiply(const sd_format format, const tile_fn* blocks, int n_rows, const void* x,
                     const uint8_t* panel, int n_in, int near, float* y, ptrdiff_t ldy) {
    _Alignas(64) uint8_t unpacked[PART * CODES_BYTES];
    const sd_row_block* row_blocks = sd_row_blocks((void*)(uintptr_t)x, n_rows, n_in);
    const int n_in_blocks = (int)sd_blocks((size_t)n_in), bytes = PACKED_BYTES(format);
    int n_blocks = (n_rows + MAX_ROWS_TILE - 1) / MAX_ROWS_TILE;
    const int* fetch_from = near ? sd_thresholds_used.fetch_from_near : sd_thresholds_used.fetch_from;
    int fetch = n_rows >= fetch_from[format];
    int n_lines = fetch ? (bytes / 64 + n_blocks - 1) / n_blocks : 0;
    shape_for((n_rows + n_blocks - 1) / n_blocks);
    const int n_together = n_blocks == 1 ? n_in_blocks : PART;
    for (int b = 0; b < n_in_blocks; b += n_together, panel += (ptrdiff_t)n_together * bytes) {
        int n_here = n_in_blocks - b < n_together ? n_in_blocks - b : n_together;
        part p = {n_here, panel, unpacked, 1, panel + PART * bytes, n_lines};
        /* Blocks before the last may be one row smaller than the tiles, which then also read the next block's
         * first row. */
        for (int i = 0, first = 0, end; i < n_blocks; i++, first = end, p.next += n_here * 64 * n_lines) {
            end = (int)((int64_t)n_rows * (i + 1) / n_blocks);
            p.unpack = i == 0;
            ptrdiff_t at = (ptrdiff_t)b * n_rows + first;
            blocks[end - first - 1]((const int8_t*)x + at * SD_BLOCK, row_blocks + at, n_rows, &p, b > 0,
                                    y + first * ldy, ldy);
        }
    }
}

/* The panel kernels of "avx512", for few rows. */
static sd_panel_kernel rows_avx512[SD_N_FORMATS];

#define DEFINE_PANEL(name, format, blocks)                                                       \
    static void name(int n_rows, const void* x, const void* panel, int n_in, int near, float* y, \
                     ptrdiff_t ldy) {                                                            \
        if (n_rows >= sd_thresholds_used.tiles_from[format])                                     \
            multiply(format, blocks, n_rows, x, panel, n_in, near, y, ldy);                      \
        else                                                                                     \
            rows_avx512[format](n_rows, x, panel, n_in, near, y, ldy);                           \
    }
DEFINE_PANEL(panel_int8, SD_FORMAT_INT8, int8_blocks)
DEFINE_PANEL(panel_int4, SD_FORMAT_INT4, int4_blocks)
DEFINE_PANEL(panel_q4_k, SD_FORMAT_Q4_K, q4_k_blocks)
DEFINE_PANEL(panel_q5_k, SD_FORMAT_Q5_K, q5_k_blocks)

void sdk_tiles_amx(sd_kernels* table) {
    memcpy(rows_avx512, table->panel, sizeof rows_avx512);
    table->panel[SD_FORMAT_INT8] = panel_int8;
    table->panel[SD_FORMAT_INT4] = panel_int4;
    table->panel[SD_FORMAT_Q4_K] = panel_q4_k;
    table->panel[SD_FORMAT_Q5_K] = panel_q5_k;
    table->prepare_tiles = sdk_prepare_pairs_avx512;
    table->tiles[SD_FORMAT_BF16] = sdk_tiles_bf16_amx;
    table->tiles[SD_FORMAT_INT8] = sdk_tiles_int8_amx;
    table->tiles[SD_FORMAT_INT4] = sdk_tiles_int4_amx;
    memcpy(&table->tiles[SD_N_OWN_FORMATS], sdk_tiles_coded_amx, sizeof sdk_tiles_coded_amx);
    table->add_tiles = sdk_add_tiles_amx;
    table->weigh_tiles = sdk_weigh_pairs_avx512;
    static const sd_format by_tiles[] = {SD_FORMAT_INT8, SD_FORMAT_INT4, SD_FORMAT_Q4_K, SD_FORMAT_Q5_K};
    for (size_t i = 0; i < sizeof by_tiles / sizeof *by_tiles; i++)
        table->thresholds.tiles_from[by_tiles[i]] = 10;
}
#endif
