#include "cache.h"

#include <assert.h>
#include <string.h>

int sd_captures_find(const sd_captures* captures, int layer) {
    for (int i = 0; i < captures->n; i++)
        if (captures->layers[i] == layer) return i;
    return -1;
}

sd_status sd_captures_add(sd_captures* captures, int layer, const sd_config* config) {
    SD_FAIL_IF(layer < 0 || layer > config->n_layer + 1, SD_ERR_VALUE,
               "a draft reads hidden state %d of the target, expected 0 to %d", layer, config->n_layer + 1);
    if (sd_captures_find(captures, layer) >= 0) return SD_OK;
    if (captures->n == SD_MAX_CAPTURES)
        return sd_fail(SD_ERR_SETTING, "drafts read more than %d hidden states of the target",
                       SD_MAX_CAPTURES);
    int i = captures->n++;
    for (; i > 0 && captures->layers[i - 1] > layer; i--) captures->layers[i] = captures->layers[i - 1];
    captures->layers[i] = layer;
    return SD_OK;
}

int sd_captures_include(const sd_captures* captures, const sd_captures* wanted) {
    for (int i = 0; i < wanted->n; i++)
        if (sd_captures_find(captures, wanted->layers[i]) < 0) return 0;
    return 1;
}

/* Slots of a layer: all, or its window, the pending nodes and as many tokens that may be cut back. */
static int slots_of_layer(const sd_cache* c, int layer) {
    int window = c->model->config.layers[layer].window;
    if (window == 0) return c->n_slots;
    long wanted = (long)window - 1 + 2L * c->n_nodes;
    if (wanted >= c->n_slots) return c->n_slots;
    return sd_whole_panels((int)wanted);
}

static void lay_out(sd_cache* c) {
    const sd_config* config = &c->model->config;
    c->tokens = sd_arena_take(&c->arena, (size_t)c->n_slots, sizeof *c->tokens);
    c->parents = sd_arena_take(&c->arena, (size_t)c->n_slots, sizeof *c->parents);
    c->depths = sd_arena_take(&c->arena, (size_t)c->n_slots, sizeof *c->depths);
    c->layers = sd_arena_take(&c->arena, (size_t)c->n_layer, sizeof *c->layers);
    c->states = sd_arena_take(&c->arena, (size_t)c->n_layer, sizeof *c->states);
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* own = &config->layers[i];
        int n_slots = slots_of_layer(c, i), stores = sd_has_own_keys(own);
        sd_key_values kv = sd_key_values_take(&c->arena, c->model->numbers.cache, stores ? own->n_kv_head : 0,
                                              own->d_head, n_slots);
        sd_layer_state state = sd_layer_state_take(&c->arena, config, i, c->n_tree);
        if (c->layers) c->layers[i] = kv, c->states[i] = state;
        if (stores && n_slots < c->n_window_slots) c->n_window_slots = n_slots;
    }
    size_t d_model = (size_t)config->d_model;
    if (c->has_states) c->walk = sd_walk_take(&c->arena, c->n_tree);
    c->hidden = sd_arena_take(&c->arena, (size_t)c->n_hidden, d_model * sizeof *c->hidden);
    c->captured =
        sd_arena_take(&c->arena, (size_t)c->n_slots, (size_t)c->captures.n * d_model * sizeof *c->captured);
}

sd_cache sd_cache_plan(const sd_model* model, int n_slots, int n_tree, int n_hidden,
                       const sd_captures* captures) {
    const sd_config* c = &model->config;
    int padded = sd_whole_panels(n_slots), slice = sd_prompt_slice(model);
    if (slice > padded) slice = padded;
    return SD_MAKE(
        sd_cache, .model = model, .n_layer = c->n_layer, .n_slots = padded,
        .n_nodes = n_tree > slice ? n_tree : slice, .n_tree = n_tree, .has_states = sd_any_has_state(c),
        .n_ring = sd_any_has_mixer(c) ? sd_ring_rows(c, n_tree) : 0, .n_window_slots = padded,
        .n_through = c->n_layer, .n_hidden = n_hidden, .captures = captures ? *captures : (sd_captures){0});
}

