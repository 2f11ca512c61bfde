#include "attention.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "positions.h"

/* Slots whose scores become weights and are multiplied with values, for all rows, before the next: with their
 * values they fit a first-level cache. For few rows memory would be idle during the weights of more. */
#define VALUE_SLOTS 64
#define MANY_ROWS 5

/* For sources up to this length the scratch holds the scores of all rows computed together. */
#define SHORT_SOURCE 4096

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

sd_attention_scratch sd_attention_take(sd_arena* arena, const sd_config* c, int n_slots) {
    size_t rows = SD_ATTENTION_ROWS, padded = (size_t)sd_whole_panels(n_slots);
    size_t source = c->encoder ? (size_t)sd_whole_panels(c->encoder->n_ctx) : 0;
    size_t d_head = (size_t)sd_widest(c, sd_head_size);
    size_t n_weights = larger(rows * larger(padded, source < SHORT_SOURCE ? source : SHORT_SOURCE), source);
    return SD_MAKE(
        sd_attention_scratch, .queries = sd_arena_take(arena, rows, d_head * sizeof(float)),
        .prepared = sd_arena_take(arena, rows, sd_prepared_bytes(d_head)),
        .weights = sd_arena_take(arena, n_weights, sizeof(float)), .n_weights = (ptrdiff_t)n_weights,
        .rows = sd_arena_take(arena, 1, sizeof(sd_softmax_rows)),
        .output = sd_arena_take(arena, rows, (size_t)sd_value_panels((int)d_head) * SD_PANEL * sizeof(float)),
        .bias = sd_has_distance_bias(c) ? sd_arena_take(arena, rows + padded, sizeof(float)) : NULL);
}

/* Slots [first, end) that some rows attend to; slots outside have no weight. `first` starts a panel, so a
 * slot always has the same lane. */
typedef struct span {
    int first, end;
} span;

/* A block of the pairs of row and query head of an attention. */
typedef struct site {
    const sd_attention* attention;
    const sd_layer_config* config;
    const sd_layer* layer;
    const sd_attention_scratch* scratch;
    float* bias; /* of the thread */
    /* SD_ATTEND_TEXT: number of leading pending nodes that are a chain, each the child of the one before it.
     * The slots of committed tokens and of these are their positions. */
    int n_chain;
    int first, n; /* (row, query head of the group) pairs computed together: pair m is row m / group */
    span slots;   /* that some of them attend to */
} site;

/* A row's weight of a slot. Rows of weights are in pieces of 32 slots, `chunk` floats apart, from the span's
 * first slot on. */
static float* weight_at(float* weights, ptrdiff_t chunk, span s, int slot) {
    return weights + (slot - s.first) / SD_PANEL * chunk + slot % SD_PANEL;
}

static void mask(float* weights, ptrdiff_t chunk, span s, int first, int end) {
    for (int slot = first > s.first ? first : s.first, n; slot < end; slot += n) {
        float* at = weight_at(weights, chunk, s, slot);
        n = SD_PANEL - slot % SD_PANEL < end - slot ? SD_PANEL - slot % SD_PANEL : end - slot;
        for (int i = 0; i < n; i++) at[i] = -INFINITY;
    }
}

/* First position that a row at `position` attends to. */
static int window_start(const sd_layer_config* config, int position) {
    int start = config->window > 0 ? position - config->window + 1 : 0;
    return start > 0 ? start : 0;
}

/* Fill bias [slots of the span] for a text row at `position`; slots that it does not attend to get arbitrary
 * numbers. */
static void fill_biases(const site* a, int head, int position, span s, float* bias) {
    const sd_attention* at = a->attention;
    const sd_cache* cache = at->cache;
    int n_committed = cache->n_committed, end = n_committed < s.end ? n_committed : s.end;
    if (end > s.first)
        sd_distance_biases_before(at->model, at->layer, head, position, s.first, end - s.first, bias);
    for (int slot = end > s.first ? end : s.first; slot < s.end; slot++) {
        int distance = position - n_committed - cache->depths[slot - n_committed];
        bias[slot - s.first] = sd_distance_bias(at->model, at->layer, head, distance > 0 ? distance : 0);
    }
}

/* Adjust the scores of a row that need more than a factor: the factor, the soft cap and, for a row of a text,
 * the bias. */
