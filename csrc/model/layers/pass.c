#include "pass.h"

#include <string.h>

#include "gemm.h"
#include "interrupt.h"
#include "kernels.h"

/* Multiplications of a portion: some 30 ms on one slow core. */
#define PORTION ((double)(1 << 28))

/* Items of a loop from `from` on. */
typedef struct portion {
    sd_work work;
    void* argument;
    int from;
} portion;

static void run_portion(void* argument, int thread, int first, int end) {
    const portion* p = argument;
    p->work(p->argument, thread, p->from + first, p->from + end);
}

/* Ask the caller whether to stop, with the team closed: a signal handler may open teams of its own. */
static void ask(sd_pass* pass) {
    if (pass->w == NULL || !sd_interrupt_due()) return;
    sd_team_close(&pass->team);
    pass->status = sd_interrupted();
    pass->team = sd_team_open(pass->w->n_threads);
}

void sd_pass_run(sd_pass* pass, double n_multiplications, int n, int grain, sd_work work, void* argument) {
    double wanted = pass->w ? 1.0 + n_multiplications / PORTION : 1.0;
    int n_portions = wanted < n ? (int)wanted : n;
    for (int i = 0; i < n_portions && pass->status == SD_OK; i++) {
        int first = (int)((long)n * i / n_portions), end = (int)((long)n * (i + 1) / n_portions);
        int share = (end - first) / (4 * pass->team.n_threads); /* enough pieces for all threads */
        portion here = {work, argument, first};
        if (n_portions > 1 && grain > share) grain = share > 1 ? share : 1;
        sd_team_run(&pass->team, end - first, grain, run_portion, &here);
        ask(pass);
    }
}

void sd_pass_loop_rows(const sd_pass* pass, int n_rows, sd_work loop, void* argument) {
    if (n_rows < SD_SHARED_ROWS)
        loop(argument, 0, 0, n_rows);
    else
        sd_team_run(&pass->team, n_rows, SD_ROW_GRAIN, loop, argument);
}

static void embed_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const sd_workspace* w = ((const sd_pass*)argument)->w;
    int last = w->model->config.n_vocab - 1;
    for (int m = first; m < end; m++) {
        float* to = w->hidden + (ptrdiff_t)m * w->model->config.d_model;
        if (w->inputs[m])
            sd_model_embed_vector(w->model, w->inputs[m], w->positions[m], to);
        else
            sd_model_embed(w->model, w->tokens[m] < last ? w->tokens[m] : last, w->positions[m], to);
    }
}

void sd_pass_embed(const sd_pass* pass) { sd_pass_loop_rows(pass, pass->n_rows, embed_rows, (void*)pass); }

typedef struct preparation {
    const sd_pass* pass;
    const sd_matrix* matrix;
    const float* x; /* [n_rows, n] */
    int n_rows, n;
    sd_norm_weights norm;
    void* out; /* [n_rows] prepared */
} preparation;

static void prepare_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const preparation* p = argument;
    const sd_model* model = p->pass->w->model;
    const float* x = p->x + (ptrdiff_t)first * p->n;
    if (p->norm.weight) {
        float* normed = p->pass->w->normed + (ptrdiff_t)first * p->n;
        for (int m = first; m < end; m++, x += p->n, normed += p->n)
            sd_model_norm(model, p->n, x, p->norm.weight, p->norm.bias, normed);
        x = p->pass->w->normed + (ptrdiff_t)first * p->n;
    }
    sd_adapted_rows_read(p->pass->w->adaptation.now, p->matrix, first, end - first, 0, p->n, x, p->n);
    if (p->pass->engine == SD_ENGINE_BLAS) {
        size_t row = (size_t)p->n * sizeof *x;
        memcpy((char*)p->out + (size_t)first * row, x, (size_t)(end - first) * row);
        return;
    }
    const sd_part part = {p->n_rows, first, end - first, 0, p->n};
    sd_input_sums_add(p->pass->w->input_sums, p->matrix, end - first, 0, p->n, x, p->n);
    sd_rows_prepare(p->pass->engine, p->matrix->rows, part, x, p->n, p->n, p->out);
}

