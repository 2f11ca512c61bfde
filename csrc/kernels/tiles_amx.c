#include "tiles_amx.h"

#if defined(__AMX_BF16__) && defined(__AVX512VBMI__)
#include <immintrin.h>
#include <string.h>

#include "parts.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

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

/* Lines [at, end) to prefetch while rows are multiplied, some with each chunk. */
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

/* ---------------------------------------------------------------------------- weights in codes */

/* Constants that convert bytes to 16 pairs of weights: each of 16 outputs has 4 bytes, two per pair. */
typedef struct spreading {
    /* [pair of an output][outputs 0 to 7, 8 to 15] source of each byte: the two codes of an output are
     * adjacent, each in the second byte of 32 bits */
    __m512i bytes[2][2];
    __m512 scale[2], offset[2]; /* [outputs 0 to 7, 8 to 15] of a block, each output's twice */
} spreading;

INLINE spreading spreading_of_bytes(void) {
    static const uint8_t from[16] = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29};
    spreading s;
    __m512i first = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void*)from)), 8);
    for (int pair = 0; pair < 2; pair++)
        for (int half = 0; half < 2; half++)
            s.bytes[pair][half] = _mm512_add_epi32(first, _mm512_set1_epi32((2 * pair + 32 * half) << 8));
    return s;
}

/* Load the f16 scales of 16 outputs. */
INLINE void spread_scales(const int is_int4, const uint8_t* packed, spreading* s) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 scales = _mm512_cvtph_ps(_mm256_loadu_si256((const void*)packed));
    for (int half = 0; half < 2; half++) {
        __m512i of_half = _mm512_add_epi32(twice, _mm512_set1_epi32(8 * half));
        s->scale[half] = _mm512_permutexvar_ps(of_half, scales);
        s->offset[half] = _mm512_mul_ps(s->scale[half], _mm512_set1_ps(-0x1p15f - (is_int4 ? 8.0f : 128.0f)));
    }
}

/* The weights of one pair for each output. A code put in the second byte of the float 2¹⁵ adds to it.
 * This float times a scale is exact, and so is `offset`, because a scale has 11 bits; their difference is
 * code · scale. */
INLINE void store_pairs(const spreading* s, const int pair, __m512i bytes, char* to) {
    const __m512i base = _mm512_castps_si512(_mm512_set1_ps(0x1p15f));
    __m512 weight[2];
    for (int half = 0; half < 2; half++) {
        const __mmask64 second = 0x2222222222222222;
        __m512i sum = _mm512_mask_permutexvar_epi8(base, second, s->bytes[pair][half], bytes);
        weight[half] = _mm512_fmadd_ps(_mm512_castsi512_ps(sum), s->scale[half], s->offset[half]);
    }
    _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
}

/* Convert blocks of a panel to chunks of a bf16 panel, and prefetch meanwhile. */
INLINE void dequantize(const int is_int4, const uint8_t* block, int n_blocks, ahead* fetch, char* chunk) {
    const int n_lines = SD_BLOCK / (is_int4 ? 8 : 4), n_pairs = is_int4 ? 4 : 2; /* of a line */
    const int line = 4 * SD_PANEL;                                               /* bytes, as of 32 pairs */
    const __m512i low = _mm512_set1_epi8(15);
    spreading s = spreading_of_bytes();
    for (int i = 0; i < n_blocks * 2; i++) {
        const int half = i % 2 * TILE_BYTES; /* of a line: 16 outputs */
        if (i > 0 && half == 0) block += n_lines * line + 2 * SD_PANEL;
        request(fetch);
        spread_scales(is_int4, block + n_lines * line + half / 2, &s);
        UNROLL for (int l = 0; l < n_lines; l++) {
            __m512i bytes = _mm512_loadu_si512(block + l * line + half);
            char* to = chunk + i / 2 * CHUNK_BYTES + l * n_pairs * line + half;
            if (is_int4) {
                __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
                bytes = _mm512_and_si512(bytes, low);
                store_pairs(&s, 0, high, to + 2 * line);
                store_pairs(&s, 1, high, to + 3 * line);
            }
            store_pairs(&s, 0, bytes, to);
            store_pairs(&s, 1, bytes, to + line);
        }
    }
}

/* The values of the first two codes in each of 16 words, one word per output, rounded to bf16, as 16
 * pairs. */
