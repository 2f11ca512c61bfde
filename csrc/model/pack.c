#include "pack.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "blocks.h"
#include "half.h"
#include "interrupt.h"

/* Elements that are read together: a block, and a cache line or two of the source. */
#define TILE SD_BLOCK

/* Numbers that lie side by side. */
static void read_along(const void* from, sd_number number, int n, float* out) {
    const uint16_t* halves = from;
    switch (number) {
    case SD_F32: memcpy(out, from, (size_t)n * sizeof *out); break;
    case SD_F16:
        for (int i = 0; i < n; i++) out[i] = sd_float_from_f16(halves[i]);
        break;
    case SD_BF16:
        for (int i = 0; i < n; i++) out[i] = sd_float_from_bf16(halves[i]);
        break;
    default: break;
    }
}

void sd_source_read(const sd_source* source, int row, int col, int n, float* out) {
    const char* at = (const char*)source->data + row * source->row_stride + col * source->col_stride;
    if (sd_has_blocks(source->number)) {
        sd_blocks_read(source->number, (const uint8_t*)source->data + row * source->row_stride, col, n, out);
        return;
    }
    ptrdiff_t size = source->number == SD_F32 ? 4 : 2;
    if (source->col_stride == size && (uintptr_t)at % (uintptr_t)size == 0) {
        read_along(at, source->number, n, out);
        return;
    }
    for (int i = 0; i < n; i++, at += source->col_stride) {
        uint32_t number = 0; /* aligned for each kind */
        memcpy(&number, at, (size_t)size);
        read_along(&number, source->number, 1, &out[i]);
    }
}

/* Weights that are packed between two looks for an interruption: some milliseconds. */
#define PIECE (1 << 21)

typedef struct job {
    sd_matrix* matrix;
    const sd_source* source;
    int n_rows;
    int first, end; /* panels of the source's rows that are packed now */
    sd_rows rows;
    atomic_long first_bad; /* r · n_in + k of the first value that cannot be packed; LONG_MAX: none */
} job;

static void report(job* j, long bad) {
    long before = atomic_load(&j->first_bad);
    while (bad < before && !atomic_compare_exchange_weak(&j->first_bad, &before, bad)) continue;
}

static int is_finite(float x) { return (sd_bits_of_float(x) & 0x7f800000u) != 0x7f800000u; }

/* ------------------------------------------------------------------ one tile of up to 32 · 32 */

/* tile[j][i] is row j, input k + i; n inputs (even, but at the end of the row). */
typedef float tile_rows[SD_PANEL][TILE];

static void put_f32(float* panel, tile_rows tile, int k, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < SD_PANEL; j++) panel[(size_t)(k + i) * SD_PANEL + j] = tile[j][i];
}

/* Returns the first row with a value that rounds to infinity, else -1. */
static int put_bf16(uint16_t* panel, tile_rows tile, int k, int n) {
    int bad = -1;
    for (int j = SD_PANEL - 1; j >= 0; j--) {
        for (int i = 0; i < n; i += 2) {
            uint16_t first = sd_bf16_from_float(tile[j][i]);
            uint16_t second = i + 1 < n ? sd_bf16_from_float(tile[j][i + 1]) : 0;
            uint16_t* pair = panel + ((size_t)(k + i) / 2 * SD_PANEL + (size_t)j) * 2;
            pair[0] = first, pair[1] = second;
            if ((first & 0x7f80) == 0x7f80 || (second & 0x7f80) == 0x7f80) bad = j;
        }
    }
    return bad;
}

/* q = x / scale to nearest even, 0 for scale 0. Adding 1.5 · 2²³ leaves the integer in the low bits. */
static void quantise(const float* x, float scale, int lowest, int highest, int* q) {
    float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    for (int i = 0; i < SD_BLOCK; i++) {
        float v = x[i] * inverse;
        v = v<(float)lowest ? (float)lowest : v>(float) highest ? (float)highest : v;
        q[i] = (int)(sd_bits_of_float(v + 12582912.0f) - 0x4b400000u);
    }
}

