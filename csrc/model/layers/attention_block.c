/* The first half of a layer: projections, attention and output projection, also for cross-attention. */
#include "layer.h"

#include <string.h>

#include "attention.h"
#include "kernels.h"
#include "key_values.h"

/* Multiply-adds (one thread) above which sharing an attention saves more than its extra loops cost. */
#define SHARING_PAYS ((double)(1 << 19))

typedef struct block {
    const sd_pass* pass;
    int layer;
    sd_attended attended;
    int stored; /* rows have been stored, before some of them ended */
    /* (Sequence, key/value head) pairs from `first` on that all threads share, and the most rows of one. */
    int first, n_shared, most_rows;
    int together, n_row_pieces; /* rows of a piece, and pieces of a pair, where threads share rows */
    /* Where they share keys: the block of rows, and the pieces of each pair. Pair i has scratch i. */
    int index, n_key_shares;
    sd_attention_pieces pieces[SD_MAX_THREADS];
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
static sd_attention rows_of(const block* b, int kv_head, ptrdiff_t row, int n_rows) {
    sd_workspace* w = b->pass->w;
    ptrdiff_t d_q = sd_query_width(config_of(b));
    return SD_MAKE(sd_attention, .attended = b->attended, .model = w->model, .layer = b->layer,
                   .kv_head = kv_head, .n_rows = n_rows, .queries = w->qkv + row * w->ld_qkv,
                   .ldq = w->ld_qkv, .out = w->attended + row * d_q, .ldo = d_q);
}

static const sd_branch* branch_of(const block* b, int pair) {
    return &b->pass->branches[pair / config_of(b)->n_kv_head];
}

static int n_rows_of(const block* b, int pair) { return sd_pass_rows_of(b->pass, branch_of(b, pair)); }

/* Attention of n_rows rows of a (sequence, key/value head) pair, from its row `row` on. */
static sd_attention pair_rows(const block* b, int pair, int row, int n_rows) {
    const sd_branch* branch = branch_of(b, pair);
    const sd_cache* cache = branch->cache;
    sd_attention at = rows_of(b, pair % config_of(b)->n_kv_head, row_of(b->pass, branch) + row, n_rows);
    if (b->attended == SD_ATTEND_SOURCE) {
        at.keys = &cache->encoded->layers[b->layer];
        at.n_keys = cache->encoded->n;
    } else {
        at.keys = sd_cache_keys(cache, b->layer);
        at.cache = cache;
        at.first_node = cache->n_pending - n_rows_of(b, pair) + row;
    }
    return at;
}

/* Prefetch the queries of a row and key/value head, and the key and value if it has its own. */
static void prefetch_row(const block* b, int kv_head, ptrdiff_t row) {
    const sd_layer_config* own = config_of(b);
    const sd_workspace* w = b->pass->w;
    const float* from = w->qkv + row * w->ld_qkv;
    int d_head = own->d_head, group = own->n_head / own->n_kv_head;
    sd_prefetch_floats(from + (ptrdiff_t)kv_head * group * d_head, group * d_head);
    if (own->shares_kv) return;
    sd_prefetch_floats(from + sd_keys_column(own) + (ptrdiff_t)kv_head * d_head, d_head);
    sd_prefetch_floats(from + sd_values_column(own) + (ptrdiff_t)kv_head * d_head, d_head);
}

static void run(const block* b, const sd_attention* attention, int thread) {
    sd_workspace* w = b->pass->w;
    if (b->pass->engine == SD_ENGINE_TILES && b->attended != SD_ATTEND_SOURCE)
        sd_attention_run_tiles(attention, &w->attention_tiles[thread]);
    else
        sd_attention_run(attention, &w->attention[thread]);
}

/* Memory that the attention of a (sequence, key/value head) pair reads first. A single sequence of a small
 * model is likely in a cache already; a text that starts has nothing yet. */
static sd_prefetch_list first_reads(const block* b, int pair) {
    int n_kv_head = config_of(b)->n_kv_head, n = b->pass->n_branches;
    int is_near = n == 1 && b->pass->w->model->layers[b->layer].qkv.near;
    if (is_near || pair == n * n_kv_head || b->attended == SD_ATTEND_SOURCE) return (sd_prefetch_list){0};
    const sd_cache* cache = b->pass->branches[pair / n_kv_head].cache;
    if (cache->n_committed == 0) return (sd_prefetch_list){0};
    return sd_attention_first_reads(cache, b->layer, pair % n_kv_head);
}

/* Rotate the queries of new nodes [row, end) of a pair, and store their keys and values, if the layer has its
 * own; see sd_attention_store. */
static void store_rows(const block* b, int pair, int row, int end) {
    sd_workspace* w = b->pass->w;
    const sd_branch* branch = branch_of(b, pair);
    const sd_cache* cache = branch->cache;
    int kv_head = pair % config_of(b)->n_kv_head, first = cache->n_pending - n_rows_of(b, pair);
    ptrdiff_t first_row = row_of(b->pass, branch);
    for (; row < end; row++) {
        if (row + SD_ROWS_AHEAD < end) prefetch_row(b, kv_head, first_row + row + SD_ROWS_AHEAD);
        sd_attention_store(w->model, b->layer, kv_head, &w->angles,
                           cache->n_committed + cache->depths[first + row],
                           w->qkv + (first_row + row) * w->ld_qkv, &cache->layers[b->layer],
                           cache->n_committed + first + row);
    }
}

/* Must the rows that attend be stored (store_rows) before? */
static int stores(const block* b) { return b->attended == SD_ATTEND_TEXT && !b->stored; }

/* New nodes that attend to their text or source: (sequence, key/value head) pairs. */
static void attend_alone(void* argument, int thread, int pair, int end) {
    const block* b = argument;
    for (; pair < end; pair++) {
        int n_rows = n_rows_of(b, pair);
        if (n_rows == 0) continue;
        if (stores(b)) store_rows(b, pair, 0, n_rows);
        sd_attention attention = pair_rows(b, pair, 0, n_rows);
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
        sd_attention attention = rows_of(b, pair / n_pieces, row, n);
        attention.keys = b->pass->keys;
        attention.n_keys = n_rows;
        attention.position = row;
        run(b, &attention, thread);
    }
}

/* ---- Threads share pairs, without splitting a sum. */

/* (Pair, row) pieces. */
static void store_shared(void* argument, int thread, int i, int end) {
    (void)thread;
    const block* b = argument;
    for (; i < end; i++) {
        int pair = b->first + i / b->most_rows, row = i % b->most_rows;
        if (row < n_rows_of(b, pair)) store_rows(b, pair, row, row + 1);
    }
}

/* (Pair, some rows) pieces. */
static void attend_by_rows(void* argument, int thread, int i, int end) {
    const block* b = argument;
    for (; i < end; i++) {
        int pair = b->first + i / b->n_row_pieces, row = i % b->n_row_pieces * b->together;
        int left = n_rows_of(b, pair) - row;
        if (left <= 0) continue;
        sd_attention attention = pair_rows(b, pair, row, left < b->together ? left : b->together);
        run(b, &attention, thread);
    }
}

static sd_attention shared_pair(const block* b, int i) {
    return pair_rows(b, b->first + i, 0, n_rows_of(b, b->first + i));
}

/* (Pair, some panels of keys) pieces. */
static void score_shared(void* argument, int thread, int i, int end) {
    (void)thread;
    const block* b = argument;
    for (; i < end; i++) {
        int pair = i / b->n_key_shares, share = i % b->n_key_shares, n = b->pieces[pair].n_key_panels;
        const sd_attention attention = shared_pair(b, pair);
        sd_attention_score(&attention, &b->pass->w->attention[pair], b->index,
                           (int)((long)n * share / b->n_key_shares),
                           (int)((long)n * (share + 1) / b->n_key_shares));
    }
}

/* (Pair, row and query head) pieces. */
static void weigh_shared(void* argument, int thread, int i, int end) {
    const block* b = argument;
    sd_workspace* w = b->pass->w;
    for (; i < end; i++) {
        int pair = i / SD_ATTENTION_ROWS, r = i % SD_ATTENTION_ROWS;
        if (r >= b->pieces[pair].n_pairs) continue;
        const sd_attention attention = shared_pair(b, pair);
        sd_attention_weigh(&attention, &w->attention[pair], b->index, r, w->attention[thread].bias);
    }
}

/* (Pair, panel of value columns) pieces. */
static void add_shared_values(void* argument, int thread, int i, int end) {
    (void)thread;
    const block* b = argument;
    int n_panels = sd_value_panels(config_of(b)->d_head);
    for (; i < end; i++) {
        const sd_attention attention = shared_pair(b, i / n_panels);
        if (b->pieces[i / n_panels].n_pairs > 0)
            sd_attention_add_values(&attention, &b->pass->w->attention[i / n_panels], b->index, i % n_panels);
    }
}

/* Prepare block b->index of each shared pair that has one. Returns whether any has. */
static int prepare_shared(block* b) {
    int n = 0;
    for (int i = 0; i < b->n_shared; i++) {
        const sd_attention_scratch* scratch = &b->pass->w->attention[i];
        const sd_attention attention = shared_pair(b, i);
        b->pieces[i] = (sd_attention_pieces){0};
        if (b->index >= sd_attention_blocks(&attention, scratch)) continue;
        b->pieces[i] = sd_attention_prepare(&attention, scratch, b->index);
        n++;
    }
    return n > 0;
}

/* Share the pairs by rows if these make enough pieces, else the keys, weights and columns of each. */
static void attend_shared(sd_pass* pass, const sd_layer_config* own, double n_multiplications, block* b) {
    int n_threads = pass->team.n_threads, tiles = pass->engine == SD_ENGINE_TILES;
    int group = own->n_head / own->n_kv_head, n_rows = b->most_rows;
    if (stores(b)) sd_pass_loop_rows(pass, b->n_shared * n_rows, store_shared, b);
    b->together = SD_ATTENTION_ROWS > group ? SD_ATTENTION_ROWS / group : 1;
    /* each piece in tiles stores all values in pairs: few pieces */
    if (tiles && b->attended == SD_ATTEND_TEXT)
        b->together = (n_rows * b->n_shared + n_threads - 1) / n_threads;
    b->n_row_pieces = (n_rows + b->together - 1) / b->together;
    if (tiles || b->n_shared * b->n_row_pieces >= 4 * n_threads) {
        sd_pass_run(pass, n_multiplications, b->n_shared * b->n_row_pieces, 1, attend_by_rows, b);
        return;
    }
    b->n_key_shares = 1 + 4 * n_threads / b->n_shared;
    for (b->index = 0; prepare_shared(b); b->index++) {
        int n_columns = b->n_shared * sd_value_panels(own->d_head);
        double of_block = n_multiplications / b->n_row_pieces;
        sd_pass_run(pass, 0.5 * of_block, b->n_shared * b->n_key_shares, 1, score_shared, b);
        sd_pass_run(pass, 0.0, b->n_shared * SD_ATTENTION_ROWS, 1, weigh_shared, b);
        sd_pass_run(pass, 0.5 * of_block, n_columns, 1, add_shared_values, b);
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
            if (!own->shares_kv)
                sd_model_norm(model, sd_key_width(own), key, layer->k_norm, model->zeros, key);
        }
        if (c->qkv_limit > 0.0f) sd_kernels_get()->clamp(sd_qkv_width(own), query, c->qkv_limit);
    }
}