static void adjust_scores(const site* a, int head, int position, float* weights, ptrdiff_t chunk, span s) {
    const sd_kernels* k = sd_kernels_get();
    const sd_config* c = &a->attention->model->config;
    float* bias = a->bias;
    int biased = a->attention->cache != NULL && sd_has_distance_bias(c),
        scaled = a->config->score_scale != 1.0f;
    if (!biased && !scaled && c->attn_softcap <= 0.0f) return;
    if (biased) fill_biases(a, head, position, s, bias);
    for (int slot = s.first; slot < s.end; slot += SD_PANEL) {
        float* scores = weight_at(weights, chunk, s, slot);
        int n = s.end - slot < SD_PANEL ? s.end - slot : SD_PANEL;
        if (scaled) k->scale(n, scores, a->config->score_scale, scores);
        if (c->attn_softcap > 0.0f) k->softcap(n, scores, c->attn_softcap);
        if (biased) k->add(1, n, scores, n, bias + slot - s.first, n);
    }
}

/* Add the distance biases to the scores of source rows: pairs first, first + 1, … of row and head. A row's
 * biases are those of the row before it, shifted by one slot; so one line of biases, by the distance from the
 * last row, serves all rows of a head. */
static void add_biases(const site* a, int n_pairs, int first, int n_panels) {
    const sd_attention* at = a->attention;
    int group = a->config->n_head / a->config->n_kv_head;
    float* bias = a->bias;
    for (int pair = 0; pair < group && pair < n_pairs; pair++) { /* first of its head */
        int head = at->kv_head * group + (first + pair) % group, n_rows = (n_pairs - pair - 1) / group + 1;
        int last = at->position + (first + pair) / group + n_rows - 1, n = n_panels * SD_PANEL + n_rows - 1;
        int n_before = last + 1 < n ? last + 1 : n;
        sd_distance_biases_before(at->model, at->layer, head, last, 0, n_before, bias);
        sd_distance_biases_after(at->model, at->layer, head, 1, n - n_before, bias + n_before);
        for (int p = 0; p < n_panels; p++)
            sd_kernels_get()->add(n_rows, SD_PANEL,
                                  a->scratch->weights + ((ptrdiff_t)p * n_pairs + pair) * SD_PANEL,
                                  (ptrdiff_t)group * SD_PANEL, bias + n_rows - 1 + p * SD_PANEL, -1);
    }
}

/* Mask the slots of the tree that are not ancestors of the node, and those before the window. The walk up
 * meets slots in descending order, so it fills the gaps as it goes. It ends at a node of the chain. Returns
 * the number of slots up to that node; their numbers are their positions. */
static int mask_others(const site* a, int node, int start, float* weights, ptrdiff_t chunk, span s) {
    const sd_cache* cache = a->attention->cache;
    int n_committed = cache->n_committed, masked_from = s.end, up = node;
    for (; up >= a->n_chain; up = cache->parents[up]) {
        int slot = n_committed + up, in_window = n_committed + cache->depths[up] >= start;
        mask(weights, chunk, s, slot + in_window, masked_from);
        masked_from = slot;
    }
    int n_whole = n_committed + up + 1;
    mask(weights, chunk, s, n_whole, masked_from);
    mask(weights, chunk, s, 0, start < n_whole ? start : n_whole);
    return n_whole;
}

/* Add the weights of a node and its ancestors, from position `start` on, to the lanes of their positions,
 * from the top down: their depths ascend by 1, so each is found by walking up. None of them is in the
 * chain. */
static void add_ancestors(const site* a, int node, int start, float* weights, ptrdiff_t chunk, span s,
                          float* lanes) {
    const sd_cache* cache = a->attention->cache;
    int n_committed = cache->n_committed, depth = cache->depths[node];
    float by_depth[64];
    for (int low = start - n_committed; low <= depth; low += 64) {
        for (int up = node; up >= a->n_chain; up = cache->parents[up]) {
            int d = cache->depths[up];
            if (d >= low && d < low + 64) by_depth[d - low] = *weight_at(weights, chunk, s, n_committed + up);
        }
        for (int d = low; d <= depth && d < low + 64; d++)
            lanes[(n_committed + d) % SD_LANES] += by_depth[d - low];
    }
}