static float largest_magnitude(const float* x) {
    int32_t largest = 0; /* as whole numbers with sign, which vectors compare in every set */
    for (int i = 0; i < SD_BLOCK; i++) {
        int32_t bits = (int32_t)(sd_bits_of_float(x[i]) & 0x7fffffffu);
        largest = bits > largest ? bits : largest;
    }
    return sd_float_from_bits((uint32_t)largest);
}

/* Four bytes at once. */
static void put_word(uint8_t* at, const int bytes[4]) {
    const uint8_t word[4] = {(uint8_t)bytes[0], (uint8_t)bytes[1], (uint8_t)bytes[2], (uint8_t)bytes[3]};
    memcpy(at, word, sizeof word);
}

/* Returns the first row whose scale is infinite, else -1. */
static int put_int8(uint8_t* block, tile_rows tile) {
    uint16_t* scales = (uint16_t*)(void*)(block + SD_BLOCK * SD_PANEL);
    for (int j = 0; j < SD_PANEL; j++) {
        scales[j] = sd_f16_from_float(largest_magnitude(tile[j]) / 127.0f);
        float scale = sd_float_from_f16(scales[j]);
        if (!is_finite(scale)) return j;
        int q[SD_BLOCK];
        quantise(tile[j], scale, -127, 127, q);
        for (int i = 0; i < SD_BLOCK; i++) q[i] += 128;
        for (int i = 0; i < SD_BLOCK; i += 4) put_word(block + i * SD_PANEL + 4 * j, q + i);
    }
    return -1;
}

static int put_int4(uint8_t* block, tile_rows tile) {
    uint16_t* scales = (uint16_t*)(void*)(block + SD_BLOCK * SD_PANEL / 2);
    for (int j = 0; j < SD_PANEL; j++) {
        /* −8 is the code that reaches furthest: the largest element, with its sign, gets it */
        float largest = largest_magnitude(tile[j]), extreme = 0.0f;
        for (int i = SD_BLOCK - 1; i >= 0; i--)
            if (fabsf(tile[j][i]) == largest) extreme = tile[j][i];
        scales[j] = sd_f16_from_float(extreme / -8.0f);
        float scale = sd_float_from_f16(scales[j]);
        if (!is_finite(scale)) return j;
        int q[SD_BLOCK];
        quantise(tile[j], scale, -8, 7, q);
        for (int i = 0; i < SD_BLOCK; i++) q[i] += 8;
        for (int s = 0; s < 4; s++) {
            int both[4];
            for (int i = 0; i < 4; i++) both[i] = q[8 * s + i] | q[8 * s + 4 + i] << 4;
            put_word(block + 4 * SD_PANEL * s + 4 * j, both);
        }
    }
    return -1;
}

/* Pack inputs k … k + n of the tile into the panel; the first row that cannot be packed, or -1. */
static int put_tile(sd_format format, char* panel, tile_rows tile, int k, int n) {
    switch (format) {
    case SD_FORMAT_F32: put_f32((float*)(void*)panel, tile, k, n); return -1;
    case SD_FORMAT_BF16: return put_bf16((uint16_t*)(void*)panel, tile, k, n);
    case SD_FORMAT_INT8:
        return put_int8((uint8_t*)panel + (size_t)(k / SD_BLOCK) * SD_INT8_BLOCK_BYTES, tile);
    case SD_FORMAT_INT4:
        return put_int4((uint8_t*)panel + (size_t)(k / SD_BLOCK) * SD_INT4_BLOCK_BYTES, tile);
    default: break;
    }
    return -1;
}

