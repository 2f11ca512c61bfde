/* The first half of a layer: projections, attention and output projection, also for cross-attention. */
#include "layer.h"

#include <string.h>

#include "attention.h"
#include "kernels.h"
#include "key_values.h"

typedef struct block {
    const sd_pass* pass;
    int layer;
} block;

static const sd_layer_config* config_of(const block* b) {
    return &b->pass->w->model->config.layers[b->layer];
}

static ptrdiff_t row_of(const sd_pass* pass, const sd_branch* branch) {
    ptrdiff_t row = 0;
    for (const sd_branch* before = pass->branches; before < branch; before++)
        row += sd_pass_rows_of(pass, before);
    return row;
}

/* Attention of rows from `row` on with one key/value head: queries from w->qkv, output to w->attended. */
static sd_attention rows_of(const block* b, sd_attended attended, int kv_head, ptrdiff_t row, int n_rows) {
    sd_workspace* w = b->pass->w;
    ptrdiff_t d_q = sd_query_width(config_of(b));
    return SD_MAKE(sd_attention, .attended = attended, .model = w->model, .layer = b->layer,
                   .kv_head = kv_head, .n_rows = n_rows, .queries = w->qkv + row * w->ld_qkv,
                   .ldq = w->ld_qkv, .out = w->attended + row * d_q, .ldo = d_q);
}

/* Prefetch the query, key and value of a row and head. */
static void prefetch_row(const block* b, int kv_head, ptrdiff_t row) {
    const sd_layer_config* own = config_of(b);
    const sd_workspace* w = b->pass->w;
    const float* from = w->qkv + row * w->ld_qkv;
    int d_head = own->d_head, group = own->n_head / own->n_kv_head;
    sd_prefetch_floats(from + (ptrdiff_t)kv_head * group * d_head, group * d_head);
    sd_prefetch_floats(from + sd_keys_column(own) + (ptrdiff_t)kv_head * d_head, d_head);
    sd_prefetch_floats(from + sd_values_column(own) + (ptrdiff_t)kv_head * d_head, d_head);
}

static void run(const block* b, const sd_attention* attention, int thread) {
    sd_workspace* w = b->pass->w;
    if (b->pass->engine == SD_ENGINE_TILES)
        sd_attention_run_tiles(attention, &w->attention_tiles[thread]);
    else
        sd_attention_run(attention, &w->attention[thread]);
}

/* Memory that the attention of a (sequence, key/value head) pair reads first. A single sequence of a small
 * model is likely in a cache already; a text that starts has nothing yet. */
static sd_prefetch_list first_reads(const block* b, int pair) {
    int n_kv_head = config_of(b)->n_kv_head, n = b->pass->n_branches;
    int is_near = n == 1 && b->pass->w->model->layers[b->layer].qkv.near;
    if (is_near || pair == n * n_kv_head) return (sd_prefetch_list){0};
    const sd_cache* cache = b->pass->branches[pair / n_kv_head].cache;
    if (cache->n_committed == 0) return (sd_prefetch_list){0};
    return sd_attention_first_reads(cache, b->layer, pair % n_kv_head);
}

/* Is this the layer in which rows end? */
static int ends_rows(const block* b) {
    return b->pass->n_stored > 0 && b->layer == b->pass->w->model->config.n_layer - 1;
}

/* Text nodes: (sequence, key/value head) pairs. */
static void attend_to_texts(void* argument, int thread, int pair, int end) {
    const block* b = argument;
    sd_workspace* w = b->pass->w;
    int n_kv_head = config_of(b)->n_kv_head;
    for (; pair < end; pair++) {
        const sd_branch* branch = &b->pass->branches[pair / n_kv_head];
        const sd_cache* cache = branch->cache;
        const sd_key_values* keys = &cache->layers[b->layer];
        int kv_head = pair % n_kv_head, first = cache->n_pending - branch->n_new;
        ptrdiff_t row = row_of(b->pass, branch);
        for (int i = 0; i < branch->n_new; i++) {
            if (i + SD_ROWS_AHEAD < branch->n_new) prefetch_row(b, kv_head, row + i + SD_ROWS_AHEAD);
            sd_attention_store(w->model, b->layer, kv_head, &w->angles,
                               cache->n_committed + cache->depths[first + i], w->qkv + (row + i) * w->ld_qkv,
                               keys, cache->n_committed + first + i);
        }
        int n_stored = ends_rows(b) ? branch->n_stored : 0;
        if (n_stored == branch->n_new) continue;
        sd_attention attention =
            rows_of(b, SD_ATTEND_TEXT, kv_head, row + n_stored, branch->n_new - n_stored);
        attention.keys = keys;
        attention.cache = cache;
        sd_prefetch_list prefetch = first_reads(b, pair + 1);
        attention.prefetch = &prefetch;
        run(b, &attention, thread);
    }
}