sd_status sd_cache_reserve(sd_cache* cache) {
    if (cache->arena.base != NULL) return SD_OK;
    cache->arena = (sd_arena){0};
    /* memory is zero: unused slots have weight 0 and must be finite */
    return SD_ARENA_BUILD(&cache->arena, lay_out(cache));
}

sd_status sd_cache_create(sd_cache* cache, const sd_model* model, int n_slots, int n_tree, int n_hidden,
                          const sd_captures* captures) {
    *cache = sd_cache_plan(model, n_slots, n_tree, n_hidden, captures);
    return sd_cache_reserve(cache);
}

void sd_cache_free(sd_cache* cache) {
    sd_encoded_release(cache->encoded);
    cache->encoded = NULL;
    sd_snapshots_cut(&cache->snapshots, 0);
    sd_arena_free(&cache->arena);
}

void sd_cache_set_source(sd_cache* cache, sd_encoded* encoded) {
    if (sd_encoded_equal(cache->encoded, encoded)) return;
    sd_cache_cut(cache, 0);
    sd_encoded_release(cache->encoded);
    cache->encoded = sd_encoded_share(encoded);
}

void sd_cache_set_model(sd_cache* cache, const sd_model* model) {
    if (cache->model == model) return;
    sd_cache_cut(cache, 0);
    cache->model = model;
}

/* Do some layers have fewer slots than the cache? */
static int has_windows(const sd_cache* c) { return c->n_window_slots < c->n_slots; }

/* A text of fewer than `low` tokens lacks what its next token would attend to. */
static void raise_low(sd_cache* cache, int low) {
    if (low > cache->n_low) cache->n_low = low;
}

sd_status sd_cache_grow(sd_cache* cache, const int32_t* tokens, const int32_t* parents, int n, int n_commit,
                        int n_ctx) {
    int end = cache->n_pending + n;
    SD_FAIL_IF(n < 0 || n > cache->n_slots || cache->n_committed + end > cache->n_slots, SD_ERR_CONTEXT,
               "%d tokens and %d nodes do not fit a cache of %d", cache->n_committed, end, cache->n_slots);
    SD_FAIL_IF(has_windows(cache) && end > cache->n_nodes, SD_ERR_CONTEXT,
               "%d nodes, expected at most %d in a cache with sliding windows", end, cache->n_nodes);
    SD_FAIL_IF(cache->n_ring > 0 && end - n_commit > cache->n_tree, SD_ERR_CONTEXT,
               "%d nodes, expected at most %d in a cache with states of mixers", end - n_commit,
               cache->n_tree);
    assert(n_commit == 0 || cache->n_pending == 0);
    for (int i = 0; i < n; i++) {
        int node = cache->n_pending + i, parent = parents[i];
        SD_FAIL_IF(parent < -1 || parent >= node, SD_ERR_VALUE,
                   "node %d: parent is %d, expected an earlier node or -1", node, parent);
        /* parents in this call are checked before use, so depths are valid */
        int depth = parent < 0 ? 0 : cache->depths[parent] + 1;
        if (cache->n_committed + depth >= n_ctx)
            return sd_fail(SD_ERR_CONTEXT, "node %d: position is %d, expected below the context of %d", node,
                           cache->n_committed + depth, n_ctx);
        cache->parents[node] = parent;
        cache->depths[node] = depth;
        cache->tokens[cache->n_committed + node] = tokens[i];
    }
    cache->n_pending = end;
    /* new slots may overwrite what texts that end before `low` attend to */
    end += cache->n_committed;
    if (end > cache->n_window_slots) {
        raise_low(cache, end - 2 * cache->n_nodes);
        if (end - 2 * cache->n_nodes > cache->n_window_low) cache->n_window_low = end - 2 * cache->n_nodes;
    }
    if (cache->n_ring > 0 && end > cache->n_ring) raise_low(cache, end - 2 * cache->n_tree);
    if (cache->has_states) raise_low(cache, cache->n_committed + n_commit);
    return SD_OK;
}