INLINE void round_pairs(const int offset, __m512i words, __m512 scale, __m512 minimum, char* to) {
    static const uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i byte = _mm512_set1_epi32(255), below = _mm512_set1_epi32(offset);
    __m512i codes[2] = {_mm512_and_si512(words, byte), _mm512_and_si512(_mm512_srli_epi32(words, 8), byte)};
    __m512 value[2];
    for (int i = 0; i < 2; i++) {
        __m512 code = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes[i], below));
        /* zero is +0 */
        value[i] = _mm512_add_ps(_mm512_fmadd_ps(code, scale, minimum), _mm512_setzero_ps());
    }
    __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(value[1], value[0]);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), rounded));
}

/* Convert blocks of a panel in a coded format to chunks of a bf16 panel. */
static void dequantize_coded(const sd_format format, const char* packed, int n_blocks, char* chunk) {
    const sd_coded coded = sd_coded_of(format);
    sd_unpacked part;
    sdk_unpack_avx512[format](packed, n_blocks, &part);
    for (int b = 0; b < n_blocks; b++)
        for (int l = 0; l < SD_BLOCK / 4; l++, chunk += 8 * SD_PANEL)
            for (int half = 0; half < 2; half++) {
                const int h = coded.n_halves == 2 && l >= SD_BLOCK / 8, lane = TILE_ROWS * half;
                __m512i words = _mm512_loadu_si512(part.codes[b][l][lane]);
                __m512 scale = _mm512_loadu_ps(part.scale[b][h] + lane), minimum = _mm512_setzero_ps();
                if (coded.has_minimum) minimum = _mm512_loadu_ps(part.minimum[b][h] + lane);
                char* to = chunk + TILE_BYTES * half;
                round_pairs(coded.offset, words, scale, minimum, to);
                round_pairs(coded.offset, _mm512_srli_epi32(words, 16), scale, minimum, to + 4 * SD_PANEL);
            }
}

/* -------------------------------------------------------------------------------------- products */

/* y (+)= a block of rows times n chunks of a panel. `two`, constant where this is inlined: the block has
 * lower rows. x: the first chunk; chunks are ldx bytes apart. */
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
    ahead now = *fetch; /* a copy that stays in registers across instructions that access memory */
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

/* Blocks of inputs in a part of a panel, which stays as bf16 in the first-level cache for all blocks of
 * rows. */
#define PART 8
_Static_assert(PART == SD_PART_BLOCKS, "parts that are dequantized together have one header");
/* Most bytes of rows that a second-level cache of 2 MiB holds whole. */
#define MOST_ROW_BYTES ((size_t)5 << 18)

/* Return a part of a panel as chunks of bf16, padded with zeros: the part itself, or a copy in `made`. */
INLINE const char* part_in_bf16(const sd_format format, const char* part, size_t bytes, int n_blocks,
                                ahead* fetch, char* made) {
    if (format == SD_FORMAT_BF16) {
        size_t whole = (size_t)n_blocks * CHUNK_BYTES;
        if (bytes == whole) return part;
        memcpy(made, part, bytes);
        memset(made + bytes, 0, whole - bytes);
    } else if (format >= SD_N_OWN_FORMATS) {
        dequantize_coded(format, part, n_blocks, made);
    } else {
        dequantize(format == SD_FORMAT_INT4, (const uint8_t*)part, n_blocks, fetch, made);
    }
    return made;
}

/* Multiply part by part of each panel. With many rows, multiply one part of all panels before the next part:
 * the matching inputs of the rows then stay in the second-level cache. */
