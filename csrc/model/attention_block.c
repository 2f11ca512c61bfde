#include "attention_block.h"

#include "kernels.h"

/* The attention of one layer. */
typedef struct block {
    const sd_pass* pass;
    int layer;
} block;

/* (sequence, key/value head) pairs. */
static void attend_pairs(void* argument, int thread, int pair, int end) {
    const block* a = argument;
    const sd_pass* pass = a->pass;
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    ptrdiff_t d_q = (ptrdiff_t)c->n_head * c->d_head;
    for (; pair < end; pair++) {
        const sd_branch* branch = &pass->branches[pair / c->n_kv_head];
        ptrdiff_t row = 0;
        for (const sd_branch* before = pass->branches; before < branch; before++) row += before->n_new;
        const sd_cache* cache = branch->cache;
        float* qkv = w->qkv + row * w->ld_qkv;
        int kv_head = pair % c->n_kv_head, first_node = cache->n_pending - branch->n_new;
        for (int i = 0; i < branch->n_new; i++) {
            int node = first_node + i, position = cache->n_committed + cache->depths[node];
            sd_attention_store(w->model, a->layer, kv_head, &w->angles, position, qkv + i * w->ld_qkv,
                               &cache->layers[a->layer], cache->n_committed + node);
        }
        sd_attention_run(&(sd_attention){.attended = SD_ATTEND_TEXT,
                                         .model = w->model,
                                         .layer = a->layer,
                                         .kv_head = kv_head,
                                         .keys = &cache->layers[a->layer],
                                         .cache = cache,
                                         .n_rows = branch->n_new,
                                         .queries = qkv,
                                         .ldq = w->ld_qkv,
                                         .out = w->attended + row * d_q,
                                         .ldo = d_q},
                         &w->attention[thread]);
    }
}

/* What is done to whole rows of queries, keys and values before they are split into heads. */
static void norm_and_limit(void* argument, int thread, int first, int end) {
    (void)thread;
    const block* a = argument;
    const sd_workspace* w = a->pass->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    const sd_layer* layer = &model->layers[a->layer];
    for (int m = first; m < end; m++) {
        float *query = w->qkv + m * w->ld_qkv, *key = query + sd_keys_column(c);
        if (c->qk_norm == SD_QK_NORM_WHOLE) {
            sd_model_norm(model, c->n_head * c->d_head, query, layer->q_norm, model->zeros, query);
            sd_model_norm(model, c->n_kv_head * c->d_head, key, layer->k_norm, model->zeros, key);
        }
        if (c->qkv_limit > 0.0f) sd_kernels_get()->clamp(sd_qkv_outputs(c), query, c->qkv_limit);
    }
}

void sd_attention_block_run(const sd_pass* pass, int i, const void* input) {
    sd_workspace* w = pass->w;
    const sd_config* c = &w->model->config;
    const sd_layer* layer = &w->model->layers[i];
    block a = {pass, i};
    sd_pass_multiply(pass, (sd_product){.matrix = &layer->qkv,
                                        .bias = layer->qkv_bias,
                                        .n_rows = pass->n_rows,
                                        .x = input,
                                        .y = w->qkv,
                                        .ldy = w->ld_qkv,
                                        .factor = 1.0f});
    if (c->qkv_limit > 0.0f || c->qk_norm == SD_QK_NORM_WHOLE)
        sd_pass_loop_rows(pass, pass->n_rows, norm_and_limit, &a);
    sd_team_run(&pass->team, pass->n_branches * c->n_kv_head, 1, attend_pairs, &a);
    sd_pass_prepare(pass, pass->n_rows, w->attended, c->n_head * c->d_head, (sd_norm_weights){0},
                    w->prepared);
    sd_pass_add_product(pass, &layer->attn_out, layer->attn_out_bias, w->prepared,
                        (sd_norm_weights){layer->attn_post_norm, layer->attn_post_norm_bias});
}
