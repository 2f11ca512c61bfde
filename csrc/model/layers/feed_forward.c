/* The second half of a layer: activations and the product back. */
#include "layer.h"

#include <string.h>

#include "gemm.h"
#include "kernels.h"

void sd_activate(const sd_config* c, const sd_mlp* mlp, int n, float* gate, const float* up) {
    const sd_kernels* k = sd_kernels_get();
    if (mlp != NULL && c->mlp_gate_scale != 1.0f) k->scale(n, gate, c->mlp_gate_scale, gate);
    switch (c->activation) {
    case SD_ACT_SILU: k->silu(n, gate, gate); break;
    case SD_ACT_GELU: k->gelu(n, gate, gate); break;
    case SD_ACT_GELU_TANH: k->gelu_tanh(n, gate, gate); break;
    case SD_ACT_RELU: k->relu(n, gate, gate); break;
    case SD_ACT_RELU2: k->relu2(n, gate, gate); break;
    case SD_ACT_XIELU: k->xielu(n, gate, mlp->xielu, gate); break;
    case SD_ACT_SILU_CLAMPED: k->silu_clamped(n, gate, up, c->activation_limit); return;
    case SD_N_ACTIVATIONS: break;
    }
    if (up != NULL) k->multiply(n, gate, up);
}

sd_bands sd_mlp_bands(const sd_mlp* mlp, sd_engine engine, int n_rows) {
    return sd_bands_of(engine, mlp->in.rows, mlp->in.n_in, n_rows);
}

/* One group of panels at a time, so that the step after the projection needs no loop of its own. */
void sd_mlp_activate(const sd_workspace* w, const sd_mlp* mlp, sd_engine engine, sd_bands bands, int band,
                     const void* input, int thread, int first, int end, void* activated) {
    const sd_config* c = &w->model->config;
    const sd_kernels* k = sd_kernels_get();
    const sd_matrix* matrix = &mlp->in;
    float* projected = w->projected[thread];
    int row = sd_band_row(bands, band), n_rows = sd_band_row(bands, band + 1) - row;
    for (int group = first; group < end; group++) {
        for (int i = 0; i < matrix->group; i++) { /* gate, then up, each contiguous */
            int panel = group * matrix->group + i, output = panel * SD_PANEL;
            int n = matrix->n_out - output < SD_PANEL ? matrix->n_out - output : SD_PANEL;
            float* y = projected + (ptrdiff_t)i * n_rows * SD_PANEL;
            sd_matrix_multiply(matrix, engine, panel, panel + 1, bands, band, input, y, SD_PANEL);
            sd_adapted_rows_add(w->adaptation.now, matrix, panel, 1, row, n_rows, y, SD_PANEL);
            if (mlp->in_bias) k->add(n_rows, n, y, SD_PANEL, mlp->in_bias + output, 0);
        }
        int n_gates = n_rows * SD_PANEL;
        sd_activate(c, mlp, n_gates, projected, c->gated ? projected + n_gates : NULL);
        int column = group * SD_PANEL, n = mlp->width - column < SD_PANEL ? mlp->width - column : SD_PANEL;
        const sd_part part = {bands.n_rows, row, n_rows, column, n};
        sd_input_sums_add(w->input_sums, &mlp->down, n_rows, column, n, projected, SD_PANEL);
        sd_adapted_rows_read(w->adaptation.now, &mlp->down, row, n_rows, column, n, projected, SD_PANEL);
        sd_rows_prepare(engine, mlp->down.rows, part, projected, SD_PANEL, mlp->width, activated);
    }
}

/* Groups of panels per multiplication: as many as a slice has outputs. */
static int groups_together(const sd_mlp* mlp) { return SD_GEMM_COLUMNS / SD_PANEL / mlp->in.group; }

int sd_mlp_slices(const sd_mlp* mlp, int n_rows) {
    int together = groups_together(mlp);
    return (n_rows + SD_GEMM_ROWS - 1) / SD_GEMM_ROWS * ((sd_mlp_groups(mlp) + together - 1) / together);
}

/* Activations of one row and some groups of panels; y: their outputs, in the order of the matrix. */
static void activate_row(const sd_config* c, const sd_mlp* mlp, int group, int n_groups, float* y,
                         float* to) {
    for (int g = group; g < group + n_groups; g++, y += mlp->in.group * SD_PANEL) {
        int column = g * SD_PANEL, n = mlp->width - column < SD_PANEL ? mlp->width - column : SD_PANEL;
        sd_activate(c, mlp, n, y, c->gated ? y + SD_PANEL : NULL);
        memcpy(to + column, y, (size_t)n * sizeof *to);
    }
}