/* Source rows, by panels of slots: a row with all its heads, as stored. */
static void store_source(void* argument, int thread, int panel, int end) {
    (void)thread;
    const block* b = argument;
    sd_workspace* w = b->pass->w;
    int end_row = end * SD_PANEL < b->pass->n_rows ? end * SD_PANEL : b->pass->n_rows;
    for (int m = panel * SD_PANEL; m < end_row; m++)
        for (int head = 0; head < config_of(b)->n_kv_head; head++)
            sd_attention_store(w->model, b->layer, head, &w->angles, m, w->qkv + m * w->ld_qkv, b->pass->keys,
                               m);
}

/* Source rows of one piece of work: as many as are computed together. */
static int rows_together(const sd_pass* pass, const sd_layer_config* layer) {
    if (pass->engine == SD_ENGINE_TILES) return SD_TILE_SOURCE_ROWS;
    int rows = SD_ATTENTION_ROWS / (layer->n_head / layer->n_kv_head);
    return rows > 1 ? rows : 1;
}

/* Source rows: (key/value head, some rows) pairs. */
static void attend_to_source(void* argument, int thread, int pair, int end) {
    const block* b = argument;
    int together = rows_together(b->pass, config_of(b)), n_rows = b->pass->n_rows;
    int n_pieces = (n_rows + together - 1) / together;
    for (; pair < end; pair++) {
        int row = pair % n_pieces * together, n = n_rows - row < together ? n_rows - row : together;
        sd_attention attention = rows_of(b, SD_ATTEND_OWN, pair / n_pieces, row, n);
        attention.keys = b->pass->keys;
        attention.n_keys = n_rows;
        attention.position = row;
        run(b, &attention, thread);
    }
}

/* Text nodes attending to their sources: (sequence, key/value head) pairs. */
static void attend_to_encoded(void* argument, int thread, int pair, int end) {
    const block* b = argument;
    sd_workspace* w = b->pass->w;
    int n_kv_head = config_of(b)->n_kv_head;
    for (; pair < end; pair++) {
        const sd_branch* branch = &b->pass->branches[pair / n_kv_head];
        const sd_encoded* encoded = branch->cache->encoded;
        sd_attention attention = rows_of(b, SD_ATTEND_SOURCE, pair % n_kv_head, row_of(b->pass, branch),
                                         sd_pass_rows_of(b->pass, branch));
        attention.keys = &encoded->layers[b->layer];
        attention.n_keys = encoded->n;
        sd_attention_run(&attention, &w->attention[thread]);
    }
}

/* Normalize and clamp whole rows of queries, keys and values before they are split into heads. */
static void norm_and_limit(void* argument, int thread, int first, int end) {
    (void)thread;
    const block* b = argument;
    const sd_workspace* w = b->pass->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    const sd_layer_config* own = config_of(b);
    const sd_layer* layer = &model->layers[b->layer];
    for (int m = first; m < end; m++) {
        float *query = w->qkv + m * w->ld_qkv, *key = query + sd_keys_column(own);
        if (c->qk_norm == SD_QK_NORM_WHOLE) {
            sd_model_norm(model, sd_query_width(own), query, layer->q_norm, model->zeros, query);
            sd_model_norm(model, sd_key_width(own), key, layer->k_norm, model->zeros, key);
        }
        if (c->qkv_limit > 0.0f) sd_kernels_get()->clamp(sd_qkv_outputs(own), query, c->qkv_limit);
    }
}

/* w->qkv = input · matrixᵀ + bias. */
static void project(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* input) {
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = matrix, .bias = bias, .n_rows = pass->n_rows,
                                   .x = input, .y = pass->w->qkv, .ldy = pass->w->ld_qkv, .factor = 1.0f));
}

