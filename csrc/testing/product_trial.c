#include "product_trial.h"

#include "clock.h"
#include "library.h"
#include "pack.h"
#include "pass.h"

/* A sample is so many operations at least, so that reading the clock does not count, or so many products. */
#define SAMPLE_OPERATIONS 2e8
#define SAMPLE_PRODUCTS 1000

static void lay_out(sd_product_trial* t) {
    sd_arena* arena = &t->arena;
    size_t rows = (size_t)t->max_rows;
    sd_layout layout = t->engine == SD_ENGINE_BLAS ? SD_LAYOUT_PLAIN : SD_LAYOUT_PANELS;
    t->ldy = sd_whole_panels(t->n_out) + SD_PANEL;
    t->matrices = sd_arena_take(arena, (size_t)t->n_matrices, sizeof *t->matrices);
    for (int i = 0; i < t->n_matrices; i++) {
        sd_matrix matrix = sd_matrix_take(arena, t->format, layout, t->n_out, t->n_in, 1);
        if (t->matrices) t->matrices[i] = matrix;
    }
    t->x = sd_arena_take(arena, rows * (size_t)t->n_in, sizeof *t->x);
    t->prepared = sd_arena_take(arena, rows, sd_prepared_bytes((size_t)t->n_in));
    t->y = sd_arena_take(arena, rows * (size_t)t->ldy, sizeof *t->y);
}

sd_status sd_product_trial_create(sd_product_trial* t, const float* weights) {
    sd_status status = sd_pool_reserve(t->n_threads);
    if (status == SD_OK && t->engine == SD_ENGINE_BLAS) status = sd_library_reserve(t->n_threads);
    if (status == SD_OK) status = SD_ARENA_BUILD(&t->arena, lay_out(t));
    const sd_source source = {.data = weights, .row_stride = (ptrdiff_t)t->n_in * 4, .col_stride = 4};
    for (int i = 0; i < t->n_matrices && status == SD_OK; i++)
        status = sd_matrix_pack(&t->matrices[i], &source, t->n_out, (sd_rows){0, 1}, "weights", t->n_threads);
    for (ptrdiff_t i = 0; status == SD_OK && i < (ptrdiff_t)t->max_rows * t->n_in; i++)
        t->x[i] = weights[i % t->n_in];
    return status;
}

double sd_product_trial_run(sd_product_trial* t, int n_rows) {
    double wanted = 1.0 + SAMPLE_OPERATIONS / (2.0 * n_rows * t->n_out * t->n_in);
    int n = wanted < SAMPLE_PRODUCTS ? (int)wanted : SAMPLE_PRODUCTS;
    sd_pass pass = {.n_rows = n_rows, .engine = t->engine, .team = sd_team_open(t->n_threads)};
    const void* rows = t->x;
    if (t->engine != SD_ENGINE_BLAS) {
        const sd_part all = {n_rows, 0, n_rows, 0, t->n_in};
        sd_rows_prepare(t->engine, sd_rows_of(t->format), all, t->x, t->n_in, t->n_in, t->prepared);
        rows = t->prepared;
    }
    double begin = sd_now();
    for (int i = 0; i < n; i++) {
        const sd_matrix* matrix = &t->matrices[t->next++ % t->n_matrices];
        sd_pass_multiply(
            &pass,
            (sd_product){
                .matrix = matrix, .n_rows = n_rows, .x = rows, .y = t->y, .ldy = t->ldy, .factor = 1.0f});
    }
    double seconds = (sd_now() - begin) / n;
    sd_team_close(&pass.team);
    return seconds;
}

void sd_product_trial_free(sd_product_trial* t) { sd_arena_free(&t->arena); }