/* Read n inputs from input k of n_rows rows from row r, the rest of the tile zero. */
static void read_tile(const sd_source* source, int r, int n_rows, int k, int n, tile_rows tile) {
    if (n < TILE || n_rows < SD_PANEL) memset(tile, 0, sizeof(tile_rows));
    ptrdiff_t size = source->number == SD_F32 ? 4 : 2;
    if (!sd_has_blocks(source->number) && source->row_stride == size &&
        source->col_stride != size) { /* transposed: read along the rows */
        const sd_source turned = {source->data, source->number, source->col_stride, source->row_stride};
        float line[SD_PANEL];
        for (int i = 0; i < n; i++) {
            sd_source_read(&turned, k + i, r, n_rows, line);
            for (int j = 0; j < n_rows; j++) tile[j][i] = line[j];
        }
        return;
    }
    for (int j = 0; j < n_rows; j++) sd_source_read(source, r + j, k, n, tile[j]);
}

static void pack_by_tiles(job* j, const sd_place* panel, int r, int n_rows) {
    const sd_matrix* matrix = j->matrix;
    tile_rows tile;
    for (int k = 0; k < matrix->n_in; k += TILE) {
        int n = matrix->n_in - k < TILE ? matrix->n_in - k : TILE;
        read_tile(j->source, r, n_rows, k, n, tile);
        for (int row = 0; row < n_rows; row++) {
            int bad = 0;
            for (int i = 0; i < TILE; i++) bad |= !is_finite(tile[row][i]);
            for (int i = 0; bad && i < n; i++) {
                if (is_finite(tile[row][i])) continue;
                report(j, (long)(r + row) * matrix->n_in + k + i);
                return;
            }
        }
        int bad_row = put_tile(panel->format, panel->at, tile, k, n);
        if (bad_row >= 0) {
            report(j, (long)(r + bad_row) * matrix->n_in + k);
            return;
        }
    }
}

/* ------------------------------------------------------- copying, where the number stays the same */

/* Rows of 32-bit words (f32, or pairs of bf16), contiguous: a transposition at the speed of memory. */
static void pack_by_words(job* j, char* panel, int r, int n_rows) {
    enum { LINE = 64 }; /* words that are read in a row: four cache lines of the source, 8 KiB of the panel */
    const sd_source* source = j->source;
    int is_f32 = source->number == SD_F32, n_words = is_f32 ? j->matrix->n_in : j->matrix->n_in / 2;
    /* the exponents that mean NaN or infinity, of a word or of its halves */
    uint32_t high = 0x7f800000u, low = is_f32 ? 0 : 0x7f80u;
    uint32_t* to = (uint32_t*)(void*)panel;
    for (int k = 0; k < n_words; k += LINE) {
        int n = n_words - k < LINE ? n_words - k : LINE;
        for (int row = 0; row < n_rows; row++) {
            const char* from = (const char*)source->data + (r + row) * source->row_stride + (size_t)k * 4;
            uint32_t words[LINE];
            int bad = 0;
            memcpy(words, from, (size_t)n * sizeof *words);
            for (int i = 0; i < n; i++) {
                bad |= ((words[i] & high) == high) | (low && (words[i] & low) == low);
                to[(size_t)(k + i) * SD_PANEL + row] = words[i];
            }
            if (!bad) continue;
            float values[2 * LINE];
            int n_values = is_f32 ? n : 2 * n, first = is_f32 ? k : 2 * k;
            sd_source_read(source, r + row, first, n_values, values);
            for (int i = 0; i < n_values; i++)
                if (!is_finite(values[i])) report(j, (long)(r + row) * j->matrix->n_in + first + i);
        }
    }
}

/* Blocks of a format of their own, as they are. */
static void pack_blocks(job* j, const sd_place* panel, int r, int n_rows) {
    const sd_source* source = j->source;
    for (int row = 0; row < n_rows; row++) {
        const uint8_t* from = (const uint8_t*)source->data + (r + row) * source->row_stride;
        for (int b = 0; b < j->matrix->n_in / SD_BLOCK; b++) {
            if (!sd_block_is_finite(source->number, from, b)) {
                report(j, (long)(r + row) * j->matrix->n_in + b * SD_BLOCK);
                return;
            }
            sd_block_put(source->number, from, b, panel->at, row);
        }
    }
}

