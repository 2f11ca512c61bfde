#include "tensor_list.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sd_tensor_list sd_tensor_list_take(sd_arena* arena, int n) {
    return (sd_tensor_list){.tensors = sd_arena_take(arena, (size_t)n, sizeof(sd_listed_tensor))};
}

static void append(sd_tensor_list* list, sd_listed_tensor tensor, const char* format, va_list arguments) {
    vsnprintf(tensor.name, sizeof tensor.name, format, arguments);
    list->tensors[list->n++] = tensor;
}

void sd_tensor_list_add_matrix(sd_tensor_list* list, sd_matrix* matrix, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(list, (sd_listed_tensor){.n_rows = matrix->n_out, .n_cols = matrix->n_in, .matrix = matrix},
           format, arguments);
    va_end(arguments);
}

void sd_tensor_list_add_table(sd_tensor_list* list, sd_table* table, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(list, (sd_listed_tensor){.n_rows = table->n_rows, .n_cols = table->n_cols, .table = table}, format,
           arguments);
    va_end(arguments);
}

void sd_tensor_list_add_vector(sd_tensor_list* list, float* vector, int n, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(list, (sd_listed_tensor){.n_rows = n, .vector = vector}, format, arguments);
    va_end(arguments);
}

static sd_status fail_shape(const sd_listed_tensor* t, int n_rows, int n_cols) {
    if (t->n_cols == 0 && n_cols == 0)
        return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d,), expected (%d,)", t->name, n_rows, t->n_rows);
    return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d, %d), expected (%d, %d)", t->name, n_rows, n_cols,
                   t->n_rows, t->n_cols);
}

static sd_status copy_vector(const sd_listed_tensor* t, const sd_source* source) {
    for (int r = 0; r < t->n_rows; r++) {
        sd_source_read(source, r, 0, 1, &t->vector[r]);
        if (!isfinite(t->vector[r]))
            return sd_fail(SD_ERR_NOT_FINITE, "tensor %s: element [%d] is %g, expected a finite number",
                           t->name, r, (double)t->vector[r]);
    }
    return SD_OK;
}

sd_status sd_tensor_list_set(sd_tensor_list* list, const char* name, const sd_source* source, int n_rows,
                             int n_cols, int n_threads) {
    sd_listed_tensor* t = list->tensors;
    while (t < list->tensors + list->n && strcmp(t->name, name) != 0) t++;
    if (t == list->tensors + list->n)
        return sd_fail(SD_ERR_SHAPE, "tensor %.64s: not part of a draft of this configuration", name);
    if (t->is_set) return sd_fail(SD_ERR_SHAPE, "tensor %s: given twice", name);
    if (n_rows != t->n_rows || n_cols != t->n_cols) return fail_shape(t, n_rows, n_cols);
    sd_status status = sd_pool_reserve(n_threads);
    if (status == SD_OK && t->vector) status = copy_vector(t, source);
    if (status == SD_OK && t->table) status = sd_table_fill(t->table, source, t->name, n_threads);
    if (status == SD_OK && t->matrix)
        status = sd_matrix_pack(t->matrix, source, n_rows, (sd_rows){0, 1}, t->name, n_threads);
    if (status == SD_OK) t->is_set = 1;
    return status;
}

sd_status sd_tensor_list_check(const sd_tensor_list* list) {
    for (const sd_listed_tensor* t = list->tensors; t < list->tensors + list->n; t++)
        if (!t->is_set)
            return sd_fail(SD_ERR_SHAPE, "tensor %s: missing, expected shape (%d, %d)", t->name, t->n_rows,
                           t->n_cols);
    return SD_OK;
}

long long sd_tensor_list_count(const sd_tensor_list* list) {
    long long n = 0;
    for (const sd_listed_tensor* t = list->tensors; t < list->tensors + list->n; t++)
        n += (long long)t->n_rows * (t->n_cols > 0 ? t->n_cols : 1);
    return n;
}
