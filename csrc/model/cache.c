#include "cache.h"

#include <string.h>

#include "kernels.h"

static size_t keys_per_head(const sd_cache* c) { return (size_t)c->n_slots * (size_t)c->d_head; }
static size_t values_per_head(const sd_cache* c) {
    return (size_t)sd_value_panels(c->d_head) * SD_PANEL * (size_t)c->n_slots;
}

static void lay_out(sd_cache* c) {
    size_t n_heads = (size_t)c->n_layer * (size_t)c->n_kv_head;
    c->parents = sd_arena_take(&c->arena, (size_t)c->n_slots, sizeof *c->parents);
    c->depths = sd_arena_take(&c->arena, (size_t)c->n_slots, sizeof *c->depths);
    c->keys = sd_arena_take(&c->arena, n_heads, keys_per_head(c) * sizeof(float));
    c->values = sd_arena_take(&c->arena, n_heads, values_per_head(c) * sizeof(float));
}

sd_status sd_cache_create(sd_cache* cache, const sd_model* model, int n_slots) {
    const sd_config* c = &model->config;
    *cache = (sd_cache){.n_layer = c->n_layer,
                        .n_kv_head = c->n_kv_head,
                        .d_head = c->d_head,
                        .n_slots = sd_matrix_panels(n_slots) * SD_PANEL};
    lay_out(cache);
    sd_status status = sd_arena_commit(&cache->arena);
    if (status != SD_OK) return status;
    lay_out(cache); /* the memory is zero: unused slots meet weight 0 and must be finite */
    return SD_OK;
}

void sd_cache_free(sd_cache* cache) { sd_arena_free(&cache->arena); }

sd_status sd_cache_grow(sd_cache* cache, const int32_t* parents, int n, int n_ctx) {
    int end = cache->n_pending + n;
    if (n < 0 || n > cache->n_slots || cache->n_committed + end > cache->n_slots)
        return sd_fail(SD_ERR_CONTEXT, "%d tokens and %d nodes do not fit a cache of %d", cache->n_committed,
                       end, cache->n_slots);
    for (int i = 0; i < n; i++) {
        int node = cache->n_pending + i, parent = parents[i];
        if (parent < -1 || parent >= node)
            return sd_fail(SD_ERR_VALUE, "node %d: parent is %d, expected an earlier node or -1", node,
                           parent);
        /* parents of this call are checked before they are used, so depths are valid */
        int depth = parent < 0 ? 0 : cache->depths[parent] + 1;
        if (cache->n_committed + depth >= n_ctx)
            return sd_fail(SD_ERR_CONTEXT, "node %d: position is %d, expected below the context of %d", node,
                           cache->n_committed + depth, n_ctx);
        cache->parents[node] = parent;
        cache->depths[node] = depth;
    }
    cache->n_pending = end;
    return SD_OK;
}

float* sd_cache_keys(const sd_cache* c, int layer, int head) {
    return c->keys + ((size_t)layer * (size_t)c->n_kv_head + (size_t)head) * keys_per_head(c);
}

float* sd_cache_values(const sd_cache* c, int layer, int head) {
    return c->values + ((size_t)layer * (size_t)c->n_kv_head + (size_t)head) * values_per_head(c);
}

/* First of the elements of a slot's key; they lie SD_PANEL apart. */
static float* key_of(const sd_cache* c, float* keys, int slot) {
    return keys + (size_t)(slot / SD_PANEL) * SD_PANEL * (size_t)c->d_head + slot % SD_PANEL;
}

/* The 32 value columns of panel p in a slot. */
static float* value_of(const sd_cache* c, float* values, int p, int slot) {
    return values + ((size_t)p * (size_t)c->n_slots + (size_t)slot) * SD_PANEL;
}

void sd_cache_store(const sd_cache* c, int layer, int head, int slot, const float* key, const float* value) {
    float* to = key_of(c, sd_cache_keys(c, layer, head), slot);
    for (int d = 0; d < c->d_head; d++) to[(size_t)d * SD_PANEL] = key[d];
    float* values = sd_cache_values(c, layer, head);
    for (int d = 0; d < c->d_head; d += SD_PANEL) {
        int n = c->d_head - d < SD_PANEL ? c->d_head - d : SD_PANEL;
        memcpy(value_of(c, values, d / SD_PANEL, slot), value + d, (size_t)n * sizeof *value);
    }
}

static void move_slot(const sd_cache* c, int from, int to) {
    for (int layer = 0; layer < c->n_layer; layer++) {
        for (int head = 0; head < c->n_kv_head; head++) {
            float* keys = sd_cache_keys(c, layer, head);
            float *source = key_of(c, keys, from), *target = key_of(c, keys, to);
            for (int d = 0; d < c->d_head; d++) target[(size_t)d * SD_PANEL] = source[(size_t)d * SD_PANEL];
            float* values = sd_cache_values(c, layer, head);
            for (int p = 0; p < sd_value_panels(c->d_head); p++)
                memcpy(value_of(c, values, p, to), value_of(c, values, p, from), SD_PANEL * sizeof(float));
        }
    }
}

sd_status sd_cache_keep(sd_cache* cache, const int32_t* path, int n_path) {
    if (cache->n_pending == 0) return SD_OK;
    for (int i = 0; i < n_path; i++) {
        if (path[i] < 0 || path[i] >= cache->n_pending)
            return sd_fail(SD_ERR_VALUE, "path[%d] is %d, expected a pending node (there are %d)", i, path[i],
                           cache->n_pending);
        int parent = i == 0 ? -1 : path[i - 1];
        if (cache->parents[path[i]] != parent)
            return sd_fail(SD_ERR_VALUE, "path[%d] is node %d, expected a child of node %d", i, path[i],
                           parent);
    }
    /* Nodes come after their parents, so path[i] ≥ i and no slot is overwritten before it moves. */
    for (int i = 0; i < n_path; i++)
        if (path[i] != i) move_slot(cache, cache->n_committed + path[i], cache->n_committed + i);
    cache->n_committed += n_path;
    cache->n_pending = 0;
    return SD_OK;
}