void sd_pass_reduce(const sd_pass* pass, const sd_matrix* matrix) {
    sd_adapted_rows_reduce(pass->w->adaptation.now, matrix, &pass->team);
}

void sd_pass_prepare(const sd_pass* pass, const sd_matrix* matrix, int n_rows, const float* x, int n,
                     sd_norm_weights norm, void* out) {
    preparation p = {pass, matrix, x, n_rows, n, norm, out};
    sd_pass_loop_rows(pass, n_rows, prepare_rows, &p);
    sd_pass_reduce(pass, matrix);
}

/* Rows of a pass that have adapters; NULL: none. Passes outside of forward passes have no workspace. */
static const sd_adapted_rows* adapted_of(const sd_pass* pass) {
    return pass->w ? pass->w->adaptation.now : NULL;
}

void sd_add_bias(int n_rows, int n, float* y, ptrdiff_t ldy, const float* bias) {
    if (bias != NULL) sd_kernels_get()->add(n_rows, n, y, ldy, bias, 0);
}

/* Complete rows [row, end) and outputs [first, first + n) of a product after multiplication. */
static void complete(const sd_product* p, int row, int end, int first, int n) {
    const sd_kernels* k = sd_kernels_get();
    float* y = p->y + row * p->ldy + first;
    sd_add_bias(end - row, n, y, p->ldy, p->bias ? p->bias + first : NULL);
    for (int m = 0; p->factor != 1.0f && m < end - row; m++)
        k->scale(n, y + m * p->ldy, p->factor, y + m * p->ldy);
    for (int m = 0; p->softcap > 0.0f && m < end - row; m++) k->softcap(n, y + m * p->ldy, p->softcap);
    ptrdiff_t n_out = p->matrix->n_out;
    if (p->hidden) k->add(end - row, n, p->hidden + row * n_out + first, n_out, y, p->ldy);
}

typedef struct multiplication {
    const sd_pass* pass;
    const sd_product* product;
    sd_bands bands; /* of the rows */
} multiplication;

/* Multiply panels [panel, panel_end) with the rows of a band. */
static void multiply_band(const multiplication* of, int band, int panel, int panel_end) {
    const sd_product* p = of->product;
    int row = sd_band_row(of->bands, band), row_end = sd_band_row(of->bands, band + 1);
    int n_out = p->matrix->n_out, first = panel * SD_PANEL;
    int end = panel_end * SD_PANEL < n_out ? panel_end * SD_PANEL : n_out;
    float* y = p->y + row * p->ldy + first;
    sd_matrix_multiply(p->matrix, of->pass->engine, panel, panel_end, of->bands, band, p->x, y, p->ldy);
    sd_adapted_rows_add(adapted_of(of->pass), p->matrix, panel, panel_end - panel, row, row_end - row, y,
                        p->ldy);
    complete(p, row, row_end, first, end - first);
}

/* (Band of rows, panel) pairs: a band stays in a cache from panel to panel. */
static void multiply_panels(void* argument, int thread, int pair, int end) {
    (void)thread;
    const multiplication* of = argument;
    int n_panels = sd_matrix_panels(of->product->matrix->n_out);
    for (int n; pair < end; pair += n) {
        int panel = pair % n_panels;
        n = n_panels - panel < end - pair ? n_panels - panel : end - pair;
        multiply_band(of, pair / n_panels, panel, panel + n);
    }
}

static sd_gemm gemm_of(const sd_product* p) {
    return (sd_gemm){
        p->n_rows, p->matrix->n_out, p->matrix->n_in, p->x, p->matrix->n_in, p->matrix->plain, p->y, p->ldy};
}