void sd_mlp_activate_slices(const sd_workspace* w, const sd_mlp* mlp, int n_rows, const float* input,
                            int thread, int first, int end, float* activated) {
    const sd_config* c = &w->model->config;
    int together = groups_together(mlp), n_groups = sd_mlp_groups(mlp);
    int n_slices = (n_groups + together - 1) / together;
    for (int i = first; i < end; i++) {
        int row = i / n_slices * SD_GEMM_ROWS, group = i % n_slices * together;
        int n = n_rows - row < SD_GEMM_ROWS ? n_rows - row : SD_GEMM_ROWS;
        int n_here = n_groups - group < together ? n_groups - group : together;
        int column = group * mlp->in.group * SD_PANEL, n_columns = n_here * mlp->in.group * SD_PANEL;
        if (column + n_columns > mlp->in.n_out) n_columns = mlp->in.n_out - column;
        float* y = w->projected[thread];
        const sd_gemm gemm = SD_MAKE(
            sd_gemm, .n_in = mlp->in.n_in, .x = input + (ptrdiff_t)row * mlp->in.n_in, .ldx = mlp->in.n_in,
            .matrix = mlp->in.plain + (ptrdiff_t)column * mlp->in.n_in, .y = y, .ldy = SD_GEMM_COLUMNS);
        sd_gemm_compute(&gemm, (sd_gemm_slice){0, n, 0, n_columns});
        sd_adapted_rows_add(w->adaptation.now, &mlp->in, column / SD_PANEL, sd_matrix_panels(n_columns), row,
                            n, y, SD_GEMM_COLUMNS);
        if (mlp->in_bias) sd_kernels_get()->add(n, n_columns, y, SD_GEMM_COLUMNS, mlp->in_bias + column, 0);
        for (int m = 0; m < n; m++)
            activate_row(c, mlp, group, n_here, y + m * SD_GEMM_COLUMNS,
                         activated + (ptrdiff_t)(row + m) * mlp->width);
        int first_out = group * SD_PANEL, n_out = n_here * SD_PANEL;
        if (n_out > mlp->width - first_out) n_out = mlp->width - first_out;
        sd_adapted_rows_read(w->adaptation.now, &mlp->down, row, n, first_out, n_out,
                             activated + (ptrdiff_t)row * mlp->width + first_out, mlp->width);
    }
}

typedef struct activation {
    sd_pass* pass;
    const sd_mlp* mlp;
    const void* input; /* prepared */
    sd_bands bands;    /* of the rows, unless OpenBLAS multiplies them */
} activation;

/* (Band of rows, group of panels) pairs. */
static void activate_groups(void* argument, int thread, int pair, int end) {
    const activation* a = argument;
    int n_groups = sd_mlp_groups(a->mlp);
    for (int n; pair < end; pair += n) {
        int group = pair % n_groups;
        n = n_groups - group < end - pair ? n_groups - group : end - pair;
        sd_mlp_activate(a->pass->w, a->mlp, a->pass->engine, a->bands, pair / n_groups, a->input, thread,
                        group, group + n, a->pass->w->activated);
    }
}

static void activate_slices(void* argument, int thread, int first, int end) {
    const activation* a = argument;
    sd_mlp_activate_slices(a->pass->w, a->mlp, a->pass->n_rows, a->input, thread, first, end,
                           a->pass->w->activated);
}

static void activate(activation* a) {
    sd_pass* pass = a->pass;
    const sd_mlp* mlp = a->mlp;
    double n_multiplications = (double)pass->n_rows * mlp->in.n_out * mlp->in.n_in;
    if (pass->engine == SD_ENGINE_BLAS) {
        sd_pass_run(pass, n_multiplications, sd_mlp_slices(mlp, pass->n_rows), 1, activate_slices, a);
        return;
    }
    a->bands = sd_mlp_bands(mlp, pass->engine, pass->n_rows);
    sd_pass_run(pass, n_multiplications, a->bands.n * sd_mlp_groups(mlp),
                sd_matrix_grain(&mlp->in, &pass->team), activate_groups, a);
}

void sd_feed_forward_run(sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    const sd_mlp* mlp = &layer->mlp;
    const sd_workspace* w = pass->w;
    int with_dense = w->model->config.experts.with_dense;
    if (layer->experts && !with_dense) {
        sd_mixture_run(pass, i, sd_norms_input(&w->model->config) ? w->normed : w->hidden, input);
        return;
    }
    activation a = {.pass = pass, .mlp = mlp, .input = input};
    activate(&a);
    sd_pass_reduce(pass, &mlp->down);
    if (layer->experts) {
        sd_pass_multiply(
            pass, SD_MAKE(sd_product, .matrix = &mlp->down, .bias = mlp->down_bias, .n_rows = pass->n_rows,
                          .x = w->activated, .y = w->update, .ldy = w->ld_update, .factor = 1.0f));
        sd_mixture_run_with_dense(pass, i);
        return;
    }
    sd_pass_add_product(pass, &mlp->down, mlp->down_bias, pass->w->activated,
                        (sd_norm_weights){layer->mlp_post_norm, layer->mlp_post_norm_bias},
                        w->model->config.mlp_down_scale);
}
