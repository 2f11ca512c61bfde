#include "input_sums.h"

#include <stdlib.h>

static int compare(const void* a, const void* b) {
    uintptr_t of_a = (uintptr_t)((const sd_input_sum*)a)->matrix;
    uintptr_t of_b = (uintptr_t)((const sd_input_sum*)b)->matrix;
    return (of_a > of_b) - (of_a < of_b);
}

/* List the matrices of a model, each once, by ascending address. */
static void list(sd_input_sums* s) {
    int n = sd_tensor_count_own(&s->model->config), last = 0;
    sd_tensor_spec spec;
    s->n = 0;
    for (int i = 0; i < n; i++) {
        sd_tensor_at(&s->model->config, i, &spec);
        const sd_matrix* matrix = sd_model_matrix(s->model, &spec);
        int of_expert = spec.expert >= 0 && spec.role != SD_EXPERT_DOWN;
        if (matrix) s->sums[s->n++] = (sd_input_sum){.matrix = matrix, .of_expert = of_expert};
    }
    qsort(s->sums, (size_t)s->n, sizeof *s->sums, compare);
    for (int i = 1; i < s->n; i++)
        if (s->sums[i].matrix != s->sums[last].matrix) s->sums[++last] = s->sums[i];
    s->n = last + 1; /* every model has a matrix */
}

static void lay_out(sd_input_sums* s) {
    s->sums = sd_arena_take(&s->arena, (size_t)sd_tensor_count_own(&s->model->config), sizeof *s->sums);
    if (s->sums) list(s);
    size_t n_inputs = 0, before = 0;
    sd_tensor_spec spec;
    for (int i = 0; i < sd_tensor_count_own(&s->model->config); i++) {
        sd_tensor_at(&s->model->config, i, &spec);
        const sd_matrix* matrix = sd_model_matrix(s->model, &spec);
        if (matrix) n_inputs += (size_t)matrix->n_in;
    }
    double* squares = sd_arena_take(&s->arena, n_inputs, sizeof *squares);
    for (int i = 0; s->sums && i < s->n; i++) {
        s->sums[i].squares = squares + before;
        before += (size_t)s->sums[i].matrix->n_in;
    }
}

sd_status sd_input_sums_create(sd_input_sums* s, const sd_model* model) {
    *s = (sd_input_sums){.model = model};
    return SD_ARENA_BUILD(&s->arena, lay_out(s));
}

void sd_input_sums_free(sd_input_sums* s) { sd_arena_free(&s->arena); }

sd_input_sum* sd_input_sums_find(const sd_input_sums* s, const sd_matrix* matrix) {
    const sd_input_sum key = {.matrix = matrix};
    return bsearch(&key, s->sums, (size_t)s->n, sizeof *s->sums, compare);
}

static void add(sd_input_sum* to, int n_rows, int first, int n, const float* x, ptrdiff_t ldx) {
    for (int m = 0; m < n_rows; m++, x += ldx)
        for (int i = 0; i < n; i++) to->squares[first + i] += (double)x[i] * (double)x[i];
    if (first == 0) to->n_rows += n_rows;
}

void sd_input_sums_add(sd_input_sums* s, const sd_matrix* matrix, int n_rows, int first, int n,
                       const float* x, ptrdiff_t ldx) {
    sd_input_sum* to = s ? sd_input_sums_find(s, matrix) : NULL;
    if (to && !to->of_expert) add(to, n_rows, first, n, x, ldx);
}

void sd_input_sums_add_chosen(sd_input_sums* s, const sd_matrix* matrix, int n_rows, int n, const float* x,
                              ptrdiff_t ldx) {
    sd_input_sum* to = s ? sd_input_sums_find(s, matrix) : NULL;
    if (to) add(to, n_rows, 0, n, x, ldx);
}
