/* Embeddings, read row by row; destinations of tensors that are given by name. */
#include "pack.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "blocks.h"
#include "half.h"
#include "interrupt.h"

/* Numbers filled between two checks for an interruption: some milliseconds. */
#define PIECE (1 << 21)

/* Rows of blocks have whole blocks. */
static size_t row_bytes_of(sd_number number, int n_cols) {
    int n = sd_number_block(number);
    return (size_t)((n_cols + n - 1) / n) * sd_number_bytes(number);
}

sd_table sd_table_take(sd_arena* arena, sd_number number, int n_rows, int n_cols) {
    return (sd_table){n_rows, n_cols, number,
                      sd_arena_take(arena, (size_t)n_rows, row_bytes_of(number, n_cols))};
}

size_t sd_table_bytes(const sd_table* t) { return (size_t)t->n_rows * row_bytes_of(t->number, t->n_cols); }

/* Rows that a thread fills at a time; kernels inspect as many rows of blocks together. */
#define TOGETHER SD_PANEL

typedef struct job {
    sd_table* table;
    const sd_source* source;
    int first, end;     /* rows being filled */
    char* scratch;      /* [n_threads, TOGETHER rows] of a source in a file; owned */
    atomic_int error;   /* error of reading the source; 0: none */
    atomic_int bad_row; /* first row with a non-finite value; INT_MAX: none */
} job;

/* Can the table hold the value: is it finite, also when rounded? */
static int fits(const sd_table* table, float value) {
    return isfinite(table->number == SD_BF16 ? sd_float_from_bf16(sd_bf16_from_float(value)) : value);
}

/* First column whose value does not fit, or -1. */
static int find_bad(const sd_table* table, const float* values, int n) {
    for (int i = 0; i < n; i++)
        if (!fits(table, values[i])) return i;
    return -1;
}

static void report(job* j, int r) {
    int before = atomic_load(&j->bad_row);
    while (r < before && !atomic_compare_exchange_weak(&j->bad_row, &before, r)) continue;
}

/* Fill row r with numbers of row i of `source`, in memory. */
static void fill_row(job* j, const sd_source* source, int i, int r) {
    enum { LINE = 64 };
    const sd_table* t = j->table;
    char* to = t->data + (size_t)r * row_bytes_of(t->number, t->n_cols);
    for (int col = 0; col < t->n_cols; col += LINE) {
        int n = t->n_cols - col < LINE ? t->n_cols - col : LINE;
        float values[LINE];
        uint16_t halves[LINE];
        sd_source_read(source, i, col, n, values);
        if (find_bad(t, values, n) >= 0) report(j, r);
        for (int c = 0; c < n; c++) halves[c] = sd_bf16_from_float(values[c]);
        const void* from = t->number == SD_F32 ? (const void*)values : halves;
        memcpy(to + (size_t)col * sd_number_bytes(t->number), from, (size_t)n * sd_number_bytes(t->number));
    }
}

/* Copy rows r … r + n of blocks, the first ones of `source`, in memory. */
static void copy_blocks(job* j, const sd_source* source, int n, int r) {
    const sd_table* t = j->table;
    const size_t row_bytes = row_bytes_of(t->number, t->n_cols);
    for (int block = 0; block * sd_number_block(t->number) < t->n_cols; block++) {
        int bad = sd_blocks_find_bad(t->number, source->data, source->row_stride, n, block);
        if (bad >= 0) report(j, r + bad);
    }
    for (int i = 0; i < n; i++)
        memcpy(t->data + (size_t)(r + i) * row_bytes, (const char*)source->data + i * source->row_stride,
               row_bytes);
}

static void fill_rows(void* argument, int thread, int first, int end) {
    job* j = argument;
    char* scratch = j->scratch ? j->scratch + (size_t)thread * sd_source_scratch(j->source, TOGETHER) : NULL;
    for (int r = j->first + first, n; r < j->first + end; r += n) {
        n = j->first + end - r < TOGETHER ? j->first + end - r : TOGETHER;
        sd_source source;
        int error = sd_source_rows(j->source, r, n, scratch, &source);
        if (error != 0) {
            atomic_store(&j->error, error);
            return;
        }
        if (sd_has_blocks(j->table->number))
            copy_blocks(j, &source, n, r);
        else
            for (int i = 0; i < n; i++) fill_row(j, &source, i, r + i);
    }
}

static sd_status fail_in(const job* j, int r, const char* name) {
    sd_source row;
    int error = sd_source_rows(j->source, r, 1, j->scratch, &row);
    if (error != 0) return sd_source_fail(name, error);
    float value = 0.0f;
    int col = 0;
    for (; col < j->table->n_cols; col++) {
        sd_source_read(&row, 0, col, 1, &value);
        if (!fits(j->table, value)) break;
    }
    if (col == j->table->n_cols) return sd_source_changed(name);
    SD_FAIL_IF(isfinite(value), SD_ERR_VALUE,
               "tensor %s: element [%d, %d] is %g, too large for bf16, expected below 3.39e38", name, r, col,
               (double)value);
    return sd_fail(SD_ERR_NOT_FINITE, "tensor %s: element [%d, %d] is %g, expected a finite number", name, r,
                   col, (double)value);
}

