#include "attention.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

sd_attention_scratch sd_attention_take(sd_arena* arena, const sd_config* c, int n_slots) {
    size_t rows = SD_ATTENTION_ROWS, padded = (size_t)sd_matrix_panels(n_slots) * SD_PANEL;
    return (sd_attention_scratch){
        .queries = sd_arena_take(arena, rows, (size_t)c->d_head * sizeof(float)),
        .weights = sd_arena_take(arena, rows, padded * sizeof(float)),
        .output = sd_arena_take(arena, rows, (size_t)sd_value_panels(c->d_head) * SD_PANEL * sizeof(float)),
    };
}

/* Turn one row of scores over slots 0 … n_slots - 1 into unnormalised weights: exp(scale (s − max))
 * for the committed positions in the window and for the node's ancestors and itself, 0 elsewhere.
 * Returns 1 / their sum.
 *
 * The sum runs in the order of positions, whatever slots the ancestors lie in: position p adds to
 * lane p % SD_LANES, ascending. Zero weights change no sum. That is why a node of a tree has the
 * bits of the same token decoded alone. */
static float softmax(const sd_config* config, const sd_cache* cache, int node, float* scores, int n_slots) {
    const sd_kernels* k = sd_kernels_get();
    int n_committed = cache->n_committed, depth = cache->depths[node];
    int position = n_committed + depth;
    int start = 0; /* first position in the window */
    if (config->sliding_window > 0 && position - config->sliding_window + 1 > 0)
        start = position - config->sliding_window + 1;

    /* Mask the slots of the tree that are not on the way up from the node, and what lies before
     * the window. The way up meets slots in descending order, so the gaps fill as it goes. */
    int masked_from = n_slots;
    for (int a = node; a >= 0; a = cache->parents[a]) {
        int slot = n_committed + a, in_window = n_committed + cache->depths[a] >= start;
        for (int s = slot + in_window; s < masked_from; s++) scores[s] = -INFINITY;
        masked_from = slot;
    }
    for (int s = n_committed; s < masked_from; s++) scores[s] = -INFINITY;
    for (int s = 0; s < start && s < n_committed; s++) scores[s] = -INFINITY;

    float scale = 1.0f / sqrtf((float)config->d_head);
    k->exp(n_slots, scores, k->max(n_slots, scores), scale, scores);

    float lanes[SD_LANES] = {0};
    k->lane_sum(n_committed, scores, lanes);
    /* Ancestors from the root down: their depths are 0, 1, … so each is found by walking up. */
    float by_depth[64];
    for (int low = 0; low <= depth; low += 64) {
        for (int a = node; a >= 0; a = cache->parents[a]) {
            int d = cache->depths[a];
            if (d >= low && d < low + 64) by_depth[d - low] = scores[n_committed + a];
        }
        for (int d = low; d <= depth && d < low + 64; d++)
            lanes[(n_committed + d) % SD_LANES] += by_depth[d - low];
    }
    return 1.0f / sdk_tree_sum(lanes);
}

/* Scores of the rows [n_rows, d_head] against every slot: each one dot product over d_head. */
static void score(const sd_cache* cache, const float* keys, int n_rows, int n_slots,
                  const sd_attention_scratch* s, ptrdiff_t ldw) {
    const sd_kernels* k = sd_kernels_get();
    for (int slot = 0; slot < n_slots; slot += SD_PANEL)
        k->panel(n_rows, s->queries, cache->d_head, keys + (size_t)slot * (size_t)cache->d_head,
                 cache->d_head, s->weights + slot, ldw);
}

static void rotate_and_store(const sd_model* model, const sd_cache* cache, int layer, int kv_head, int n_new,
                             float* qkv, ptrdiff_t ldq) {
    const sd_config* c = &model->config;
    const sd_kernels* k = sd_kernels_get();
    int group = c->n_head / c->n_kv_head, half = c->d_head / 2;
    for (int i = 0; i < n_new; i++) {
        int node = cache->n_pending - n_new + i;
        float* key = qkv + i * ldq + (ptrdiff_t)(c->n_head + kv_head) * c->d_head;
        float* value = key + (ptrdiff_t)c->n_kv_head * c->d_head;
        if (c->position == SD_POSITION_ROTARY) {
            size_t at = (size_t)(cache->n_committed + cache->depths[node]) * (size_t)half;
            float* query = qkv + i * ldq + (ptrdiff_t)kv_head * group * c->d_head;
            for (int h = 0; h < group; h++)
                k->rotate(half, query + (ptrdiff_t)h * c->d_head, model->cosine + at, model->sine + at);
            k->rotate(half, key, model->cosine + at, model->sine + at);
        }
        sd_cache_store(cache, layer, kv_head, cache->n_committed + node, key, value);
    }
}

void sd_attention(const sd_model* model, const sd_cache* cache, int layer, int kv_head, int n_new, float* qkv,
                  ptrdiff_t ldq, float* out, ptrdiff_t ldo, const sd_attention_scratch* s) {
    const sd_config* c = &model->config;
    const sd_kernels* k = sd_kernels_get();
    int group = c->n_head / c->n_kv_head;
    ptrdiff_t first_query = (ptrdiff_t)kv_head * group * c->d_head;
    size_t row_bytes = (size_t)c->d_head * sizeof(float);
    const float *keys = sd_cache_keys(cache, layer, kv_head),
                *values = sd_cache_values(cache, layer, kv_head);
    ptrdiff_t ldw = cache->n_slots, ld_output = (ptrdiff_t)sd_value_panels(c->d_head) * SD_PANEL;

    rotate_and_store(model, cache, layer, kv_head, n_new, qkv, ldq);

    /* Rows are (node, query head of the group) pairs, a few at a time. */
    int n_rows = n_new * group;
    for (int first = 0; first < n_rows; first += SD_ATTENTION_ROWS) {
        int rows = n_rows - first < SD_ATTENTION_ROWS ? n_rows - first : SD_ATTENTION_ROWS;
        int last_node = cache->n_pending - n_new + (first + rows - 1) / group;
        int n_slots = cache->n_committed + last_node + 1; /* later nodes are nobody's ancestors here */
        for (int r = 0; r < rows; r++) {
            int i = (first + r) / group, h = (first + r) % group;
            memcpy(s->queries + (ptrdiff_t)r * c->d_head,
                   qkv + i * ldq + first_query + (ptrdiff_t)h * c->d_head, row_bytes);
        }
        score(cache, keys, rows, n_slots, s, ldw);
        float normaliser[SD_ATTENTION_ROWS];
        for (int r = 0; r < rows; r++) {
            int node = cache->n_pending - n_new + (first + r) / group;
            normaliser[r] = softmax(c, cache, node, s->weights + r * ldw, n_slots);
        }
        for (int p = 0; p < sd_value_panels(c->d_head); p++)
            k->panel(rows, s->weights, ldw, values + (size_t)p * SD_PANEL * (size_t)cache->n_slots, n_slots,
                     s->output + (ptrdiff_t)p * SD_PANEL, ld_output);
        for (int r = 0; r < rows; r++) {
            int i = (first + r) / group, h = (first + r) % group;
            float* to = out + i * ldo + first_query + (ptrdiff_t)h * c->d_head;
            memcpy(to, s->output + r * ld_output, row_bytes);
            k->scale(c->d_head, to, normaliser[r]);
        }
    }
}