/* Pending node of a text row. */
static int node_of(const site* a, int row) { return a->attention->first_node + row; }

/* Do scores need more than a factor? */
static int is_adjusted(const site* a) {
    const sd_config* c = &a->attention->model->config;
    return a->attention->attended != SD_ATTEND_SOURCE && (c->attn_softcap > 0.0f || sd_has_distance_bias(c));
}

/* Factor of scores in their exponentials. */
static float factor_of(const site* a) { return is_adjusted(a) ? 1.0f : a->config->score_scale; }

static int group_of(const site* a) { return a->config->n_head / a->config->n_kv_head; }
static int head_of(const site* a, int r) {
    return a->attention->kv_head * group_of(a) + (a->first + r) % group_of(a);
}

/* Scores, then weights, of pair r and those after it; pieces of 32 slots are `chunk_of` floats apart. */
static float* weights_of(const site* a, int r) { return a->scratch->weights + (ptrdiff_t)r * SD_PANEL; }
static ptrdiff_t chunk_of(const site* a) { return (ptrdiff_t)a->n * SD_PANEL; }
static int n_panels_of(const site* a) { return sd_matrix_panels(a->slots.end - a->slots.first); }

/* Adjust and mask the scores of pair r. */
static void begin_row(const site* a, int r) {
    const sd_cache* cache = a->attention->cache;
    int row = (a->first + r) / group_of(a), node = cache ? node_of(a, row) : 0, n_panels = n_panels_of(a);
    int position = cache ? cache->n_committed + cache->depths[node] : a->attention->position + row;
    int* n_whole = &a->scratch->rows->n_whole[r];
    if (is_adjusted(a)) adjust_scores(a, head_of(a, r), position, weights_of(a, r), chunk_of(a), a->slots);
    *n_whole = n_panels * SD_PANEL;
    if (cache) {
        int end_slot =
            mask_others(a, node, window_start(a->config, position), weights_of(a, r), chunk_of(a), a->slots);
        /* slots after a node of the chain have weight 0 */
        if (node >= a->n_chain) *n_whole = end_slot - a->slots.first;
    }
    mask(weights_of(a, r), chunk_of(a), a->slots, a->slots.end, a->slots.first + n_panels * SD_PANEL);
}

/* Turn the scores of pairs [r, end) into weights, in two steps: exp(scale (s − max)) for the positions that a
 * row attends to, 0 elsewhere.
 *
 * A row's weights are summed in the order of positions, whatever slots its ancestors are in: position p adds
 * to lane p % SD_LANES, ascending. Zero weights change no sum. So a node of a tree has the bits of the same
 * token decoded alone. A sink is added last. */
static void begin_softmax(const site* a, int r, int end) {
    const sd_kernels* k = sd_kernels_get();
    sd_softmax_rows* rows = a->scratch->rows;
    float* lanes = rows->lanes + r * SD_LANES;
    for (int i = r; i < end; i++) begin_row(a, i);
    if (a->attention->attended == SD_ATTEND_OWN && sd_has_distance_bias(&a->attention->model->config))
        add_biases(a, a->n, a->first, n_panels_of(a)); /* to masked scores too, which stay masked */
    for (int i = 0; i < (end - r) * SD_LANES; i++) lanes[i] = -INFINITY;
    k->largest_scores(end - r, n_panels_of(a), weights_of(a, r), chunk_of(a), lanes);
    for (int i = r; i < end; i++) rows->largest[i] = k->max(SD_LANES, rows->lanes + i * SD_LANES);
    memset(lanes, 0, (size_t)(end - r) * SD_LANES * sizeof *lanes);
}

/* Weigh n slots from the `first` of the span on, a multiple of 32. */
static void weigh_slots(const site* a, int r, int end, int first, int n) {
    sd_softmax_rows* rows = a->scratch->rows;
    sd_kernels_get()->weigh_scores(
        end - r, sd_matrix_panels(n), first, weights_of(a, r) + first / SD_PANEL * chunk_of(a), chunk_of(a),
        rows->largest + r, factor_of(a), rows->n_whole + r, rows->lanes + r * SD_LANES);
}