sd_status sd_table_fill(sd_table* table, const sd_source* source, const char* name, int n_threads) {
    job j = {.table = table, .source = source};
    if (sd_has_blocks(table->number) && source->number != table->number)
        return sd_fail(SD_ERR_VALUE, "tensor %s: is in %s, expected %s, like its table", name,
                       sd_number_names[source->number], sd_number_names[table->number]);
    size_t n_scratch = (size_t)n_threads * sd_source_scratch(source, TOGETHER);
    if (n_scratch > 0 && (j.scratch = sd_alloc(n_scratch)) == NULL) return SD_ERR_MEMORY;
    atomic_init(&j.bad_row, INT_MAX);
    atomic_init(&j.error, 0);
    sd_status status = SD_OK;
    int piece = PIECE / table->n_cols + n_threads;
    for (; j.first < table->n_rows && status == SD_OK; j.first = j.end) {
        if ((status = sd_interrupted()) != SD_OK) break;
        j.end = table->n_rows - j.first < piece ? table->n_rows : j.first + piece;
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, j.end - j.first, 64, fill_rows, &j);
        sd_team_close(&team);
        if (atomic_load(&j.error) != 0) status = sd_source_fail(name, atomic_load(&j.error));
    }
    int r = atomic_load(&j.bad_row);
    if (status == SD_OK && r != INT_MAX) status = fail_in(&j, r, name);
    sd_free(j.scratch);
    return status;
}

void sd_table_row(const sd_table* table, int r, float* out) {
    const char* row = table->data + (size_t)r * row_bytes_of(table->number, table->n_cols);
    if (sd_has_blocks(table->number)) {
        sd_blocks_read(table->number, (const uint8_t*)row, 0, table->n_cols, out);
        return;
    }
    if (table->number == SD_F32) {
        memcpy(out, row, (size_t)table->n_cols * sizeof *out);
        return;
    }
    const uint16_t* halves = (const uint16_t*)(const void*)row;
    for (int i = 0; i < table->n_cols; i++) out[i] = sd_float_from_bf16(halves[i]);
}

typedef struct shape_text {
    char text[32];
} shape_text;

static shape_text shape_as_text(int n_rows, int n_cols) {
    shape_text shape;
    if (n_cols == 0)
        snprintf(shape.text, sizeof shape.text, "(%d,)", n_rows);
    else
        snprintf(shape.text, sizeof shape.text, "(%d, %d)", n_rows, n_cols);
    return shape;
}

static sd_status check_shape(const sd_destination* to, int n_rows, int n_cols) {
    if (n_rows == to->n_rows && n_cols == to->n_cols) return SD_OK;
    const shape_text found = shape_as_text(n_rows, n_cols), expected = shape_as_text(to->n_rows, to->n_cols);
    return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is %s, expected %s", to->name, found.text, expected.text);
}

static sd_status copy_vector(const sd_destination* to, const sd_source* source) {
    int step = to->rows.step > 0 ? to->rows.step : 1;
    for (int r = 0; r < to->n_rows; r++) {
        float value;
        sd_source_read(source, r, 0, 1, &value);
        SD_FAIL_IF(!isfinite(value), SD_ERR_NOT_FINITE,
                   "tensor %s: element [%d] is %g, expected a finite number", to->name, r, (double)value);
        to->vector[to->rows.first + r / SD_PANEL * SD_PANEL * step + r % SD_PANEL] = value;
    }
    return SD_OK;
}

sd_status sd_destination_fill(const sd_destination* to, const sd_source* source, int n_rows, int n_cols,
                              int n_threads) {
    sd_status status = check_shape(to, n_rows, n_cols);
    if (status == SD_OK) status = sd_pool_reserve(n_threads);
    if (status == SD_OK && to->vector) status = copy_vector(to, source);
    if (status == SD_OK && to->table) status = sd_table_fill(to->table, source, to->name, n_threads);
    if (status == SD_OK && to->matrix)
        status = sd_matrix_pack(to->matrix, source, n_rows, to->rows, to->name, n_threads);
    return status;
}

sd_status sd_destination_fail_twice(const sd_destination* to) {
    return sd_fail(SD_ERR_SHAPE, "tensor %s: given twice", to->name);
}

sd_status sd_destination_fail_missing(const sd_destination* to) {
    const shape_text expected = shape_as_text(to->n_rows, to->n_cols);
    return sd_fail(SD_ERR_SHAPE, "tensor %s: missing, expected shape %s", to->name, expected.text);
}
