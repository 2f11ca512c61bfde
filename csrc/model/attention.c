#include "attention.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

/* Slots whose weights and values are multiplied for all rows before the next: 16 KiB of f32 values. */
#define VALUE_SLOTS 128

sd_attention_scratch sd_attention_take(sd_arena* arena, const sd_config* c, int n_slots) {
    size_t rows = SD_ATTENTION_ROWS, padded = (size_t)sd_matrix_panels(n_slots) * SD_PANEL;
    return (sd_attention_scratch){
        .queries = sd_arena_take(arena, rows, (size_t)c->d_head * sizeof(float)),
        .prepared = sd_arena_take(arena, rows, sd_prepared_bytes((size_t)c->d_head)),
        .weights = sd_arena_take(arena, rows, padded * sizeof(float)),
        .output = sd_arena_take(arena, rows, (size_t)sd_value_panels(c->d_head) * SD_PANEL * sizeof(float)),
    };
}

/* A row's weight of a slot; rows of weights lie in pieces of 32 slots, `chunk` floats apart. */
static float* weight_at(float* weights, ptrdiff_t chunk, int slot) {
    return weights + slot / SD_PANEL * chunk + slot % SD_PANEL;
}

static void mask(float* weights, ptrdiff_t chunk, int first, int end) {
    for (int slot = first; slot < end; slot++) *weight_at(weights, chunk, slot) = -INFINITY;
}

/* Turn one row of scores over slots 0 … n_slots - 1 into unnormalised weights: exp(scale (s − max))
 * for the committed positions in the window and for the node's ancestors and itself, 0 elsewhere.
 * Returns 1 / their sum.
 *
 * The sum runs in the order of positions, whatever slots the ancestors lie in: position p adds to
 * lane p % SD_LANES, ascending. Zero weights change no sum. That is why a node of a tree has the
 * bits of the same token decoded alone. */
static float softmax(const sd_config* config, const sd_cache* cache, int node, float* weights,
                     ptrdiff_t chunk, int n_slots) {
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
        mask(weights, chunk, slot + in_window, masked_from);
        masked_from = slot;
    }
    mask(weights, chunk, n_committed, masked_from);
    mask(weights, chunk, 0, start < n_committed ? start : n_committed);

    float lanes[SD_LANES], scale = 1.0f / sqrtf((float)config->d_head);
    sd_kernels_get()->softmax(n_slots, weights, chunk, scale, n_committed, lanes);
    /* Ancestors from the root down: their depths are 0, 1, … so each is found by walking up. */
    float by_depth[64];
    for (int low = 0; low <= depth; low += 64) {
        for (int a = node; a >= 0; a = cache->parents[a]) {
            int d = cache->depths[a];
            if (d >= low && d < low + 64) by_depth[d - low] = *weight_at(weights, chunk, n_committed + a);
        }
        for (int d = low; d <= depth && d < low + 64; d++)
            lanes[(n_committed + d) % SD_LANES] += by_depth[d - low];
    }
    return 1.0f / sdk_tree_sum(lanes);
}

static void rotate_and_store(const sd_model* model, const sd_cache* cache, int layer, int kv_head, int n_new,
                             const sd_angles* angles, float* qkv, ptrdiff_t ldq) {
    const sd_config* c = &model->config;
    const sd_kernels* k = sd_kernels_get();
    int group = c->n_head / c->n_kv_head, half = c->d_head / 2;
    for (int i = 0; i < n_new; i++) {
        int node = cache->n_pending - n_new + i;
        float* key = qkv + i * ldq + sd_keys_column(c) + (ptrdiff_t)kv_head * c->d_head;
        float* value = qkv + i * ldq + sd_values_column(c) + (ptrdiff_t)kv_head * c->d_head;
        if (c->position == SD_POSITION_ROTARY) {
            const float* cosine = sd_angles_row(angles, cache->n_committed + cache->depths[node]);
            const float* sine = cosine + half;
            float* query = qkv + i * ldq + (ptrdiff_t)kv_head * group * c->d_head;
            for (int h = 0; h < group; h++) k->rotate(half, query + (ptrdiff_t)h * c->d_head, cosine, sine);
            k->rotate(half, key, cosine, sine);
        }
        sd_cache_store(cache, layer, kv_head, cache->n_committed + node, key, value);
    }
}