/* 1 / sum of the weights of pair r. */
static float normalizer(const site* a, int r) {
    const sd_cache* cache = a->attention->cache;
    sd_softmax_rows* rows = a->scratch->rows;
    float* lanes = rows->lanes + r * SD_LANES;
    int row = (a->first + r) / group_of(a);
    if (cache && node_of(a, row) >= a->n_chain) {
        int node = node_of(a, row), end_slot = a->slots.first + rows->n_whole[r];
        int start = window_start(a->config, cache->n_committed + cache->depths[node]);
        add_ancestors(a, node, start > end_slot ? start : end_slot, weights_of(a, r), chunk_of(a), a->slots,
                      lanes);
    }
    float total = sdk_tree_sum(lanes);
    if (a->layer->sinks != NULL && a->attention->attended != SD_ATTEND_SOURCE) {
        double weight;
        sd_kernels_get()->weigh(1, &a->layer->sinks[head_of(a, r)], rows->largest[r] * factor_of(a), 1.0f,
                                &weight);
        total += (float)weight;
    }
    return 1.0f / total;
}

static void norm_head(const sd_model* model, int d_head, float* x, const float* weight, int head) {
    const sd_config* c = &model->config;
    if (c->qk_norm != SD_QK_NORM_HEAD && c->qk_norm != SD_QK_NORM_EACH_HEAD) return;
    if (c->qk_norm == SD_QK_NORM_EACH_HEAD) weight += (ptrdiff_t)head * d_head;
    sd_model_norm(model, d_head, x, weight, model->zeros, x);
}

/* Normalize the key of a key/value head, if there is one, and the queries of its group. */
static void norm_heads(const sd_model* model, int i, int kv_head, float* query, float* key) {
    const sd_layer* layer = &model->layers[i];
    const sd_layer_config* own = &model->config.layers[i];
    int d_head = own->d_head, group = own->n_head / own->n_kv_head;
    for (int h = 0; h < group; h++)
        norm_head(model, d_head, query + (ptrdiff_t)h * d_head, layer->q_norm, kv_head * group + h);
    if (key) norm_head(model, d_head, key, layer->k_norm, kv_head);
}

void sd_attention_store(const sd_model* model, int i, int kv_head, const sd_angles* angles, int position,
                        float* row, const sd_key_values* keys, int slot) {
    const sd_config* c = &model->config;
    const sd_layer_config* own = &c->layers[i];
    const sd_kernels* k = sd_kernels_get();
    int d_head = own->d_head, group = own->n_head / own->n_kv_head, rotation = own->rotation;
    int n_freq = rotation < 0 ? 0 : c->rotations[rotation].n_freq;
    float* query = row + (ptrdiff_t)kv_head * group * d_head;
    float* key = own->shares_kv ? NULL : row + sd_keys_column(own) + (ptrdiff_t)kv_head * d_head;
    float* value = own->shares_kv ? NULL : row + sd_values_column(own) + (ptrdiff_t)kv_head * d_head;
    if (own->values_from_keys) memcpy(value, key, (size_t)d_head * sizeof *value);
    if (!c->qk_norm_rotated) norm_heads(model, i, kv_head, query, key);
    if (c->v_norm && value) k->rms_norm(d_head, value, model->ones, c->norm_eps, value);
    if (n_freq > 0) {
        const float *cosine = sd_angles_row(angles, rotation, position), *sine = cosine + n_freq;
        for (int h = 0; h < group; h++) k->rotate(n_freq, query + (ptrdiff_t)h * d_head, cosine, sine);
        if (key) k->rotate(n_freq, key, cosine, sine);
    }
    if (c->qk_norm_rotated) norm_heads(model, i, kv_head, query, key);
    float factor = sd_angles_query_factor(angles, position);
    if (factor != 1.0f) k->scale(group * d_head, query, factor, query);
    if (key) sd_key_values_store(keys, kv_head, slot, key, value);
}

/* Prefetches made along the way: one share for each panel of keys and each run of values. */
typedef struct prefetching {
    const sd_prefetch_list* prefetch; /* NULL: none */
    int done, n_shares;
} prefetching;

static void prefetch_next(prefetching* r) {
    if (r->prefetch != NULL && r->done < r->n_shares) sd_prefetch_share(r->prefetch, r->done++, r->n_shares);
}