INLINE void multiply_panels(const sd_format format, int n_rows, const char* x, const char* panels,
                            int n_panels, int n_in, float* y, ptrdiff_t ldy) {
    _Alignas(64) char made[PART * CHUNK_BYTES];
    const int n_blocks = (int)sd_blocks((size_t)n_in),
              row_blocks = (n_rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    const size_t panel_bytes = sd_panel_bytes(format, (size_t)n_in);
    const size_t row_bytes = (size_t)n_rows * (size_t)n_blocks * TILE_BYTES;
    const int together = row_bytes > MOST_ROW_BYTES ? n_panels : 1;
    for (int first = 0, end; first < n_panels; first = end) {
        end = first + together;
        for (int b = 0; b < n_blocks; b += PART) {
            int n = n_blocks - b < PART ? n_blocks - b : PART;
            size_t at = sd_panel_bytes(format, (size_t)b * SD_BLOCK);
            size_t whole = sd_panel_bytes(format, (size_t)n * SD_BLOCK);
            size_t bytes = panel_bytes - at < whole ? panel_bytes - at : whole;
            for (int p = first; p < end; p++) {
                const char* part = panels + (size_t)p * panel_bytes + at;
                const char* next = p + 1 < end        ? part + panel_bytes
                                   : b + n < n_blocks ? panels + (size_t)first * panel_bytes + at + whole
                                                      : panels + (size_t)end * panel_bytes;
                int n_requests = n * (row_blocks + (format == SD_FORMAT_BF16 ? 0 : 2)),
                    n_lines = ((int)bytes / 64 + n_requests - 1) / n_requests;
                ahead fetch = {next, next + bytes, n_lines};
                const char* w = part_in_bf16(format, part, bytes, n, &fetch, made);
                multiply(n_rows, x + (ptrdiff_t)b * n_rows * TILE_BYTES, w, n, b > 0, &fetch,
                         y + (ptrdiff_t)p * SD_PANEL, ldy);
            }
        }
    }
}

#define DEFINE_TILES(name, format)                                                             \
    void name(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y, \
              ptrdiff_t ldy) {                                                                 \
        multiply_panels(format, n_rows, x, panels, n_panels, n_in, y, ldy);                    \
    }
DEFINE_TILES(sdk_tiles_bf16_amx, SD_FORMAT_BF16)
DEFINE_TILES(sdk_tiles_int8_amx, SD_FORMAT_INT8)
DEFINE_TILES(sdk_tiles_int4_amx, SD_FORMAT_INT4)
#define DEFINE_CODED_TILES(name, format) static DEFINE_TILES(name, format)
SD_CODED_FORMATS(DEFINE_CODED_TILES)
#define CODED_ENTRY(name, format) name,
const sd_tiles_kernel sdk_tiles_coded_amx[SD_N_CODED_FORMATS] = {SD_CODED_FORMATS(CODED_ENTRY)};

/* Multiply bf16 panels with n_rows of n_all rows, in blocks of 32 or one smaller block. Each panel is
 * multiplied with all blocks before the next panel. */
static void add_panels(int n_all, int n_rows, int n_panels, const char* x, const char* panels, int n_in,
                       int add, float* y, ptrdiff_t ldy, ptrdiff_t step) {
    _Alignas(64) char made[PART * CHUNK_BYTES];
    const int n_blocks = (int)sd_blocks((size_t)n_in);
    const size_t panel_bytes = sd_panel_bytes(SD_FORMAT_BF16, (size_t)n_in);
    const ptrdiff_t ldx = (ptrdiff_t)n_all * TILE_BYTES;
    if (n_rows == 0) return;
    shape_for(n_rows < 2 * TILE_ROWS ? n_rows : 2 * TILE_ROWS);
    for (int p = 0; p < n_panels; p++, panels += panel_bytes, y += step)
        for (int b = 0; b < n_blocks; b += PART) {
            int n = n_blocks - b < PART ? n_blocks - b : PART;
            size_t at = (size_t)b * CHUNK_BYTES, whole = (size_t)n * CHUNK_BYTES;
            size_t bytes = panel_bytes - at < whole ? panel_bytes - at : whole;
            ahead none = {0};
            const char* w = part_in_bf16(SD_FORMAT_BF16, panels + at, bytes, n, &none, made);
            const char* from = x + b * ldx;
            for (int m = 0; m < n_rows; m += 2 * TILE_ROWS, from += 2 * TILE_ROWS * TILE_BYTES)
                if (n_rows - m > TILE_ROWS)
                    tile_block(1, from, ldx, w, n, add || b > 0, &none, y + m * ldy, ldy);
                else
                    tile_block(0, from, ldx, w, n, add || b > 0, &none, y + m * ldy, ldy);
        }
}

void sdk_add_tiles_amx(int n_rows, int n_panels, const void* x, const void* panels, int n_in, int add,
                       float* y, ptrdiff_t ldy, ptrdiff_t step) {
    int whole = n_rows / (2 * TILE_ROWS) * (2 * TILE_ROWS);
    add_panels(n_rows, whole, n_panels, x, panels, n_in, add, y, ldy, step);
    add_panels(n_rows, n_rows - whole, n_panels, (const char*)x + (ptrdiff_t)whole * TILE_BYTES, panels, n_in,
               add, y + whole * ldy, ldy, step);
}
#endif