void sd_cache_borrow(sd_cache* cache, const sd_cache* lender, int n) {
    assert(cache->model->config.borrows_kv && lender->n_committed >= n && n >= lender->n_low);
    sd_cache_cut(cache, 0);
    cache->lender = lender;
    cache->n_committed = n;
}

int sd_cache_chain(const sd_cache* cache) {
    int n = 0;
    while (n < cache->n_pending && (cache->lender || cache->parents[n] == n - 1)) n++;
    return n;
}

float* sd_cache_captured(const sd_cache* c, int slot, int layer) {
    size_t d_model = (size_t)c->model->config.d_model;
    return c->captured +
           ((size_t)slot * (size_t)c->captures.n + (size_t)sd_captures_find(&c->captures, layer)) * d_model;
}

/* Copy the hidden states of a slot to a slot of another cache, or of the same one. */
static void copy_captured(const sd_cache* into, int to, const sd_cache* of, int from) {
    size_t row = (size_t)into->model->config.d_model * sizeof(float);
    for (int i = 0; i < into->captures.n; i++) {
        int layer = into->captures.layers[i];
        memcpy(sd_cache_captured(into, to, layer), sd_cache_captured(of, from, layer), row);
    }
}

static void move_slot(const sd_cache* c, int from, int to) {
    c->tokens[to] = c->tokens[from];
    copy_captured(c, to, c, from);
    for (int layer = 0; layer < c->n_layer; layer++)
        sd_key_values_copy_slot(&c->layers[layer], from, &c->layers[layer], to);
    for (int layer = 0; layer < c->n_layer && c->n_ring > 0; layer++)
        sd_layer_state_copy_slot(&c->states[layer], from, &c->states[layer], to);
}

void sd_cache_plan_walk(sd_cache* c, int n_new, int n_commit) {
    if (c->has_states) sd_walk_plan(&c->walk, c->parents, n_commit, c->n_pending - n_new, c->n_pending);
}

/* Tokens, of the first n of a prompt, that another text may reuse as its prefix. */
static int of_prompt(const sd_model* model, int n) {
    return sd_prompts_in_slices(model) ? n - n % SD_BLAS_SLICE : n;
}

/* Cut the text to n tokens if these are intact, else to a snapshot or to nothing. */
static void cut_text(sd_cache* c, int n) {
    int intact = n >= c->n_low;
    if (!intact) n = sd_snapshots_within(&c->snapshots, c->n_window_low, n);
    if (!intact && n > 0) sd_snapshots_restore(&c->snapshots, &c->model->config, n, c->states);
    if (!intact) c->n_low = n;
    if (n == 0) c->n_low = c->n_window_low = 0;
    c->n_committed = n;
    if (c->n_prompt > n) c->n_prompt = of_prompt(c->model, n);
    sd_snapshots_cut(&c->snapshots, n);
}

/* Drop all pending nodes, and text too if they have overwritten what it needs. */
static void clear(sd_cache* c) {
    c->n_pending = c->n_waiting = 0;
    c->n_through = c->n_layer;
    if (c->n_committed < c->n_low) cut_text(c, c->n_committed);
    for (int layer = 0; layer < c->n_layer && c->has_states && c->n_committed == 0; layer++)
        sd_layer_state_forget(&c->states[layer]);
}

void sd_cache_take_back(sd_cache* c, int n) {
    c->n_pending -= n;
    if (c->n_committed < c->n_low) clear(c);
}

static sd_status check_finished(const sd_cache* c) {
    if (c->n_through == c->n_layer) return SD_OK;
    return sd_fail(SD_ERR_STATE, "the pending nodes have passed %d layers of %d", c->n_through, c->n_layer);
}

