#include "tiles_amx.h"

#if defined(__AMX_BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "tile_memory.h"

#define INLINE static inline __attribute__((always_inline))

/* Rows of a tile, and bytes of each: 16 sums, or 16 pairs of bf16. */
#define TILE_ROWS 16
#define TILE_BYTES 64
#define CHUNK_BYTES (SD_BLOCK * SD_PANEL * 2) /* of a panel */

/* The tile registers: sums of the upper and lower rows of a block, in the first and second half of a panel;
 * rows; weights. Macros, as GCC 12 writes their names into assembly. */
#define UPPER_FIRST 0
#define UPPER_SECOND 1
#define LOWER_FIRST 2
#define LOWER_SECOND 3
#define UPPER_ROWS 4
#define LOWER_ROWS 5
#define WEIGHTS_FIRST 6
#define WEIGHTS_SECOND 7
#define N_TILES 8

void sdk_shape_tiles(const sd_tile_shape* shapes, int n) {
    sd_tile_config wanted = {.palette = 1}, now;
    for (int i = 0; i < n; i++) {
        wanted.rows[i] = shapes[i].rows;
        wanted.row_bytes[i] = shapes[i].row_bytes;
    }
    SD_TILE_STORE_CONFIG(now);
    if (memcmp(&now, &wanted, sizeof now) != 0) SD_TILE_LOAD_CONFIG(wanted);
}

/* Shape the tiles for a block of n_rows rows. */
static void shape_for(int n_rows) {
    uint8_t n_upper = (uint8_t)(n_rows < TILE_ROWS ? n_rows : TILE_ROWS),
            n_lower = (uint8_t)(n_rows - n_upper);
    const sd_tile_shape upper = {n_upper, TILE_BYTES}, weights = {TILE_ROWS, TILE_BYTES};
    const sd_tile_shape lower = {n_lower, n_lower > 0 ? TILE_BYTES : 0};
    const sd_tile_shape shapes[N_TILES] = {upper, upper, lower, lower, upper, lower, weights, weights};
    sdk_shape_tiles(shapes, N_TILES);
}

/* What memory is asked for while rows are multiplied: the lines [at, end), some with each chunk. */
typedef struct ahead {
    const char *at, *end;
    int n_lines;
} ahead;

INLINE void request(ahead* fetch) {
    for (int i = 0; i < fetch->n_lines && fetch->at < fetch->end; i++, fetch->at += 64)
        __builtin_prefetch(fetch->at, 0, 2);
}

INLINE void add_chunk(const int two, const char* x, const char* w) {
    SD_TILE_LOAD(UPPER_ROWS, x, TILE_BYTES);
    SD_TILE_LOAD(WEIGHTS_FIRST, w, 2 * TILE_BYTES);
    _tile_dpbf16ps(UPPER_FIRST, UPPER_ROWS, WEIGHTS_FIRST);
    SD_TILE_LOAD(WEIGHTS_SECOND, w + TILE_BYTES, 2 * TILE_BYTES);
    _tile_dpbf16ps(UPPER_SECOND, UPPER_ROWS, WEIGHTS_SECOND);
    if (!two) return;
    SD_TILE_LOAD(LOWER_ROWS, x + TILE_ROWS * TILE_BYTES, TILE_BYTES);
    _tile_dpbf16ps(LOWER_FIRST, LOWER_ROWS, WEIGHTS_FIRST);
    _tile_dpbf16ps(LOWER_SECOND, LOWER_ROWS, WEIGHTS_SECOND);
}

/* ----------------------------------------------------------------------------- int8 and int4 */

/* 2¹⁵ + the code that begins at bit `shift` of each word. Times a scale that is exact, and so is 2¹⁵ plus the
 * offset of the codes, as a scale has 11 bits. */
INLINE __m512 code_at(const int is_int4, const int shift, __m512i words) {
    const int up = 8 - shift; /* to bit 8, of weight 1 where the exponent is that of 2¹⁵ */
    __m512i at = up > 0   ? _mm512_slli_epi32(words, (unsigned)(up > 0 ? up : 0))
                 : up < 0 ? _mm512_srli_epi32(words, (unsigned)(up < 0 ? -up : 0))
                          : words;
    __m512i code = _mm512_and_si512(at, _mm512_set1_epi32(is_int4 ? 0xf00 : 0xff00));
    return _mm512_castsi512_ps(_mm512_or_si512(code, _mm512_set1_epi32(0x47000000)));
}

