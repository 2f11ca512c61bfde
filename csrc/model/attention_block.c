#include "attention_block.h"

/* Attention of (sequence, key/value head) pairs. */
typedef struct attention {
    const sd_pass* pass;
    int layer;
} attention;

static void attend_pairs(void* argument, int thread, int pair, int end) {
    const attention* a = argument;
    const sd_pass* pass = a->pass;
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    ptrdiff_t d_q = (ptrdiff_t)c->n_head * c->d_head;
    for (; pair < end; pair++) {
        const sd_branch* branch = &pass->branches[pair / c->n_kv_head];
        ptrdiff_t row = 0;
        for (const sd_branch* before = pass->branches; before < branch; before++) row += before->n_new;
        sd_attention(w->model, branch->cache, a->layer, pair % c->n_kv_head, branch->n_new, &w->angles,
                     w->qkv + row * w->ld_qkv, w->ld_qkv, w->attended + row * d_q, d_q,
                     &w->attention[thread]);
    }
}

void sd_attention_block_run(const sd_pass* pass, int i) {
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    const sd_layer* layer = &w->model->layers[i];
    sd_pass_prepare(pass, pass->n_rows, w->hidden, c->d_model,
                    (sd_norm_weights){layer->attn_norm, layer->attn_norm_bias});
    sd_pass_multiply(
        pass, (sd_product){&layer->qkv, layer->qkv_bias, pass->n_rows, w->prepared, w->qkv, w->ld_qkv, NULL});
    sd_team_run(&pass->team, pass->n_branches * c->n_kv_head, 1, attend_pairs, &(attention){pass, i});
    sd_pass_prepare(pass, pass->n_rows, w->attended, c->n_head * c->d_head, (sd_norm_weights){0});
    sd_pass_add_product(pass, &layer->attn_out, layer->attn_out_bias, w->prepared);
}
