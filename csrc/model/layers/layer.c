#include "layer.h"

#include "attention_block.h"
#include "feed_forward.h"
#include "input_sums.h"

/* Where the halves are parallel the second reads the stream as it was before the first was added. */
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
        sd_pass_prepare(pass, mlp, pass->n_rows, w->hidden, c->d_model, norm, w->beside);
        mlp_input = w->beside;
        if (c->parallel == SD_PARALLEL_ONE_NORM && layer->qkv.rows == mlp->rows) {
            const float* rows = norm.weight ? w->normed : w->hidden;
            attn_input = w->beside;
            sd_input_sums_add(w->input_sums, &layer->qkv, pass->n_rows, 0, c->d_model, rows, c->d_model);
            sd_adapted_rows_read(w->adaptation.now, &layer->qkv, 0, pass->n_rows, 0, c->d_model, rows,
                                 c->d_model);
            sd_pass_reduce(pass, &layer->qkv);
        }
    }
    if (!(skipped & SD_SKIP_ATTN)) {
        if (c->layers[i].reads_token)
            sd_pass_prepare(pass, &layer->qkv, pass->n_rows, w->joined, 2 * c->d_model, (sd_norm_weights){0},
                            w->prepared);
        else if (attn_input == w->prepared)
            sd_pass_prepare(pass, &layer->qkv, pass->n_rows, w->hidden, c->d_model, attn_norm, w->prepared);
        sd_attention_block_run(pass, i, attn_input);
        if (c->encoder) {
            sd_norm_weights cross_norm = {layer->cross_norm, layer->cross_norm_bias};
            sd_pass_prepare(pass, &layer->cross_q, pass->n_rows, w->hidden, c->d_model, cross_norm,
                            w->prepared);
            sd_cross_attention_run(pass, i, w->prepared);
        }
    }
    if (!(skipped & SD_SKIP_MLP) && pass->status == SD_OK) {
        if (mlp_input == w->prepared)
            sd_pass_prepare(pass, mlp, pass->n_rows, w->hidden, c->d_model, mlp_norm, w->prepared);
        sd_feed_forward_run(pass, i, mlp_input);
    }
}