/* The scales of 16 outputs, and what is to be added to scale · code_at. */
typedef struct scales {
    __m512 scale, offset;
} scales;

/* Pairs of weights: of the codes that begin at bit `shift` and 8 bits behind it, rounded to bf16. */
INLINE void store_pairs(const int is_int4, const int shift, __m512i words, scales s, char* to) {
    static const uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512 first = _mm512_fmadd_ps(code_at(is_int4, shift, words), s.scale, s.offset);
    __m512 second = _mm512_fmadd_ps(code_at(is_int4, shift + 8, words), s.scale, s.offset);
    __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), rounded));
}

/* Blocks of a panel as chunks of one of bf16. */
INLINE void dequantise(const int is_int4, const uint8_t* block, int n_blocks, char* chunk) {
    const int n_lines = SD_BLOCK / (is_int4 ? 8 : 4), n_pairs = is_int4 ? 4 : 2; /* of a line */
    const int line = 4 * SD_PANEL;                                               /* bytes, as of 32 pairs */
    for (; n_blocks > 0;
         n_blocks--, block += is_int4 ? SD_INT4_BLOCK_BYTES : SD_INT8_BLOCK_BYTES, chunk += CHUNK_BYTES)
        for (int h = 0; h < 2; h++) {
            const uint8_t* packed = block + n_lines * line + 2 * TILE_ROWS * h;
            scales s = {.scale = _mm512_cvtph_ps(_mm256_loadu_si256((const void*)packed))};
            s.offset = _mm512_mul_ps(s.scale, _mm512_set1_ps(-0x1p15f - (is_int4 ? 8.0f : 128.0f)));
            _Pragma("GCC unroll 8") for (int i = 0; i < n_lines; i++) {
                __m512i words = _mm512_loadu_si512(block + i * line + TILE_BYTES * h);
                char* to = chunk + i * n_pairs * line + TILE_BYTES * h;
                store_pairs(is_int4, 0, words, s, to);
                store_pairs(is_int4, 16, words, s, to + line);
                if (!is_int4) continue;
                store_pairs(is_int4, 4, words, s, to + 2 * line);
                store_pairs(is_int4, 20, words, s, to + 3 * line);
            }
        }
}

/* -------------------------------------------------------------------------------------- products */

/* y (+)= a block of rows times n chunks of a panel; `two`, which is constant where this is inlined: there are
 * lower rows. x: of the first chunk, others ldx bytes apart. */
INLINE void tile_block(const int two, const char* x, ptrdiff_t ldx, const char* w, int n, int add,
                       ahead* fetch, float* y, ptrdiff_t ldy) {
    const size_t stride = (size_t)ldy * sizeof *y;
    if (add) {
        SD_TILE_LOAD(UPPER_FIRST, y, stride);
        SD_TILE_LOAD(UPPER_SECOND, y + TILE_ROWS, stride);
    } else {
        _tile_zero(UPPER_FIRST);
        _tile_zero(UPPER_SECOND);
    }
    if (two && add) {
        SD_TILE_LOAD(LOWER_FIRST, y + TILE_ROWS * ldy, stride);
        SD_TILE_LOAD(LOWER_SECOND, y + TILE_ROWS * ldy + TILE_ROWS, stride);
    } else if (two) {
        _tile_zero(LOWER_FIRST);
        _tile_zero(LOWER_SECOND);
    }
    ahead now = *fetch; /* in registers: instructions that touch memory are between its uses */
    for (int i = 0; i < n; i++, x += ldx, w += CHUNK_BYTES) {
        request(&now);
        add_chunk(two, x, w);
    }
    *fetch = now;
    SD_TILE_STORE(UPPER_FIRST, y, stride);
    SD_TILE_STORE(UPPER_SECOND, y + TILE_ROWS, stride);
    if (two) {
        SD_TILE_STORE(LOWER_FIRST, y + TILE_ROWS * ldy, stride);
        SD_TILE_STORE(LOWER_SECOND, y + TILE_ROWS * ldy + TILE_ROWS, stride);
    }
}