/* Multiply the attention of whole rows by their gates. */
static void apply_gates(void* argument, int thread, int first, int end) {
    (void)thread;
    const block* b = argument;
    const sd_workspace* w = b->pass->w;
    const sd_kernels* k = sd_kernels_get();
    const sd_config* c = &w->model->config;
    const sd_layer_config* own = config_of(b);
    int n = sd_gate_width(c, own), d_head = own->d_head;
    for (int m = first; m < end; m++) {
        float* gate = w->qkv + m * w->ld_qkv + sd_gate_column(own);
        float* attended = w->attended + (ptrdiff_t)m * sd_query_width(own);
        (c->attn_gate_softplus ? k->softplus : k->sigmoid)(n, gate, gate);
        if (c->attn_gate == SD_ATTN_GATE_WHOLE) k->multiply(n, attended, gate);
        for (int h = 0; c->attn_gate == SD_ATTN_GATE_HEAD && h < n; h++, attended += d_head)
            k->scale(d_head, attended, gate[h], attended);
    }
}

void sd_pass_project(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* input) {
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = matrix, .bias = bias, .n_rows = pass->n_rows,
                                   .x = input, .y = pass->w->qkv, .ldy = pass->w->ld_qkv, .factor = 1.0f));
}

void sd_pass_project_back(sd_pass* pass, const sd_matrix* matrix, const float* bias, sd_norm_weights norm,
                          float scale) {
    sd_workspace* w = pass->w;
    sd_pass_prepare(pass, matrix, pass->n_rows, w->attended, matrix->n_in, (sd_norm_weights){0}, w->prepared);
    sd_pass_add_product(pass, matrix, bias, w->prepared, norm, scale);
}