/* Compute scores for panels [panel, end) of the span, each one dot product over d_head. */
static void score(const site* a, int panel, int end, prefetching* r) {
    const sd_kernels* k = sd_kernels_get();
    const sd_key_values* keys = a->attention->keys;
    for (; panel < end; panel++) {
        prefetch_next(r);
        k->panel[keys->format](a->n, a->scratch->prepared,
                               sd_key_panel(keys, a->attention->kv_head, a->slots.first / SD_PANEL + panel),
                               keys->d_head, 0, a->scratch->weights + panel * chunk_of(a), SD_PANEL);
    }
}

static ptrdiff_t ld_output(const site* a) { return (ptrdiff_t)sd_value_panels(a->config->d_head) * SD_PANEL; }

/* Add the weighted values of n contiguous slots from `slot` on to the output columns of panel p. */
static void add_values(const site* a, int p, int slot, int n) {
    const sd_kernels* k = sd_kernels_get();
    const sd_key_values* keys = a->attention->keys;
    void (*add)(int, const float*, const void*, int, float*, ptrdiff_t) =
        keys->format == SD_FORMAT_F32    ? k->add_values_f32
        : keys->format == SD_FORMAT_BF16 ? k->add_values_bf16
                                         : k->add_values_int8;
    add(a->n, a->scratch->weights + (slot - a->slots.first) / SD_PANEL * chunk_of(a),
        sd_value_rows(keys, a->attention->kv_head, p, slot), n, a->scratch->output + (ptrdiff_t)p * SD_PANEL,
        ld_output(a));
}

/* output [n, …] = Σ weight · value, one chain over the slots per column. Scores become weights on the way,
 * while the first-level cache holds them. */
static void weigh(const site* a, prefetching* r) {
    int most = a->n < MANY_ROWS ? VALUE_SLOTS : 2 * VALUE_SLOTS;
    memset(a->scratch->output, 0, (size_t)a->n * (size_t)ld_output(a) * sizeof(float));
    for (int slot = a->slots.first, n; slot < a->slots.end; slot += n) {
        int run = sd_key_values_run(a->attention->keys, slot);
        n = run < most ? run : most;
        if (a->slots.end - slot < n) n = a->slots.end - slot;
        weigh_slots(a, 0, a->n, slot - a->slots.first, n);
        for (int p = 0; p < sd_value_panels(a->config->d_head); p++) {
            prefetch_next(r);
            add_values(a, p, slot, n);
        }
    }
}

/* Slots that rows [first, last] attend to. */
static span span_of(const site* a, int first, int last) {
    const sd_cache* cache = a->attention->cache;
    if (cache == NULL) return (span){0, a->attention->n_keys};
    int start = INT_MAX;
    for (int row = first; row <= last; row++) {
        int here = window_start(a->config, cache->n_committed + cache->depths[node_of(a, row)]);
        if (here < start) start = here;
    }
    /* the slot of a position is at or after its own number; later nodes are not ancestors */
    return (span){start / SD_PANEL * SD_PANEL, sd_cache_end(cache, node_of(a, last))};
}

sd_prefetch_list sd_attention_first_reads(const sd_cache* cache, int layer, int kv_head) {
    int start = window_start(&cache->model->config.layers[layer], cache->n_committed);
    return sd_key_values_first_reads(sd_cache_keys(cache, layer), kv_head, start / SD_PANEL * SD_PANEL,
                                     sd_cache_end(cache, cache->n_pending - 1));
}

static int pairs_together(const sd_attention* at, const sd_attention_scratch* scratch) {
    if (at->attended != SD_ATTEND_SOURCE) return SD_ATTENTION_ROWS;
    ptrdiff_t pairs = scratch->n_weights / sd_whole_panels(at->n_keys);
    return pairs < SD_ATTENTION_ROWS ? (int)pairs : SD_ATTENTION_ROWS;
}

static int n_pairs_of(const sd_attention* at) {
    const sd_layer_config* own = &at->model->config.layers[at->layer];
    return at->n_rows * (own->n_head / own->n_kv_head);
}

int sd_attention_blocks(const sd_attention* at, const sd_attention_scratch* scratch) {
    int together = pairs_together(at, scratch);
    return (n_pairs_of(at) + together - 1) / together;
}