static void multiply_slices(void* argument, int thread, int first, int end) {
    (void)thread;
    const multiplication* of = argument;
    const sd_product* p = of->product;
    const sd_gemm gemm = gemm_of(p);
    for (int i = first; i < end; i++) {
        sd_gemm_slice s = sd_gemm_slice_at(&gemm, i);
        sd_gemm_compute(&gemm, s);
        sd_adapted_rows_add(adapted_of(of->pass), p->matrix, s.column / SD_PANEL,
                            sd_matrix_panels(s.n_columns), s.row, s.n_rows, p->y + s.row * p->ldy + s.column,
                            p->ldy);
        complete(p, s.row, s.row + s.n_rows, s.column, s.n_columns);
    }
}

void sd_pass_multiply(sd_pass* pass, sd_product product) {
    const sd_matrix* m = product.matrix;
    double n_multiplications = (double)product.n_rows * m->n_out * m->n_in;
    if (pass->engine == SD_ENGINE_BLAS) {
        const sd_gemm gemm = gemm_of(&product);
        sd_pass_run(pass, n_multiplications, sd_gemm_slices(&gemm), 1, multiply_slices,
                    &(multiplication){.pass = pass, .product = &product});
        return;
    }
    sd_bands bands = sd_bands_of(pass->engine, m->rows, m->n_in, product.n_rows);
    sd_pass_run(pass, n_multiplications, bands.n * sd_matrix_panels(m->n_out),
                sd_matrix_grain(m, &pass->team), multiply_panels, &(multiplication){pass, &product, bands});
}

void sd_pass_multiply_rows(sd_pass* pass, const float* x, ptrdiff_t ldx, void* prepared, sd_product product) {
    const sd_matrix* m = product.matrix;
    const sd_part all = {product.n_rows, 0, product.n_rows, 0, m->n_in};
    sd_rows_prepare(pass->engine, m->rows, all, x, ldx, m->n_in, prepared);
    product.x = prepared;
    sd_pass_multiply(pass, product);
}

/* Rows of w->update to add to the stream. */
typedef struct addition {
    sd_workspace* w;
    sd_norm_weights norm;
    float factor;
} addition;

static void add_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const addition* a = argument;
    sd_workspace* w = a->w;
    const sd_kernels* k = sd_kernels_get();
    const sd_config* c = &w->model->config;
    int d = c->d_model, of_output = a->norm.weight && sd_norms_output(c);
    for (int m = first; m < end; m++) {
        float *x = w->update + m * w->ld_update, *hidden = w->hidden + (ptrdiff_t)m * d;
        if (of_output) sd_model_norm(w->model, d, x, a->norm.weight, a->norm.bias, x);
        if (a->factor != 1.0f) k->scale(d, x, a->factor, x);
        k->add(1, d, hidden, d, x, d);
        if (a->norm.weight && !of_output)
            sd_model_norm(w->model, d, hidden, a->norm.weight, a->norm.bias, hidden);
    }
}

void sd_pass_add_update(const sd_pass* pass, sd_norm_weights norm) {
    addition a = {pass->w, norm, pass->w->model->config.residual_scale};
    sd_pass_loop_rows(pass, pass->n_rows, add_rows, &a);
}

void sd_pass_add_product(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* x,
                         sd_norm_weights norm, float scale) {
    sd_workspace* w = pass->w;
    addition a = {w, norm, w->model->config.residual_scale * scale};
    /* a norm needs whole rows; without one each panel is added once it is computed */
    sd_product product =
        SD_MAKE(sd_product, .matrix = matrix, .bias = bias, .n_rows = pass->n_rows, .x = x, .y = w->update,
                .ldy = w->ld_update, .hidden = norm.weight ? NULL : w->hidden,
                .factor = norm.weight ? 1.0f : a.factor);
    sd_pass_multiply(pass, product);
    if (norm.weight) sd_pass_loop_rows(pass, pass->n_rows, add_rows, &a);
}
