#include "pack.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "blocks.h"
#include "half.h"
#include "interrupt.h"
#include "system.h"

/* Read contiguous numbers. */
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
        uint32_t number = 0; /* aligned for every type */
        memcpy(&number, at, (size_t)size);
        read_along(&number, source->number, 1, &out[i]);
    }
}

int sd_source_rows(const sd_source* source, int first, int n, void* scratch, sd_source* rows) {
    *rows = *source;
    if (source->data != NULL) {
        rows->data = (const char*)source->data + first * source->row_stride;
        return 0;
    }
    rows->data = scratch;
    const int64_t* order = source->file.order;
    for (int r = 0, together; r < n; r += together) { /* consecutive rows of the file */
        int64_t row = order ? order[first + r] : first + r;
        together = order ? 1 : n;
        while (order && r + together < n && order[first + r + together] == row + together) together++;
        int error =
            sd_file_read(source->file.descriptor, source->file.start + row * source->row_stride,
                         (size_t)(together * source->row_stride), (char*)scratch + r * source->row_stride);
        if (error != 0) return error;
    }
    return 0;
}

size_t sd_source_scratch(const sd_source* source, int n) {
    return source->data != NULL ? 0 : (size_t)n * (size_t)source->row_stride;
}

sd_status sd_source_fail(const char* name, int error) {
    SD_FAIL_IF(error == SD_FILE_ENDS, SD_ERR_VALUE,
               "tensor %s: the file ends before its data, expected the size it had when opened (is another "
               "program writing it?)",
               name);
    return sd_fail(SD_ERR_VALUE, "tensor %s: its file cannot be read: %s", name, strerror(error));
}

sd_status sd_source_changed(const char* name) {
    return sd_fail(
        SD_ERR_VALUE,
        "tensor %s: its numbers changed while they were read (is another program writing its file?)", name);
}

/* Elements read together: a block, and a cache line or two of the source. */
#define TILE SD_BLOCK
/* Bytes of a row to prefetch ahead. */
#define AHEAD 512

/* Every format takes blocks whose numbers are all below this. */
#define TOO_SMALL 5e5f

/* Weights packed between two checks for an interruption: some milliseconds. */
#define PIECE (1 << 21)

typedef struct job {
    sd_matrix* matrix;
    const sd_source* source;
    int n_rows;
    int first, end; /* panels of the source's rows being packed */
    sd_rows rows;
    char* scratch;         /* [n_threads, SD_PANEL rows] of a source in a file; owned */
    atomic_int error;      /* error of reading the source; 0: none */
    atomic_long first_bad; /* r · n_in + k of the first value that cannot be packed; LONG_MAX: none */
} job;

static void report(job* j, long bad) {
    long before = atomic_load(&j->first_bad);
    while (bad < before && !atomic_compare_exchange_weak(&j->first_bad, &before, bad)) continue;
}

static int is_finite(float x) { return (sd_bits_of_float(x) & 0x7f800000u) != 0x7f800000u; }

/* rows[j][i] and columns[i][j] are row j, input k + i; n inputs (even, except at the end of the row). Numbers
 * are packed by columns: outputs are adjacent in a panel, and several are computed at once. */
typedef float tile_rows[SD_PANEL][TILE];
typedef float tile_columns[TILE][SD_PANEL];

static void turn(tile_rows rows, tile_columns columns) {
    for (int j = 0; j < SD_PANEL; j += 4) {
        for (int i = 0; i < TILE; i += 4) {
            const void* const four[4] = {&rows[j][i], &rows[j + 1][i], &rows[j + 2][i], &rows[j + 3][i]};
            sd_transpose_words(four, &columns[i][j]);
        }
    }
}

static int has_wild(tile_columns columns) {
    int32_t most = 0; /* as signed integers, which every instruction set compares in vectors */
    for (int i = 0; i < TILE; i++) {
        for (int j = 0; j < SD_PANEL; j++) {
            int32_t bits = (int32_t)(sd_bits_of_float(columns[i][j]) & 0x7fffffffu);
            most = bits > most ? bits : most;
        }
    }
    return most >= 0x7f800000;
}

static int put_f32(float* panel, tile_columns columns, int k, int n) {
    memcpy(panel + (size_t)k * SD_PANEL, columns, (size_t)n * sizeof columns[0]);
    return has_wild(columns) ? 0 : -1;
}

static int put_bf16(uint16_t* panel, tile_columns columns, int k, int n) {
    uint32_t* pairs = (uint32_t*)(void*)panel + (size_t)k / 2 * SD_PANEL;
    uint32_t wild[SD_PANEL] = {0};
    for (int i = 0; i < n; i += 2, pairs += SD_PANEL) {
        for (int j = 0; j < SD_PANEL; j++) {
            uint32_t first = sd_bf16_from_float(columns[i][j]),
                     second = sd_bf16_from_float(columns[i + 1][j]);
            wild[j] |= ((first & 0x7f80) == 0x7f80) | ((second & 0x7f80) == 0x7f80);
            pairs[j] = first | second << 16;
        }
    }
    for (int j = 0; j < SD_PANEL; j++)
        if (wild[j]) return j;
    return has_wild(columns) ? 0 : -1;
}