/* Multiplications of the attention of all rows. */
static double multiplications(const block* b) {
    const sd_layer_config* own = config_of(b);
    double n = b->pass->keys ? (double)b->pass->n_rows * b->pass->n_rows : 0.0;
    for (int i = 0; i < b->pass->n_branches; i++) {
        const sd_branch* branch = &b->pass->branches[i];
        const sd_cache* cache = branch->cache;
        int n_keys = cache->n_committed + cache->n_pending, n_rows = sd_pass_rows_of(b->pass, branch);
        int seen = own->window + n_rows;
        if (b->attended == SD_ATTEND_SOURCE)
            n_keys = cache->encoded->n;
        else if (own->window > 0 && seen < n_keys)
            n_keys = seen;
        n += (double)n_rows * n_keys;
    }
    return 2.0 * n * own->n_head * own->d_head;
}

/* Each thread takes whole pairs; those that are left, fewer than threads, are shared if that pays. */
static void attend_to_keys(sd_pass* pass, const sd_layer_config* own, block* b) {
    int n_pairs = pass->n_branches * own->n_kv_head, n_threads = pass->team.n_threads;
    double of_pair = multiplications(b) / n_pairs;
    b->n_shared = n_pairs % n_threads;
    if (of_pair * (n_threads - b->n_shared) / n_threads < SHARING_PAYS) b->n_shared = 0;
    b->first = n_pairs - b->n_shared;
    sd_pass_run(pass, of_pair * b->first, b->first, 1, attend_alone, b);
    for (int i = b->first; i < n_pairs; i++)
        if (n_rows_of(b, i) > b->most_rows) b->most_rows = n_rows_of(b, i);
    if (b->most_rows > 0) attend_shared(pass, own, of_pair * b->n_shared, b);
}