static site site_of(const sd_attention* at, const sd_attention_scratch* scratch, int block) {
    int together = pairs_together(at, scratch), left = n_pairs_of(at) - block * together;
    site a = SD_MAKE(site, .attention = at, .config = &at->model->config.layers[at->layer],
                     .layer = &at->model->layers[at->layer], .scratch = scratch, .bias = scratch->bias,
                     .n_chain = at->cache ? sd_cache_chain(at->cache) : 0, .first = block * together,
                     .n = left < together ? left : together);
    a.slots = span_of(&a, a.first / group_of(&a), (a.first + a.n - 1) / group_of(&a));
    return a;
}

/* Offset of the query, and of the output, of pair r; rows are ld apart. */
static ptrdiff_t at_pair(const site* a, int r, ptrdiff_t ld) {
    return (a->first + r) / group_of(a) * ld + (ptrdiff_t)head_of(a, r) * a->config->d_head;
}

static void prepare(const site* a) {
    const sd_attention* at = a->attention;
    int d_head = a->config->d_head;
    for (int r = 0; r < a->n; r++)
        memcpy(a->scratch->queries + (ptrdiff_t)r * d_head, at->queries + at_pair(a, r, at->ldq),
               (size_t)d_head * sizeof(float));
    sd_kernels_get()->prepare[sd_rows_of(at->keys->format)](
        (sd_part){a->n, 0, a->n, 0, d_head}, a->scratch->queries, d_head, d_head, a->scratch->prepared);
}

void sd_attention_run(const sd_attention* at, const sd_attention_scratch* scratch) {
    int n_blocks = sd_attention_blocks(at, scratch);
    for (int block = 0; block < n_blocks; block++) {
        const site a = site_of(at, scratch, block);
        prepare(&a);
        /* only for the last rows, or prefetched lines may leave the caches before they are read */
        const sd_prefetch_list* prefetch = block == n_blocks - 1 ? at->prefetch : NULL;
        prefetching r = {prefetch, 0, n_panels_of(&a) + sd_value_panels(a.config->d_head)};
        score(&a, 0, n_panels_of(&a), &r);
        begin_softmax(&a, 0, a.n);
        weigh(&a, &r);
        for (int i = 0; i < a.n; i++)
            sd_kernels_get()->scale(a.config->d_head, scratch->output + i * ld_output(&a), normalizer(&a, i),
                                    at->out + at_pair(&a, i, at->ldo));
    }
}

/* ------------------------------------------------------------------------------------ shared by threads */

sd_attention_pieces sd_attention_prepare(const sd_attention* at, const sd_attention_scratch* scratch,
                                         int block) {
    const site a = site_of(at, scratch, block);
    prepare(&a);
    return (sd_attention_pieces){n_panels_of(&a), a.n, sd_value_panels(a.config->d_head)};
}

void sd_attention_score(const sd_attention* at, const sd_attention_scratch* scratch, int block, int panel,
                        int end) {
    const site a = site_of(at, scratch, block);
    score(&a, panel, end, &(prefetching){0});
}

void sd_attention_weigh(const sd_attention* at, const sd_attention_scratch* scratch, int block, int pair,
                        float* bias) {
    site a = site_of(at, scratch, block);
    a.bias = bias;
    begin_softmax(&a, pair, pair + 1);
    weigh_slots(&a, pair, pair + 1, 0, n_panels_of(&a) * SD_PANEL);
    scratch->rows->factors[pair] = normalizer(&a, pair);
}

void sd_attention_add_values(const sd_attention* at, const sd_attention_scratch* scratch, int block, int p) {
    const site a = site_of(at, scratch, block);
    int first = p * SD_PANEL, left = a.config->d_head - first;
    for (int i = 0; i < a.n; i++)
        memset(scratch->output + i * ld_output(&a) + first, 0, SD_PANEL * sizeof(float));
    for (int slot = a.slots.first, n; slot < a.slots.end; slot += n) {
        int run = sd_key_values_run(at->keys, slot);
        n = a.slots.end - slot < run ? a.slots.end - slot : run;
        add_values(&a, p, slot, n);
    }
    for (int i = 0; i < a.n; i++)
        sd_kernels_get()->scale(left < SD_PANEL ? left : SD_PANEL,
                                scratch->output + i * ld_output(&a) + first, scratch->rows->factors[i],
                                at->out + at_pair(&a, i, at->ldo) + first);
}