/* Project w->attended back and add it to the residual stream. */
static void project_back(sd_pass* pass, const sd_matrix* matrix, const float* bias, sd_norm_weights norm) {
    sd_workspace* w = pass->w;
    sd_pass_prepare(pass, matrix, pass->n_rows, w->attended, matrix->n_in, (sd_norm_weights){0}, w->prepared);
    sd_pass_add_product(pass, matrix, bias, w->prepared, norm);
}

/* Multiplications of the attention of all rows, as if no layer had a window. */
static double multiplications(const sd_pass* pass, const sd_layer_config* own, sd_attended attended) {
    double n = pass->keys ? (double)pass->n_rows * pass->n_rows : 0.0;
    for (int i = 0; i < pass->n_branches; i++) {
        const sd_cache* cache = pass->branches[i].cache;
        double n_keys =
            attended == SD_ATTEND_SOURCE ? cache->encoded->n : cache->n_committed + cache->n_pending;
        n += sd_pass_rows_of(pass, &pass->branches[i]) * n_keys;
    }
    return 2.0 * n * own->n_head * own->d_head;
}

static void attend(sd_pass* pass, const sd_layer_config* own, block* b) {
    if (pass->keys) {
        int together = rows_together(pass, own), n_pieces = (pass->n_rows + together - 1) / together;
        sd_team_run(&pass->team, sd_matrix_panels(pass->n_rows), 1, store_source, b);
        sd_pass_run(pass, multiplications(pass, own, SD_ATTEND_OWN), n_pieces * own->n_kv_head, 1,
                    attend_to_source, b);
    } else {
        sd_pass_run(pass, multiplications(pass, own, SD_ATTEND_TEXT), pass->n_branches * own->n_kv_head, 1,
                    attend_to_texts, b);
    }
}

/* Move what the pass has of the rows that do not end to its first rows. */
static void end_rows(sd_pass* pass, ptrdiff_t d_q) {
    sd_workspace* w = pass->w;
    ptrdiff_t d_model = w->model->config.d_model, row = 0, n = 0;
    for (int b = 0; b < pass->n_branches; b++) {
        size_t n_here = (size_t)(pass->branches[b].n_new - pass->branches[b].n_stored);
        int n_stored = pass->branches[b].n_stored;
        w->stored_finite[b] =
            (unsigned char)sd_all_finite(w->hidden + row * d_model, n_stored * (int)d_model);
        row += n_stored;
        memmove(w->hidden + n * d_model, w->hidden + row * d_model,
                n_here * (size_t)d_model * sizeof *w->hidden);
        memmove(w->attended + n * d_q, w->attended + row * d_q, n_here * (size_t)d_q * sizeof *w->attended);
        row += (ptrdiff_t)n_here, n += (ptrdiff_t)n_here;
    }
    pass->n_rows = (int)n;
    pass->n_stored = 0;
    pass->ended = 1;
}

void sd_attention_block_run(sd_pass* pass, int i, const void* input) {
    const sd_config* c = &pass->w->model->config;
    const sd_layer* layer = &pass->w->model->layers[i];
    const sd_layer_config* own = &c->layers[i];
    block b = {pass, i};
    project(pass, &layer->qkv, layer->qkv_bias, input);
    if (c->qkv_limit > 0.0f || c->qk_norm == SD_QK_NORM_WHOLE)
        sd_pass_loop_rows(pass, pass->n_rows, norm_and_limit, &b);
    attend(pass, own, &b);
    if (ends_rows(&b)) end_rows(pass, sd_query_width(own));
    if (pass->n_rows == 0) return;
    project_back(pass, &layer->attn_out, layer->attn_out_bias,
                 (sd_norm_weights){layer->attn_post_norm, layer->attn_post_norm_bias});
}

void sd_cross_attention_run(sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    block b = {pass, i};
    project(pass, &layer->cross_q, layer->cross_q_bias, input);
    const sd_layer_config* own = config_of(&b);
    sd_pass_run(pass, multiplications(pass, own, SD_ATTEND_SOURCE), pass->n_branches * own->n_kv_head, 1,
                attend_to_encoded, &b);
    project_back(pass, &layer->cross_out, layer->cross_out_bias,
                 (sd_norm_weights){layer->cross_post_norm, layer->cross_post_norm_bias});
}
