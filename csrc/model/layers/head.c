/* After the last layer: logits, and features for the rows of a draft's children. */
#include <math.h>

#include "layer.h"
#include "routing.h"

static sd_norm_weights output_norm(const sd_model* model) {
    return (sd_norm_weights){model->output_norm, model->output_norm_bias};
}

/* Rows [n, d_model] of the stream, normalized in w->normed, and their logits, for a head in clusters. */
typedef struct selection {
    const sd_pass* pass;
    int first; /* row of w->logits of the first */
} selection;

static char* prepared_row(const sd_workspace* w, int row) {
    return (char*)w->prepared + (size_t)row * sd_prepared_bytes((size_t)w->model->config.d_model);
}

/* Choose the clusters of rows, and prepare each row alone, as no other may have the same clusters. */
static void choose_clusters(void* argument, int thread, int first, int end) {
    (void)thread;
    const selection* s = argument;
    const sd_workspace* w = s->pass->w;
    const sd_config* c = &w->model->config;
    const sd_part alone = {1, 0, 1, 0, c->d_model};
    for (int m = first; m < end; m++) {
        int32_t* chosen = w->clusters + (ptrdiff_t)(s->first + m) * c->n_chosen_clusters;
        sd_insert_largest(w->cluster_scores + m * w->ld_clusters, NULL, 0, c->n_clusters,
                          c->n_chosen_clusters, 0, chosen);
        sd_rows_prepare(s->pass->engine, w->model->head.rows, alone, w->normed + (ptrdiff_t)m * c->d_model,
                        c->d_model, c->d_model, prepared_row(w, m));
    }
}

/* (Row, chosen cluster) pairs. */
static void multiply_clusters(void* argument, int thread, int pair, int end) {
    (void)thread;
    const selection* s = argument;
    const sd_workspace* w = s->pass->w;
    const sd_config* c = &w->model->config;
    const sd_matrix* head = &w->model->head;
    int k = c->n_chosen_clusters, size = sd_cluster_rows(c), n_panels = size / SD_PANEL;
    sd_bands one = sd_bands_of(s->pass->engine, head->rows, c->d_model, 1);
    for (; pair < end; pair++) {
        int m = pair / k, row = s->first + m, panel = w->clusters[(ptrdiff_t)row * k + pair % k] * n_panels;
        sd_matrix_multiply(head, s->pass->engine, panel, panel + n_panels, one, 0, prepared_row(w, m),
                           w->logits + row * w->ld_logits + pair % k * size, w->ld_logits);
    }
}

static void run_clusters(sd_pass* pass, const float* rows, int n, int first) {
    sd_workspace* w = pass->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    selection s = {pass, first};
    sd_pass_prepare(pass, &model->head_centroids, n, rows, c->d_model, output_norm(model), w->prepared);
    sd_pass_multiply(pass,
                     SD_MAKE(sd_product, .matrix = &model->head_centroids, .n_rows = n, .x = w->prepared,
                             .y = w->cluster_scores, .ldy = w->ld_clusters, .factor = 1.0f));
    sd_pass_loop_rows(pass, n, choose_clusters, &s);
    double n_multiplications = (double)n * sd_logit_columns(c) * c->d_model;
    sd_pass_run(pass, n_multiplications, n * c->n_chosen_clusters, 1, multiply_clusters, &s);
}

void sd_head_run(sd_pass* pass, const float* rows, int n, int first) {
    sd_workspace* w = pass->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    float* logits = w->logits + first * w->ld_logits;
    sd_workspace_use_head(w, n);
    if (c->n_clusters > 0) {
        run_clusters(pass, rows, n, first);
        return;
    }
    sd_pass_prepare(pass, &model->head, n, rows, c->d_model, output_norm(model), w->prepared);
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = &model->head, .bias = model->head_bias, .n_rows = n,
                                   .x = w->prepared, .y = logits, .ldy = w->ld_logits,
                                   .factor = c->logit_scale, .softcap = c->logit_softcap));
    for (int i = 0; i < n && c->n_draft_tokens == 0; i++)
        for (int j = c->n_vocab; j < w->n_vocab; j++) logits[i * w->ld_logits + j] = -INFINITY;
}

void sd_pass_project_features(sd_pass* pass) {
    sd_workspace* w = pass->w;
    const sd_matrix* matrix = &w->model->feature_output;
    sd_pass_prepare(pass, matrix, pass->n_rows, w->hidden, matrix->n_in, output_norm(w->model), w->prepared);
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = matrix, .n_rows = pass->n_rows, .x = w->prepared,
                                   .y = w->own, .ldy = w->ld_own, .factor = 1.0f));
}
