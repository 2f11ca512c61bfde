#include "mlp.h"

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

/* One group of panels after the other, so that what follows the projection needs no loop of its own. */
void sd_mlp_activate(const sd_workspace* w, const sd_mlp* mlp, int n_rows, const void* input, int thread,
                     int first, int end, void* activated) {
    const sd_config* c = &w->model->config;
    const sd_kernels* k = sd_kernels_get();
    const sd_matrix* matrix = &mlp->in;
    float* projected = w->projected[thread];
    for (int group = first; group < end; group++) {
        for (int i = 0; i < matrix->group; i++) { /* gate, then up, each contiguous */
            int panel = group * matrix->group + i, output = panel * SD_PANEL;
            int n = matrix->n_out - output < SD_PANEL ? matrix->n_out - output : SD_PANEL;
            float* y = projected + (ptrdiff_t)i * n_rows * SD_PANEL;
            sd_matrix_multiply(matrix, panel, panel + 1, n_rows, input, y, SD_PANEL);
            if (mlp->in_bias) k->add(n_rows, n, y, SD_PANEL, mlp->in_bias + output, 0);
        }
        int n_gates = n_rows * SD_PANEL;
        activate(c, n_gates, projected, c->gated ? projected + n_gates : NULL);
        int column = group * SD_PANEL, n = mlp->width - column < SD_PANEL ? mlp->width - column : SD_PANEL;
        const sd_part part = {n_rows, 0, n_rows, column, n};
        k->prepare[w->model->numbers.weights](part, projected, SD_PANEL, mlp->width, activated);
    }
}