sd_status sd_cache_keep(sd_cache* cache, const int32_t* path, int n_path) {
    if (cache->n_pending == 0) return SD_OK;
    if (n_path > 0) SD_TRY(check_finished(cache));
    for (int i = 0; i < n_path; i++) {
        SD_FAIL_IF(path[i] < 0 || path[i] >= cache->n_pending, SD_ERR_VALUE,
                   "path[%d] is %d, expected a pending node (there are %d)", i, path[i], cache->n_pending);
        int parent = i == 0 ? -1 : path[i - 1];
        SD_FAIL_IF(cache->parents[path[i]] != parent, SD_ERR_VALUE,
                   "path[%d] is node %d, expected a child of node %d", i, path[i], parent);
    }
    /* Nodes come after their parents, so path[i] ≥ i and no slot is overwritten before it moves. */
    for (int i = 0; i < n_path; i++)
        if (path[i] != i) move_slot(cache, cache->n_committed + path[i], cache->n_committed + i);
    cache->n_committed += n_path;
    clear(cache);
    return SD_OK;
}

/* Committed tokens of a cache that are a prefix of text [n] of `of`, with its model and source, and that can
 * be continued. */
static int agreement(const sd_cache* c, const sd_cache* of, const int32_t* text, int n) {
    int at = 0;
    if (c->model != of->model || !sd_encoded_equal(c->encoded, of->encoded)) return 0;
    while (at < c->n_committed && at < n && c->tokens[at] == text[at]) at++;
    if (sd_prompts_apart(c->model)) at = of_prompt(c->model, at < c->n_prompt ? at : c->n_prompt);
    return at >= c->n_low ? at : sd_snapshots_within(&c->snapshots, c->n_window_low, at);
}

void sd_cache_count_prompt(sd_cache* c, int n) {
    if (of_prompt(c->model, n) == n && c->n_prompt == c->n_committed - n) c->n_prompt = c->n_committed;
}

void sd_cache_cut(sd_cache* c, int n) {
    cut_text(c, n < c->n_committed ? n : c->n_committed);
    clear(c);
}

void sd_cache_take_snapshot(sd_cache* c) {
    int n = c->n_committed;
    if (c->n_ring > 0 && n > sd_snapshots_last(&c->snapshots) && of_prompt(c->model, n) == n)
        sd_snapshots_add(&c->snapshots, &c->model->config, c->states, n);
}

void sd_cache_keep_snapshots(sd_cache* c, int most, size_t max_bytes) {
    assert(most >= 0);
    size_t fitting = c->n_ring > 0 ? max_bytes / sd_snapshot_bytes(&c->model->config) : 0;
    if (most > SD_MOST_SNAPSHOTS) most = SD_MOST_SNAPSHOTS;
    c->snapshots.most = fitting < (size_t)most ? (int)fitting : most;
}

/* Are all n slots of a cache intact in a layer that has n_slots in the copy? */
static int is_whole(const sd_cache* from, int layer, int n_slots, int n) {
    return from->model->config.layers[layer].window == 0 || (n <= n_slots && from->n_window_low == 0);
}

/* Fewest tokens to which a copy of n tokens can be cut back, in a cache for n_nodes pending ones. It counts
 * layers with overwritten slots, which the original can cut back to `low` tokens. */
static int low_of_copy(int low, int n, int n_nodes) { return n - 2 * n_nodes > low ? n - 2 * n_nodes : low; }

/* Copy what texts of `low` tokens or more need of the first n slots' states. Returns `low`, or 0 if all slots
 * are intact. */
static int copy_states(sd_cache* to, const sd_cache* from, int n) {
    if (to->n_ring == 0) return 0;
    if (n < from->n_low) {
        sd_snapshots_restore(&from->snapshots, &to->model->config, n, to->states);
        return n;
    }
    int whole = n <= to->n_ring && from->n_low == 0;
    int low = whole ? 0 : low_of_copy(from->n_low, n, to->n_tree);
    if (to->has_states) low = n;
    sd_layer_states_copy(&to->model->config, from->states, low, n, to->states);
    return low;
}

/* Copy the first n slots from another cache. From a layer with overwritten slots copy those that texts of
 * `low` tokens or more attend to. */