/* Scores of the prepared queries against slots 0 … n_slots - 1, each one dot product over d_head. */
static void score(const sd_cache* cache, int layer, int kv_head, int n_rows, int n_slots,
                  const sd_attention_scratch* s) {
    const sd_kernels* k = sd_kernels_get();
    for (int p = 0; p < sd_matrix_panels(n_slots); p++)
        k->panel[cache->format](n_rows, s->prepared, sd_cache_keys(cache, layer, kv_head, p), cache->d_head,
                                0, s->weights + (ptrdiff_t)p * n_rows * SD_PANEL, SD_PANEL);
}

/* output [n_rows, …] = Σ weight · value, one chain over the slots per column. */
static void weigh(const sd_cache* cache, int layer, int kv_head, int n_rows, int n_slots,
                  const sd_attention_scratch* s) {
    const sd_kernels* k = sd_kernels_get();
    void (*add_values)(int, const float*, const void*, int, float*, ptrdiff_t) =
        cache->format == SD_FORMAT_F32 ? k->add_values_f32 : k->add_values_bf16;
    int n_panels = sd_value_panels(cache->d_head);
    ptrdiff_t ldo = (ptrdiff_t)n_panels * SD_PANEL;
    memset(s->output, 0, (size_t)n_rows * (size_t)ldo * sizeof(float));
    for (int slot = 0; slot < n_slots; slot += VALUE_SLOTS) {
        int n = n_slots - slot < VALUE_SLOTS ? n_slots - slot : VALUE_SLOTS;
        for (int p = 0; p < n_panels; p++)
            add_values(n_rows, s->weights + (ptrdiff_t)slot * n_rows,
                       sd_cache_values(cache, layer, kv_head, p, slot), n,
                       s->output + (ptrdiff_t)p * SD_PANEL, ldo);
    }
}

void sd_attention(const sd_model* model, const sd_cache* cache, int layer, int kv_head, int n_new,
                  const sd_angles* angles, float* qkv, ptrdiff_t ldq, float* out, ptrdiff_t ldo,
                  const sd_attention_scratch* s) {
    const sd_config* c = &model->config;
    const sd_kernels* k = sd_kernels_get();
    int group = c->n_head / c->n_kv_head;
    ptrdiff_t first_query = (ptrdiff_t)kv_head * group * c->d_head;
    ptrdiff_t ld_output = (ptrdiff_t)sd_value_panels(c->d_head) * SD_PANEL;
    size_t row_bytes = (size_t)c->d_head * sizeof(float);

    rotate_and_store(model, cache, layer, kv_head, n_new, angles, qkv, ldq);

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
        k->prepare[cache->format]((sd_part){rows, 0, rows, 0, c->d_head}, s->queries, c->d_head, c->d_head,
                                  s->prepared);
        score(cache, layer, kv_head, rows, n_slots, s);
        float normaliser[SD_ATTENTION_ROWS];
        for (int r = 0; r < rows; r++) {
            int node = cache->n_pending - n_new + (first + r) / group;
            normaliser[r] = softmax(c, cache, node, s->weights + (ptrdiff_t)r * SD_PANEL,
                                    (ptrdiff_t)rows * SD_PANEL, n_slots);
        }
        weigh(cache, layer, kv_head, rows, n_slots, s);
        for (int r = 0; r < rows; r++) {
            int i = (first + r) / group, h = (first + r) % group;
            float* to = out + i * ldo + first_query + (ptrdiff_t)h * c->d_head;
            k->scale(c->d_head, s->output + r * ld_output, normaliser[r], to);
        }
    }
}
