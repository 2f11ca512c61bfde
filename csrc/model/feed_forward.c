#include "feed_forward.h"

#include "kernels.h"

/* gate = act(gate) · up, or act(gate) where there is no up; gate, up [n]. */
static void activate(const sd_config* c, int n, float* gate, const float* up) {
    const sd_kernels* k = sd_kernels_get();
    switch (c->activation) {
    case SD_ACT_SILU: k->silu(n, gate, gate); break;
    case SD_ACT_GELU: k->gelu(n, gate, gate); break;
    case SD_ACT_GELU_TANH: k->gelu_tanh(n, gate, gate); break;
    case SD_ACT_RELU: k->relu(n, gate, gate); break;
    case SD_ACT_RELU2: k->relu2(n, gate, gate); break;
    case SD_ACT_SILU_CLAMPED: k->silu_clamped(n, gate, up, c->activation_limit); return;
    case SD_N_ACTIVATIONS: break;
    }
    if (up != NULL) k->multiply(n, gate, up);
}

typedef struct mlp {
    const sd_pass* pass;
    const sd_layer* layer;
    const void* input; /* prepared */
} mlp;

/* activated = act(gate) · up, or act(up), prepared for mlp_down: one group of panels after the other, so
 * that what follows a projection needs no loop of its own. */
static void mlp_in_groups(void* argument, int thread, int first_group, int end_group) {
    const mlp* m = argument;
    const sd_pass* pass = m->pass;
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    const sd_kernels* k = sd_kernels_get();
    const sd_matrix* matrix = &m->layer->mlp_in;
    const float* bias = m->layer->mlp_in_bias;
    float* projected = w->projected[thread];
    for (int group = first_group; group < end_group; group++) {
        for (int i = 0; i < matrix->group; i++) { /* gate, then up, each contiguous */
            int panel = group * matrix->group + i, first = panel * SD_PANEL;
            int n = matrix->n_out - first < SD_PANEL ? matrix->n_out - first : SD_PANEL;
            float* y = projected + (ptrdiff_t)i * pass->n_rows * SD_PANEL;
            sd_matrix_multiply(matrix, panel, panel + 1, pass->n_rows, m->input, y, SD_PANEL);
            sd_add_bias(pass->n_rows, n, y, SD_PANEL, bias ? bias + first : NULL);
        }
        int n_gates = pass->n_rows * SD_PANEL;
        activate(c, n_gates, projected, c->gated ? projected + n_gates : NULL);
        int column = group * SD_PANEL, n = c->d_ff - column < SD_PANEL ? c->d_ff - column : SD_PANEL;
        const sd_part part = {pass->n_rows, 0, pass->n_rows, column, n};
        k->prepare[w->model->numbers.weights](part, projected, SD_PANEL, c->d_ff, w->activated);
    }
}

void sd_feed_forward_run(const sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    const sd_matrix* matrix = &layer->mlp_in;
    sd_team_run(&pass->team, sd_matrix_panels(matrix->n_out) / matrix->group,
                sd_matrix_grain(matrix, &pass->team) / matrix->group, mlp_in_groups,
                &(mlp){pass, layer, input});
    sd_pass_add_product(pass, &layer->mlp_down, layer->mlp_down_bias, pass->w->activated,
                        (sd_norm_weights){layer->mlp_post_norm, layer->mlp_post_norm_bias});
}