static void attend(sd_pass* pass, const sd_layer_config* own, block* b) {
    if (pass->keys) {
        int together = rows_together(pass, own), n_pieces = (pass->n_rows + together - 1) / together;
        b->attended = SD_ATTEND_OWN;
        sd_team_run(&pass->team, sd_matrix_panels(pass->n_rows), 1, store_source, b);
        sd_pass_run(pass, multiplications(b), n_pieces * own->n_kv_head, 1, attend_to_source, b);
    } else {
        attend_to_keys(pass, own, b);
    }
}

/* (Sequence, key/value head) pairs of which all new nodes are stored, before some of them end. */
static void store_pairs(void* argument, int thread, int pair, int end) {
    (void)thread;
    const block* b = argument;
    for (; pair < end; pair++) store_rows(b, pair, 0, branch_of(b, pair)->n_new);
}

/* Store all rows, and move those that do not end to the first rows of the pass. */
static void end_rows(sd_pass* pass, const sd_layer_config* own, block* b) {
    sd_workspace* w = pass->w;
    ptrdiff_t d = w->model->config.d_model, row = 0, n = 0;
    sd_team_run(&pass->team, pass->n_branches * own->n_kv_head, 1, store_pairs, b);
    for (int i = 0; i < pass->n_branches; i++) {
        int n_stored = pass->branches[i].n_stored, left = pass->branches[i].n_new - n_stored;
        w->stored_finite[i] = (unsigned char)sd_all_finite(w->hidden + row * d, n_stored * (int)d);
        row += n_stored;
        memmove(w->hidden + n * d, w->hidden + row * d, (size_t)(left * d) * sizeof *w->hidden);
        memmove(w->qkv + n * w->ld_qkv, w->qkv + row * w->ld_qkv,
                (size_t)(left * w->ld_qkv) * sizeof *w->qkv);
        if (w->per_layer)
            memmove(w->per_layer + n * w->ld_per_layer, w->per_layer + row * w->ld_per_layer,
                    (size_t)(left * w->ld_per_layer) * sizeof *w->per_layer);
        row += left, n += left;
    }
    pass->n_rows = (int)n;
    pass->n_stored = 0;
    pass->ended = b->stored = 1;
}

void sd_attention_block_run(sd_pass* pass, int i, const void* input) {
    const sd_config* c = &pass->w->model->config;
    const sd_layer* layer = &pass->w->model->layers[i];
    const sd_layer_config* own = &c->layers[i];
    block b = {.pass = pass, .layer = i, .attended = SD_ATTEND_TEXT};
    sd_pass_project(pass, &layer->qkv, layer->qkv_bias, input);
    if (c->qkv_limit > 0.0f || c->qk_norm == SD_QK_NORM_WHOLE)
        sd_pass_loop_rows(pass, pass->n_rows, norm_and_limit, &b);
    if (pass->n_stored > 0 && i == sd_last_stored(c)) end_rows(pass, own, &b);
    if (pass->n_rows == 0) return;
    attend(pass, own, &b);
    if (c->attn_gate != SD_ATTN_GATE_NONE) sd_pass_loop_rows(pass, pass->n_rows, apply_gates, &b);
    sd_pass_project_back(pass, &layer->attn_out, layer->attn_out_bias,
                         (sd_norm_weights){layer->attn_post_norm, layer->attn_post_norm_bias},
                         c->attn_out_scale);
}

void sd_cross_attention_run(sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    block b = {.pass = pass, .layer = i, .attended = SD_ATTEND_SOURCE};
    sd_pass_project(pass, &layer->cross_q, layer->cross_q_bias, input);
    const sd_layer_config* own = config_of(&b);
    attend_to_keys(pass, own, &b);
    sd_pass_project_back(pass, &layer->cross_out, layer->cross_out_bias,
                         (sd_norm_weights){layer->cross_post_norm, layer->cross_post_norm_bias}, 1.0f);
}