/* Pack inputs k … k + n of the tile into the panel. Returns -1, or a row if one cannot be packed. */
static int put_tile(sd_format format, char* panel, tile_columns columns, int k, int n) {
    switch (format) {
    case SD_FORMAT_F32: return put_f32((float*)(void*)panel, columns, k, n);
    case SD_FORMAT_BF16: return put_bf16((uint16_t*)(void*)panel, columns, k, n);
    case SD_FORMAT_INT8:
        return sd_kernels_get()->quantize_int8(
            columns, (uint8_t*)panel + (size_t)(k / SD_BLOCK) * SD_INT8_BLOCK_BYTES);
    case SD_FORMAT_INT4:
        return sd_kernels_get()->quantize_int4(
            columns, (uint8_t*)panel + (size_t)(k / SD_BLOCK) * SD_INT4_BLOCK_BYTES);
    default: break;
    }
    return -1;
}

/* Read n inputs from input k on of n_rows rows; the rest of the tile is zero. */
static void read_tile(const sd_source* source, int n_rows, int k, int n, tile_rows tile) {
    if (n < TILE || n_rows < SD_PANEL) memset(tile, 0, sizeof(tile_rows));
    ptrdiff_t size = source->number == SD_F32 ? 4 : 2;
    if (!sd_has_blocks(source->number) && source->row_stride == size &&
        source->col_stride != size) { /* transposed: read along the rows */
        const sd_source turned = SD_MAKE(sd_source, .data = source->data, .number = source->number,
                                         .row_stride = source->col_stride, .col_stride = source->row_stride);
        float line[SD_PANEL];
        for (int i = 0; i < n; i++) {
            sd_source_read(&turned, k + i, 0, n_rows, line);
            for (int j = 0; j < n_rows; j++) tile[j][i] = line[j];
        }
        return;
    }
    for (int j = 0; j < n_rows; j++) {
        const char* at = (const char*)source->data + j * source->row_stride + k * source->col_stride;
        __builtin_prefetch(at + AHEAD); /* hardware prefetchers follow fewer streams than there are rows */
        sd_source_read(source, j, k, n, tile[j]);
    }
}

/* Report a tile's first non-finite value, else the block of a row that cannot be packed. */
static void report_tile(job* j, tile_rows rows, int r, int k, int bad_row) {
    for (int row = 0; row < SD_PANEL; row++) {
        for (int i = 0; i < TILE; i++) {
            if (is_finite(rows[row][i])) continue;
            report(j, (long)(r + row) * j->matrix->n_in + k + i);
            return;
        }
    }
    report(j, (long)(r + bad_row) * j->matrix->n_in + k);
}

/* Pack n_rows rows, in memory, of the source from row r on; so do the functions below. */
static void pack_by_tiles(job* j, const sd_source* source, const sd_panel* panel, int r, int n_rows) {
    tile_rows rows;
    tile_columns columns;
    int n_in = j->matrix->n_in;
    for (int k = 0; k < n_in; k += TILE) {
        int n = n_in - k < TILE ? n_in - k : TILE;
        read_tile(source, n_rows, k, n, rows);
        turn(rows, columns);
        int bad_row = put_tile(panel->format, panel->at, columns, k, n);
        if (bad_row < 0) continue;
        report_tile(j, rows, r, k, bad_row);
        return;
    }
}

/* Pack contiguous rows of 32-bit words (f32, or pairs of bf16): a transposition at the speed of memory. */
static void pack_by_words(job* j, const sd_source* source, char* panel, int r, int n_rows) {
    enum { LINE = 64 }; /* words read along a row: four cache lines of the source, 8 KiB of the panel */
    int is_f32 = source->number == SD_F32, n_words = is_f32 ? j->matrix->n_in : j->matrix->n_in / 2;
    /* the exponents of NaN and infinity, in a word or in its halves */
    uint32_t high = 0x7f800000u, low = is_f32 ? 0 : 0x7f80u;
    uint32_t* to = (uint32_t*)(void*)panel;
    for (int k = 0; k < n_words; k += LINE) {
        int n = n_words - k < LINE ? n_words - k : LINE;
        for (int row = 0; row < n_rows; row++) {
            const char* from = (const char*)source->data + row * source->row_stride + (size_t)k * 4;
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
            sd_source_read(source, row, first, n_values, values);
            for (int i = 0; i < n_values; i++)
                if (!is_finite(values[i])) report(j, (long)(r + row) * j->matrix->n_in + first + i);
        }
    }
}

static void pack_blocks(job* j, const sd_source* source, const sd_panel* panel, int r, int n_rows) {
    const uint8_t* rows = source->data;
    const int size = sd_number_block(source->number);
    for (int block = 0; block < j->matrix->n_in / size; block++) {
        int bad = sd_blocks_put(source->number, rows, source->row_stride, n_rows, block, panel->at);
        if (bad < 0) continue;
        int b = block * (size / SD_BLOCK);
        while (sd_block_is_finite(source->number, rows + bad * source->row_stride, b)) b++;
        report(j, (long)(r + bad) * j->matrix->n_in + b * SD_BLOCK);
    }
}

