#include "tensor_list.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sd_tensor_list sd_tensor_list_take(sd_arena* arena, int n) {
    return (sd_tensor_list){.tensors = sd_arena_take(arena, (size_t)n, sizeof(sd_listed_tensor))};
}

static void append(sd_tensor_list* list, sd_destination to, const char* format, va_list arguments) {
    sd_listed_tensor* tensor = &list->tensors[list->n++];
    vsnprintf(tensor->name, sizeof tensor->name, format, arguments);
    tensor->to = to;
    tensor->to.name = tensor->name;
}

void sd_tensor_list_add_matrix(sd_tensor_list* list, sd_matrix* matrix, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(
        list,
        (sd_destination){.n_rows = matrix->n_out, .n_cols = matrix->n_in, .matrix = matrix, .rows = {0, 1}},
        format, arguments);
    va_end(arguments);
}

void sd_tensor_list_add_table(sd_tensor_list* list, sd_table* table, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(list, (sd_destination){.n_rows = table->n_rows, .n_cols = table->n_cols, .table = table}, format,
           arguments);
    va_end(arguments);
}

void sd_tensor_list_add_vector(sd_tensor_list* list, float* vector, int n, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(list, (sd_destination){.n_rows = n, .vector = vector}, format, arguments);
    va_end(arguments);
}

sd_status sd_tensor_list_set(sd_tensor_list* list, const char* name, const sd_source* source, int n_rows,
                             int n_cols, int n_threads) {
    sd_listed_tensor* t = list->tensors;
    while (t < list->tensors + list->n && strcmp(t->name, name) != 0) t++;
    if (t == list->tensors + list->n)
        return sd_fail(SD_ERR_SHAPE, "tensor %.64s: not part of a draft of this configuration", name);
    if (t->is_set) return sd_destination_fail_twice(&t->to);
    sd_status status = sd_destination_fill(&t->to, source, n_rows, n_cols, n_threads);
    if (status == SD_OK) t->is_set = 1;
    return status;
}

sd_status sd_tensor_list_check(const sd_tensor_list* list) {
    for (const sd_listed_tensor* t = list->tensors; t < list->tensors + list->n; t++)
        if (!t->is_set) return sd_destination_fail_missing(&t->to);
    return SD_OK;
}

long long sd_tensor_list_count(const sd_tensor_list* list) {
    long long n = 0;
    for (const sd_listed_tensor* t = list->tensors; t < list->tensors + list->n; t++)
        n += (long long)t->to.n_rows * (t->to.n_cols > 0 ? t->to.n_cols : 1);
    return n;
}

sd_status sd_draft_tokens_check(const int32_t* tokens, int n_draft, int n_vocab) {
    if (tokens == NULL && n_draft < n_vocab)
        return sd_fail(SD_ERR_VALUE, "there are no tokens, expected %d of the target's %d", n_draft, n_vocab);
    for (int i = 0; tokens != NULL && i < n_draft; i++)
        SD_FAIL_IF(tokens[i] < 0 || tokens[i] >= n_vocab, SD_ERR_VALUE, "tokens[%d] is %d, expected 0 to %d",
                   i, (int)tokens[i], n_vocab - 1);
    return SD_OK;
}

void sd_draft_tokens_scatter(const int32_t* tokens, int n_draft, const float* from, float* to) {
    if (tokens == NULL) memcpy(to, from, (size_t)n_draft * sizeof *to);
    for (int i = 0; tokens != NULL && i < n_draft; i++) to[tokens[i]] = from[i];
}
