#include "tiles_amx.h"

#if defined(__AMX_BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "tile_memory.h"

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

/* A panel in chunks of 32 inputs: n whole ones and, if inputs are missing, a last one with zeros in their
 * place; NULL: there is none. */
typedef struct chunks {
    const char *whole, *last;
    int n;
} chunks;

static inline __attribute__((always_inline)) void add_chunk(const int two, const char* x, const char* w) {
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

/* y = a block of rows times a panel; `two`, which is constant where this is inlined: there are lower rows. x:
 * of the first chunk, others ldx bytes apart. */
static inline __attribute__((always_inline)) void tile_block(const int two, const char* x, ptrdiff_t ldx,
                                                             const chunks* panel, float* y, ptrdiff_t ldy) {
    const size_t stride = (size_t)ldy * sizeof *y;
    _tile_zero(UPPER_FIRST);
    _tile_zero(UPPER_SECOND);
    if (two) {
        _tile_zero(LOWER_FIRST);
        _tile_zero(LOWER_SECOND);
    }
    const char* w = panel->whole;
    for (int i = 0; i < panel->n; i++, x += ldx, w += CHUNK_BYTES) add_chunk(two, x, w);
    if (panel->last) add_chunk(two, x, panel->last);
    SD_TILE_STORE(UPPER_FIRST, y, stride);
    SD_TILE_STORE(UPPER_SECOND, y + TILE_ROWS, stride);
    if (two) {
        SD_TILE_STORE(LOWER_FIRST, y + TILE_ROWS * ldy, stride);
        SD_TILE_STORE(LOWER_SECOND, y + TILE_ROWS * ldy + TILE_ROWS, stride);
    }
}

void sdk_panel_tiles_amx(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                         ptrdiff_t ldy) {
    (void)near;
    _Alignas(64) char last[CHUNK_BYTES];
    chunks p = {.whole = panel, .n = n_in / SD_BLOCK};
    size_t pairs = (size_t)(n_in % SD_BLOCK + 1) / 2;
    if (pairs > 0) {
        memcpy(last, p.whole + (ptrdiff_t)p.n * CHUNK_BYTES, pairs * SD_PANEL * 4);
        memset(last + pairs * SD_PANEL * 4, 0, CHUNK_BYTES - pairs * SD_PANEL * 4);
        p.last = last;
    }
    ptrdiff_t ldx = (ptrdiff_t)n_rows * TILE_BYTES;
    for (int first = 0, rows; first < n_rows; first += rows) {
        rows = n_rows - first < 2 * TILE_ROWS ? n_rows - first : 2 * TILE_ROWS;
        if (first == 0 || rows < 2 * TILE_ROWS) shape_for(rows);
        const char* from = (const char*)x + (ptrdiff_t)first * TILE_BYTES;
        if (rows > TILE_ROWS)
            tile_block(1, from, ldx, &p, y + first * ldy, ldy);
        else
            tile_block(0, from, ldx, &p, y + first * ldy, ldy);
    }
}
#endif