static int same_words(sd_format format, int n_in, const sd_source* source) {
    if (source->number == SD_F32) return format == SD_FORMAT_F32 && source->col_stride == 4;
    return source->number == SD_BF16 && format == SD_FORMAT_BF16 && source->col_stride == 2 && n_in % 2 == 0;
}

static void copy_plain(job* j, const sd_source* source, int r, int row, int n_rows) {
    int n_in = j->matrix->n_in;
    for (int i = 0; i < n_rows; i++) {
        float* to = j->matrix->plain + (ptrdiff_t)(row + i) * n_in;
        sd_source_read(source, i, 0, n_in, to);
        for (int k = 0; k < n_in; k++)
            if (!is_finite(to[k])) report(j, (long)(r + i) * n_in + k);
    }
}

static void pack_panels(void* argument, int thread, int first, int end) {
    job* j = argument;
    char* scratch = j->scratch ? j->scratch + (size_t)thread * sd_source_scratch(j->source, SD_PANEL) : NULL;
    for (int group = j->first + first; group < j->first + end; group++) {
        int r = group * SD_PANEL, n_rows = j->n_rows - r < SD_PANEL ? j->n_rows - r : SD_PANEL;
        int row = j->rows.first + r * j->rows.step;
        assert(row % SD_PANEL == 0 && row + n_rows <= j->matrix->n_out);
        sd_source source;
        int error = sd_source_rows(j->source, r, n_rows, scratch, &source);
        if (error != 0) {
            atomic_store(&j->error, error);
            return;
        }
        if (j->matrix->plain) copy_plain(j, &source, r, row, n_rows);
        if (j->matrix->panels == NULL) continue;
        const sd_panel* panel = &j->matrix->panels[row / SD_PANEL];
        if (same_words(panel->format, j->matrix->n_in, j->source))
            pack_by_words(j, &source, panel->at, r, n_rows);
        else if (sd_has_blocks(j->source->number) && sd_block_format(j->source->number) == panel->format)
            pack_blocks(j, &source, panel, r, n_rows);
        else
            pack_by_tiles(j, &source, panel, r, n_rows);
    }
}

static sd_status fail_at(const job* j, long bad, const char* name) {
    int r = (int)(bad / j->matrix->n_in), k = (int)(bad % j->matrix->n_in);
    sd_source row;
    int error = sd_source_rows(j->source, r, 1, j->scratch, &row);
    if (error != 0) return sd_source_fail(name, error);
    float most = 0.0f;
    for (int at = k; at < j->matrix->n_in && at < k - k % SD_BLOCK + SD_BLOCK; at++) {
        float value;
        sd_source_read(&row, 0, at, 1, &value);
        SD_FAIL_IF(!is_finite(value), SD_ERR_NOT_FINITE,
                   "tensor %s: element [%d, %d] is %g, expected a finite number", name, r, at, (double)value);
        most = fmaxf(most, fabsf(value));
    }
    if (most < TOO_SMALL || j->matrix->panels == NULL) return sd_source_changed(name);
    const char* limits[SD_N_OWN_FORMATS] = {"", "3.39e38", "8.32e6", "5.24e5"};
    sd_format format =
        j->matrix->panels[j->rows.first / SD_PANEL].format; /* the same for all panels of the source */
    if (format == SD_FORMAT_F32 || format >= SD_N_OWN_FORMATS) return sd_source_changed(name);
    return sd_fail(SD_ERR_VALUE,
                   "tensor %s: the block at [%d, %d] has a value too large for %s, expected below %s", name,
                   r, k, sd_format_names[format], limits[format]);
}

sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name, int n_threads) {
    job j = {.matrix = matrix, .source = source, .n_rows = n_rows, .rows = rows};
    size_t n_scratch = (size_t)n_threads * sd_source_scratch(source, SD_PANEL);
    if (n_scratch > 0 && (j.scratch = sd_alloc(n_scratch)) == NULL) return SD_ERR_MEMORY;
    atomic_init(&j.first_bad, LONG_MAX);
    atomic_init(&j.error, 0);
    sd_status status = SD_OK;
    int n_panels = sd_matrix_panels(n_rows), piece = PIECE / SD_PANEL / matrix->n_in + n_threads;
    for (; j.first < n_panels && status == SD_OK; j.first = j.end) {
        if ((status = sd_interrupted()) != SD_OK) break;
        j.end = n_panels - j.first < piece ? n_panels : j.first + piece;
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, j.end - j.first, 1, pack_panels, &j);
        sd_team_close(&team);
        if (atomic_load(&j.error) != 0) status = sd_source_fail(name, atomic_load(&j.error));
    }
    long bad = atomic_load(&j.first_bad);
    if (status == SD_OK && bad != LONG_MAX) status = fail_at(&j, bad, name);
    sd_free(j.scratch);
    return status;
}
