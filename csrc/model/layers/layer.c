#include "layer.h"

#include <string.h>

#include "input_sums.h"
#include "kernels.h"

/* Multiply rows of the stream by the number of a layer. */
typedef struct scaling {
    const sd_workspace* w;
    float factor;
} scaling;

static void scale_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const scaling* s = argument;
    int d = s->w->model->config.d_model;
    float* rows = s->w->hidden + (ptrdiff_t)first * d;
    sd_kernels_get()->scale((end - first) * d, rows, s->factor, rows);
}

/* Run a mixer, then attention, which reads the same normalized rows; or one of them. input: of attention
 * alone, prepared already unless it is w->prepared. */
static void run_first_half(sd_pass* pass, int i, const void* input) {
    sd_workspace* w = pass->w;
    int n = pass->n_rows, d = w->model->config.d_model;
    const sd_layer_config* own = &w->model->config.layers[i];
    const sd_layer* layer = &w->model->layers[i];
    sd_norm_weights norm = {layer->attn_norm, layer->attn_norm_bias}, none = {0};
    if (own->mixer != SD_MIXER_NONE) {
        sd_pass_prepare(pass, &layer->mixer_in, n, w->hidden, d, norm, w->prepared);
        if (sd_has_state(own))
            sd_recurrent_block_run(pass, i, w->prepared);
        else
            sd_convolution_block_run(pass, i, w->prepared);
    }
    if (!own->attends) return;
    if (own->reads_token)
        sd_pass_prepare(pass, &layer->qkv, n, w->joined, 2 * d, none, w->prepared);
    else if (own->mixer != SD_MIXER_NONE)
        sd_pass_prepare(pass, &layer->qkv, n, w->normed, d, none, w->prepared);
    else if (input == w->prepared)
        sd_pass_prepare(pass, &layer->qkv, n, w->hidden, d, norm, w->prepared);
    sd_attention_block_run(pass, i, input);
}

/* If the halves are parallel, the second reads the stream from before the first was added. */
void sd_layer_run(sd_pass* pass, int i, unsigned skipped) {
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    const sd_layer* layer = &w->model->layers[i];
    sd_norm_weights attn_norm = {layer->attn_norm, layer->attn_norm_bias};
    sd_norm_weights mlp_norm = {layer->mlp_norm, layer->mlp_norm_bias};
    const sd_matrix* mlp = &sd_layer_mlp(c, layer)->in;
    const void *attn_input = w->prepared, *mlp_input = w->prepared;
    if (c->parallel != SD_PARALLEL_NO) {
        sd_norm_weights norm = c->parallel == SD_PARALLEL_ONE_NORM ? attn_norm : mlp_norm;
        sd_pass_prepare(pass, mlp, pass->n_rows, w->hidden, c->d_model, norm, w->parallel_input);
        mlp_input = w->parallel_input;
        if (c->parallel == SD_PARALLEL_ONE_NORM && layer->qkv.rows == mlp->rows) {
            const float* rows = norm.weight ? w->normed : w->hidden;
            attn_input = w->parallel_input;
            sd_input_sums_add(w->input_sums, &layer->qkv, pass->n_rows, 0, c->d_model, rows, c->d_model);
            sd_adapted_rows_read(w->adaptation.now, &layer->qkv, 0, pass->n_rows, 0, c->d_model, rows,
                                 c->d_model);
            sd_pass_reduce(pass, &layer->qkv);
        }
    }
    if (!(skipped & SD_SKIP_ATTN)) {
        run_first_half(pass, i, attn_input);
        if (pass->n_rows == 0) return;
        if (c->encoder) {
            sd_norm_weights cross_norm = {layer->cross_norm, layer->cross_norm_bias};
            sd_pass_prepare(pass, &layer->cross_q, pass->n_rows, w->hidden, c->d_model, cross_norm,
                            w->prepared);
            sd_cross_attention_run(pass, i, w->prepared);
        }
    }
    if (!(skipped & SD_SKIP_MLP) && pass->status == SD_OK) {
        int has_second = sd_has_second_half(&c->layers[i]);
        if (has_second && mlp_input == w->prepared)
            sd_pass_prepare(pass, mlp, pass->n_rows, w->hidden, c->d_model, mlp_norm, w->prepared);
        if (has_second) sd_feed_forward_run(pass, i, mlp_input);
        if (c->d_per_layer > 0) sd_per_layer_run(pass, i);
    }
    if (layer->scale && skipped != (SD_SKIP_ATTN | SD_SKIP_MLP))
        sd_pass_loop_rows(pass, pass->n_rows, scale_rows, &(scaling){w, *layer->scale});
}