/* The same for all rows. */
static void multiply(int n_rows, const char* x, const char* w, int n, int add, ahead* fetch, float* y,
                     ptrdiff_t ldy) {
    ptrdiff_t ldx = (ptrdiff_t)n_rows * TILE_BYTES;
    for (int first = 0, rows; first < n_rows; first += rows) {
        rows = n_rows - first < 2 * TILE_ROWS ? n_rows - first : 2 * TILE_ROWS;
        if (first == 0 || rows < 2 * TILE_ROWS) shape_for(rows);
        const char* from = x + (ptrdiff_t)first * TILE_BYTES;
        if (rows > TILE_ROWS)
            tile_block(1, from, ldx, w, n, add, fetch, y + first * ldy, ldy);
        else
            tile_block(0, from, ldx, w, n, add, fetch, y + first * ldy, ldy);
    }
}

/* Blocks of inputs of a part of a panel, which lies as bf16 in the first-level cache for all blocks of
 * rows. */
#define PART 8
/* With more bytes of rows than this the second-level cache of 2 MiB holds parts of them alone. */
#define MOST_ROW_BYTES ((size_t)5 << 18)

/* A part of a panel as chunks of bf16, missing inputs being zeros: itself or, made so, `made`. */
INLINE const char* part_in_bf16(const sd_format format, const char* part, size_t bytes, int n_blocks,
                                char* made) {
    if (format == SD_FORMAT_BF16) {
        size_t whole = (size_t)n_blocks * CHUNK_BYTES;
        if (bytes == whole) return part;
        memcpy(made, part, bytes);
        memset(made + bytes, 0, whole - bytes);
    } else {
        dequantise(format == SD_FORMAT_INT4, (const uint8_t*)part, n_blocks, made);
    }
    return made;
}

/* Part by part of each panel. Where rows are many, each part of all panels, so that what these parts are
 * multiplied with stays in the second-level cache. */
INLINE void multiply_panels(const sd_format format, int n_rows, const char* x, const char* panels,
                            int n_panels, int n_in, int near, float* y, ptrdiff_t ldy) {
    _Alignas(64) char made[PART * CHUNK_BYTES];
    const int n_blocks = (int)sd_blocks((size_t)n_in),
              row_blocks = (n_rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    const size_t panel_bytes = sd_panel_bytes(format, (size_t)n_in),
                 block_bytes = sd_panel_bytes(format, SD_BLOCK);
    const size_t row_bytes = (size_t)n_rows * (size_t)n_blocks * TILE_BYTES;
    const int together = row_bytes > MOST_ROW_BYTES ? n_panels : 1;
    for (int first = 0, end; first < n_panels; first = end) {
        end = first + together;
        for (int b = 0; b < n_blocks; b += PART) {
            int n = n_blocks - b < PART ? n_blocks - b : PART;
            size_t at = (size_t)b * block_bytes, whole = (size_t)n * block_bytes;
            size_t bytes = panel_bytes - at < whole ? panel_bytes - at : whole;
            for (int p = first; p < end; p++) {
                const char* part = panels + (size_t)p * panel_bytes + at;
                const char* next = p + 1 < end        ? part + panel_bytes
                                   : b + n < n_blocks ? panels + (size_t)first * panel_bytes + at + whole
                                                      : panels + (size_t)end * panel_bytes;
                int n_steps = n * row_blocks, n_lines = ((int)bytes / 64 + n_steps - 1) / n_steps;
                ahead fetch = {next, near ? next : next + bytes, n_lines};
                const char* w = part_in_bf16(format, part, bytes, n, made);
                multiply(n_rows, x + (ptrdiff_t)b * n_rows * TILE_BYTES, w, n, b > 0, &fetch,
                         y + (ptrdiff_t)p * SD_PANEL, ldy);
            }
        }
    }
}

#define DEFINE_TILES(name, format)                                                                       \
    void name(int n_rows, const void* x, const void* panels, int n_panels, int n_in, int near, float* y, \
              ptrdiff_t ldy) {                                                                           \
        multiply_panels(format, n_rows, x, panels, n_panels, n_in, near, y, ldy);                        \
    }
DEFINE_TILES(sdk_tiles_bf16_amx, SD_FORMAT_BF16)
DEFINE_TILES(sdk_tiles_int8_amx, SD_FORMAT_INT8)
DEFINE_TILES(sdk_tiles_int4_amx, SD_FORMAT_INT4)
#endif
