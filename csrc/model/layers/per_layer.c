/* Per-layer embeddings (Gemma 3n, Gemma 4): each row has a vector for each layer, which gates and adds it. */
#include "layer.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

/* Vectors of rows [first, end): (norm of the projection + embedding of the token · √d_per_layer) · √½. Rows
 * without a token have an embedding of zeros. */
static void finish_rows(void* argument, int thread, int first, int end) {
    const sd_workspace* w = ((const sd_pass*)argument)->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    const sd_kernels* k = sd_kernels_get();
    int d = c->d_per_layer, n = c->n_layer * d;
    float* embedding = w->per_layer_row[thread];
    for (int m = first; m < end; m++) {
        float* row = w->per_layer + m * w->ld_per_layer;
        for (int i = 0; i < n; i += d)
            sd_model_norm(model, d, row + i, model->per_layer_projection_norm, NULL, row + i);
        if (w->inputs[m] == NULL) {
            int token = w->tokens[m] < c->n_vocab ? w->tokens[m] : c->n_vocab - 1;
            sd_table_row(&model->per_layer_embedding, token, embedding);
            k->scale(n, embedding, sqrtf((float)d), embedding);
            k->add(1, n, row, n, embedding, n);
        }
        k->scale(n, row, (float)sqrt(0.5), row);
    }
}

void sd_pass_embed_per_layer(sd_pass* pass) {
    sd_workspace* w = pass->w;
    const sd_matrix* projection = &w->model->per_layer_projection;
    int d = w->model->config.d_model;
    sd_pass_prepare(pass, projection, pass->n_rows, w->hidden, d, (sd_norm_weights){0}, w->prepared);
    sd_pass_multiply(
        pass, SD_MAKE(sd_product, .matrix = projection, .n_rows = pass->n_rows, .x = w->prepared,
                      .y = w->per_layer, .ldy = w->ld_per_layer, .factor = (float)(1.0 / sqrt((double)d))));
    sd_pass_loop_rows(pass, pass->n_rows, finish_rows, pass);
}

typedef struct gating {
    const sd_pass* pass;
    int layer;
} gating;

/* attended [n_rows, d_per_layer] = act(gate) · the rows' vectors; the gates are in w->qkv. */
static void gate_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const gating* g = argument;
    const sd_workspace* w = g->pass->w;
    const sd_config* c = &w->model->config;
    int d = c->d_per_layer;
    for (int m = first; m < end; m++) {
        float* gate = w->qkv + m * w->ld_qkv;
        sd_activate(c, NULL, d, gate, w->per_layer + m * w->ld_per_layer + g->layer * d);
        memcpy(w->attended + (ptrdiff_t)m * d, gate, (size_t)d * sizeof *gate);
    }
}

void sd_per_layer_run(sd_pass* pass, int i) {
    sd_workspace* w = pass->w;
    const sd_layer* layer = &w->model->layers[i];
    gating g = {pass, i};
    sd_pass_prepare(pass, &layer->per_layer_gate, pass->n_rows, w->hidden, w->model->config.d_model,
                    (sd_norm_weights){0}, w->prepared);
    sd_pass_project(pass, &layer->per_layer_gate, NULL, w->prepared);
    sd_pass_loop_rows(pass, pass->n_rows, gate_rows, &g);
    sd_pass_project_back(pass, &layer->per_layer_out, NULL,
                         (sd_norm_weights){layer->per_layer_post_norm, NULL}, 1.0f);
}