/* Set where each row's feature is, and collect features of another model as rows [n, width] of w->given,
 * normalized piece by piece if configured. Returns their number. */
static int collect(const sd_pass* pass) {
    const sd_workspace* w = pass->w;
    const sd_model* model = w->model;
    const sd_features* f = &model->config.features;
    int row = 0, n_given = 0;
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_branch* branch = &pass->branches[b];
        ptrdiff_t width = branch->own_features ? sd_own_width(&model->config) : f->width;
        for (int i = 0; i < branch->n_new; i++, row++) {
            const float* feature = branch->features + i * width;
            w->row_features[row] = feature;
            if (branch->own_features || f->use == SD_FEATURE_JOINED) continue;
            float* given = w->given + (ptrdiff_t)n_given++ * width;
            w->row_features[row] = NULL;
            if (f->n_pieces == 0) memcpy(given, feature, (size_t)width * sizeof *given);
            int piece = f->n_pieces > 0 ? f->width / f->n_pieces : f->width;
            for (int at = 0; f->n_pieces > 0 && at < f->width; at += piece)
                sd_model_norm(model, piece, feature + at, model->feature_input_norm + at, NULL, given + at);
        }
    }
    return n_given;
}

/* w->update = projection of the first n rows of x. */
static void project(sd_pass* pass, int n_rows, const float* x, int n) {
    sd_workspace* w = pass->w;
    const sd_model* model = w->model;
    if (n_rows == 0) return;
    sd_pass_prepare(pass, &model->feature_projection, n_rows, x, n, (sd_norm_weights){0}, w->prepared);
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = &model->feature_projection,
                                   .bias = model->feature_projection_bias, .n_rows = n_rows, .x = w->prepared,
                                   .y = w->update, .ldy = w->ld_update, .factor = 1.0f));
}

/* Fill one half of w->joined with x [sd_own_width], normalized if there is a norm. */
static void join(const sd_workspace* w, int row, int half, const float* x, const float* norm) {
    ptrdiff_t d = sd_own_width(&w->model->config);
    float* to = w->joined + (2 * row + half) * d;
    if (norm != NULL)
        sd_model_norm(w->model, (int)d, x, norm, NULL, to);
    else if (x != to)
        memcpy(to, x, (size_t)d * sizeof *to);
}

/* Join embedding and feature of rows, each normalized if it has a norm. */
static void join_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const sd_workspace* w = ((const sd_pass*)argument)->w;
    const sd_model* model = w->model;
    int last = model->config.n_vocab - 1;
    ptrdiff_t d = sd_own_width(&model->config);
    for (int m = first; m < end; m++) {
        float* embedding = w->joined + 2 * m * d;
        sd_model_embed(model, w->tokens[m] < last ? w->tokens[m] : last, w->positions[m], embedding);
        join(w, m, 0, embedding, model->token_norm);
        join(w, m, 1, w->row_features[m], model->feature_norm);
    }
}

void sd_pass_embed_features(sd_pass* pass) {
    const sd_workspace* w = pass->w;
    const sd_features* f = &w->model->config.features;
    ptrdiff_t d = w->model->config.d_model;
    size_t row_bytes = (size_t)d * sizeof *w->hidden;
    int n_given = collect(pass);
    if (f->use == SD_FEATURE_JOINED) {
        sd_pass_loop_rows(pass, pass->n_rows, join_rows, pass);
        project(pass, pass->n_rows, w->joined, 2 * f->width);
        for (int m = 0; m < pass->n_rows; m++)
            memcpy(w->hidden + m * d, w->update + m * w->ld_update, row_bytes);
        return;
    }
    project(pass, n_given, w->given, f->width);
    for (int m = 0, given = 0; m < pass->n_rows; m++) {
        if (w->row_features[m] == NULL) w->row_features[m] = w->update + given++ * w->ld_update;
        memcpy(w->hidden + m * d, w->row_features[m], row_bytes);
    }
    sd_pass_loop_rows(pass, pass->n_rows, join_rows, pass);
    for (int m = 0; f->normed_stream && m < pass->n_rows; m++)
        memcpy(w->hidden + m * d, w->joined + (2 * m + 1) * d, row_bytes);
}