static void copy_slots(sd_cache* to, const sd_cache* from, int n) {
    int low = low_of_copy(from->n_window_low, n, to->n_nodes), whole = 1;
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof *to->tokens);
    for (int slot = 0; slot < n && to->captures.n > 0; slot++) copy_captured(to, slot, from, slot);
    for (int layer = 0; layer < to->n_layer; layer++) {
        int window = to->model->config.layers[layer].window;
        if (is_whole(from, layer, to->layers[layer].n_slots, n)) {
            sd_key_values_copy(&to->layers[layer], &from->layers[layer], n);
            continue;
        }
        whole = 0;
        int first = low - window + 1 > 0 ? low - window + 1 : 0;
        for (int slot = first; slot < n; slot++)
            sd_key_values_copy_slot(&from->layers[layer], slot, &to->layers[layer], slot);
    }
    to->n_low = to->n_window_low = whole ? 0 : low;
    sd_snapshots_share(&to->snapshots, &from->snapshots, n);
    raise_low(to, copy_states(to, from, n));
    to->n_committed = n;
    to->n_prompt = from->n_prompt < n ? from->n_prompt : of_prompt(to->model, n);
    clear(to);
}

void sd_cache_begin(sd_cache* caches, int n_caches, int which, const int32_t* text, int n) {
    sd_cache_follow(&caches[which], text, n);
    if (sd_prompts_apart(caches[which].model) && caches[which].n_committed > caches[which].n_prompt)
        sd_cache_cut(&caches[which], caches[which].n_prompt);
    int longest = caches[which].n_committed, from = which;
    for (int i = 0; i < n_caches; i++) {
        int agreed = agreement(&caches[i], &caches[which], text, n);
        if (agreed > longest) longest = agreed, from = i;
    }
    if (from != which) copy_slots(&caches[which], &caches[from], longest);
    if (caches[which].snapshots.most > 0) sd_cache_take_snapshot(&caches[which]);
}

int sd_cache_begin_with(sd_cache* cache, const sd_cache* known, const int32_t* text, int n) {
    int there = agreement(cache, cache, text, n);
    if (!sd_captures_include(&known->captures, &cache->captures)) return there;
    int agreed = agreement(known, cache, text, n);
    if (agreed <= there) return there;
    copy_slots(cache, known, agreed);
    return agreed;
}

/* Plan a copy. One of states cannot be cut back and needs no log. */
static sd_cache plan_copy(const sd_cache* c) {
    int n_slots = c->n_committed > 0 ? c->n_committed : 1;
    return sd_cache_plan(c->model, n_slots, c->has_states ? 1 : c->n_tree, 0, &c->captures);
}

sd_status sd_cache_copy(sd_cache* copy, const sd_cache* cache) {
    *copy = plan_copy(cache);
    SD_TRY(sd_cache_reserve(copy));
    sd_cache_set_source(copy, cache->encoded);
    if (cache->n_committed > 0) copy_slots(copy, cache, cache->n_committed);
    return SD_OK;
}

size_t sd_cache_bytes(const sd_cache* cache) {
    return cache->arena.size + sd_encoded_bytes(cache->encoded) + sd_snapshots_bytes(&cache->snapshots);
}

size_t sd_cache_copy_bytes(const sd_cache* cache) {
    sd_cache copy = plan_copy(cache);
    lay_out(&copy); /* without memory: only counts */
    return copy.arena.used + sd_encoded_bytes(cache->encoded) + sd_snapshots_bytes(&cache->snapshots);
}

int sd_cache_copy_window_low(const sd_cache* cache) {
    sd_cache copy = plan_copy(cache);
    int n = cache->n_committed, low = 0;
    for (int layer = 0; layer < cache->n_layer; layer++)
        if (!is_whole(cache, layer, slots_of_layer(&copy, layer), n))
            low = low_of_copy(cache->n_window_low, n, copy.n_nodes);
    return low;
}

int sd_cache_copy_low(const sd_cache* cache) {
    int n = cache->n_committed, low = sd_cache_copy_window_low(cache), n_tree = cache->n_tree;
    if (cache->has_states) return n;
    if (cache->n_ring > 0 && (n > cache->n_ring || cache->n_low > 0)) {
        int of_states = low_of_copy(cache->n_low, n, n_tree);
        if (of_states > low) low = of_states;
    }
    return low;
}

