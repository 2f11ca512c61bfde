#include "pass.h"

#include "kernels.h"

typedef struct preparation {
    sd_workspace* w;
    const float* x; /* [n_rows, n] */
    int n_rows, n;
    sd_norm_weights norm;
} preparation;

static void prepare_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const preparation* p = argument;
    const sd_model* model = p->w->model;
    const sd_kernels* k = sd_kernels_get();
    const float* x = p->x + (ptrdiff_t)first * p->n;
    if (p->norm.weight) {
        float* normed = p->w->normed + (ptrdiff_t)first * p->n;
        for (int m = first; m < end; m++, x += p->n, normed += p->n) {
            if (model->config.norm == SD_NORM_RMS)
                k->rms_norm(p->n, x, p->norm.weight, model->config.norm_eps, normed);
            else
                k->layer_norm(p->n, x, p->norm.weight, p->norm.bias, model->config.norm_eps, normed);
        }
        x = p->w->normed + (ptrdiff_t)first * p->n;
    }
    const sd_part part = {p->n_rows, first, end - first, 0, p->n};
    k->prepare[model->numbers.weights](part, x, p->n, p->n, p->w->prepared);
}

void sd_pass_prepare(const sd_pass* pass, int n_rows, const float* x, int n, sd_norm_weights norm) {
    preparation p = {pass->w, x, n_rows, n, norm};
    if (n_rows < SD_SHARED_ROWS)
        prepare_rows(&p, 0, 0, n_rows);
    else
        sd_team_run(&pass->team, n_rows, SD_ROW_GRAIN, prepare_rows, &p);
}

void sd_add_bias(int n_rows, int n, float* y, ptrdiff_t ldy, const float* bias) {
    if (bias != NULL) sd_kernels_get()->add(n_rows, n, y, ldy, bias, 0);
}

static void multiply_panels(void* argument, int thread, int panel, int panel_end) {
    (void)thread;
    const sd_product* p = argument;
    int n_out = p->matrix->n_out, first = panel * SD_PANEL;
    int end = panel_end * SD_PANEL < n_out ? panel_end * SD_PANEL : n_out;
    float* y = p->y + first;
    sd_matrix_multiply(p->matrix, panel, panel_end, p->n_rows, p->x, y, p->ldy);
    sd_add_bias(p->n_rows, end - first, y, p->ldy, p->bias ? p->bias + first : NULL);
    if (p->hidden) sd_kernels_get()->add(p->n_rows, end - first, p->hidden + first, n_out, y, p->ldy);
}

void sd_pass_multiply(const sd_pass* pass, sd_product product) {
    sd_team_run(&pass->team, sd_matrix_panels(product.matrix->n_out),
                sd_matrix_grain(product.matrix, &pass->team), multiply_panels, &product);
}

void sd_pass_add_product(const sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* x) {
    sd_workspace* w = pass->w;
    sd_pass_multiply(pass, (sd_product){matrix, bias, pass->n_rows, x, w->update, w->ld_update, w->hidden});
}