static int same_words(sd_format format, int n_in, const sd_source* source) {
    if (source->number == SD_F32) return format == SD_FORMAT_F32 && source->col_stride == 4;
    return source->number == SD_BF16 && format == SD_FORMAT_BF16 && source->col_stride == 2 && n_in % 2 == 0;
}

/* Rows r … r + n_rows of the source to the rows of the plain matrix from `row` on. */
static void copy_plain(job* j, int r, int row, int n_rows) {
    int n_in = j->matrix->n_in;
    for (int i = 0; i < n_rows; i++) {
        float* to = j->matrix->plain + (ptrdiff_t)(row + i) * n_in;
        sd_source_read(j->source, r + i, 0, n_in, to);
        for (int k = 0; k < n_in; k++)
            if (!is_finite(to[k])) report(j, (long)(r + i) * n_in + k);
    }
}

static void pack_panels(void* argument, int thread, int first, int end) {
    (void)thread;
    job* j = argument;
    for (int group = j->first + first; group < j->first + end; group++) {
        int r = group * SD_PANEL, n_rows = j->n_rows - r < SD_PANEL ? j->n_rows - r : SD_PANEL;
        int row = j->rows.first + r * j->rows.step;
        assert(row % SD_PANEL == 0 && row + n_rows <= j->matrix->n_out);
        if (j->matrix->plain) copy_plain(j, r, row, n_rows);
        if (j->matrix->panels == NULL) continue;
        const sd_place* panel = &j->matrix->panels[row / SD_PANEL];
        if (same_words(panel->format, j->matrix->n_in, j->source))
            pack_by_words(j, panel->at, r, n_rows);
        else if (sd_has_blocks(j->source->number) && sd_block_format(j->source->number) == panel->format)
            pack_blocks(j, panel, r, n_rows);
        else
            pack_by_tiles(j, panel, r, n_rows);
    }
}

sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name, int n_threads) {
    job j = {.matrix = matrix, .source = source, .n_rows = n_rows, .rows = rows};
    atomic_init(&j.first_bad, LONG_MAX);
    int n_panels = sd_matrix_panels(n_rows), piece = PIECE / SD_PANEL / matrix->n_in + n_threads;
    for (; j.first < n_panels; j.first = j.end) {
        sd_status status = sd_interrupted();
        if (status != SD_OK) return status;
        j.end = n_panels - j.first < piece ? n_panels : j.first + piece;
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, j.end - j.first, 1, pack_panels, &j);
        sd_team_close(&team);
    }
    long bad = atomic_load(&j.first_bad);
    if (bad == LONG_MAX) return SD_OK;
    int r = (int)(bad / matrix->n_in), k = (int)(bad % matrix->n_in);
    float value;
    for (sd_source_read(source, r, k, 1, &value); is_finite(value) && k % SD_BLOCK < SD_BLOCK - 1 &&
                                                  k + 1 < matrix->n_in && sd_has_blocks(source->number);)
        sd_source_read(source, r, ++k, 1, &value);
    if (!is_finite(value))
        return sd_fail(SD_ERR_NOT_FINITE, "tensor %s: element [%d, %d] is %g, expected a finite number", name,
                       r, k, (double)value);
    const char* limits[SD_N_OWN_FORMATS] = {"", "3.39e38", "8.32e6", "5.24e5"};
    sd_format format = matrix->panels[rows.first / SD_PANEL].format; /* of all panels of the source */
    return sd_fail(SD_ERR_VALUE,
                   "tensor %s: the block at [%d, %d] has a value too large for %s, expected below %s", name,
                   r, k, sd_format_names[format], limits[format]);
}