int sd_cache_known(const sd_cache* caches, int n_caches, int which, const int32_t* text, int n) {
    int longest = 0;
    for (int i = 0; i < n_caches; i++) {
        int agreed = agreement(&caches[i], &caches[which], text, n);
        if (agreed > longest) longest = agreed;
    }
    return longest;
}

/* First pending child of `node` with this token; -1: none. */
static int child_of(const sd_cache* c, int node, int32_t token) {
    for (int i = node + 1; i < c->n_pending; i++)
        if (c->parents[i] == node && c->tokens[c->n_committed + i] == token) return i;
    return -1;
}

void sd_cache_follow(sd_cache* c, const int32_t* text, int n) {
    int n_common = 0, limit = c->n_committed < n ? c->n_committed : n;
    while (n_common < limit && c->tokens[n_common] == text[n_common]) n_common++;
    if (n_common < c->n_committed) {
        sd_cache_cut(c, n_common);
        return;
    }
    int agrees = c->n_through == c->n_layer;
    /* a node comes after its parent, so moving down overwrites nothing still needed */
    for (int node = -1, depth = 0; agrees && n_common < n; depth++, n_common++) {
        if ((node = child_of(c, node, text[n_common])) < 0) break;
        if (node != depth) move_slot(c, c->n_committed + node, c->n_committed + depth);
    }
    c->n_committed = n_common;
    clear(c);
}

/* Index of `node` in the ascending nodes [n]; -1: absent. */
static int find(const int32_t* nodes, int n, int node) {
    while (n > 0 && nodes[n - 1] > node) n--;
    return n > 0 && nodes[n - 1] == node ? n - 1 : -1;
}

sd_status sd_cache_prune(sd_cache* cache, const int32_t* nodes, int n) {
    SD_TRY(check_finished(cache));
    for (int i = 0; i < n; i++) {
        if (nodes[i] <= (i == 0 ? -1 : nodes[i - 1]) || nodes[i] >= cache->n_pending)
            return sd_fail(SD_ERR_VALUE, "nodes[%d] is %d, expected pending nodes (there are %d), ascending",
                           i, nodes[i], cache->n_pending);
        int parent = cache->parents[nodes[i]];
        SD_FAIL_IF(parent >= 0 && find(nodes, i, parent) < 0, SD_ERR_VALUE,
                   "nodes[%d] is %d, expected its parent %d before it", i, nodes[i], parent);
    }
    /* nodes[i] >= i, so nothing is overwritten before it has moved. */
    for (int i = 0; i < n; i++) {
        if (nodes[i] != i) move_slot(cache, cache->n_committed + nodes[i], cache->n_committed + i);
        cache->parents[i] = find(nodes, i, cache->parents[nodes[i]]);
        cache->depths[i] = cache->depths[nodes[i]];
    }
    cache->n_pending = n;
    cache->n_waiting = 0;
    return SD_OK;
}

void sd_cache_wait(sd_cache* cache, const float* hidden) {
    assert(cache->n_pending == 1 && cache->n_through == cache->n_layer && cache->n_hidden >= 1);
    memcpy(cache->hidden, hidden, (size_t)cache->model->config.d_model * sizeof *hidden);
    cache->n_waiting = 1;
}

sd_status sd_cache_settle(sd_cache* cache, int n) {
    if (n < 0 || n > cache->n_pending)
        return sd_fail(SD_ERR_VALUE, "%d nodes to settle, expected 0 to %d", n, cache->n_pending);
    SD_TRY(check_finished(cache));
    for (int i = 0; i < cache->n_pending; i++) {
        int parent = cache->parents[i];
        SD_FAIL_IF(i < n ? parent != i - 1 : parent < n - 1, SD_ERR_VALUE,
                   "node %d has the parent %d, expected a chain of %d nodes that all others descend from", i,
                   parent, n);
    }
    for (int i = n; i < cache->n_pending; i++) {
        cache->parents[i - n] = cache->parents[i] < n ? -1 : cache->parents[i] - n;
        cache->depths[i - n] = cache->depths[i] - n;
    }
    cache->n_committed += n;
    cache->n_pending -= n;
    cache->n_waiting = 0;
    return SD_OK;
}
