#include "cache_image.h"

#include <string.h>

/* A walk over the image: copies what lies in [first, end) to or from the buffer. */
typedef struct walker {
    size_t at, first, end; /* `at`: where the next piece is in the image */
    char* out;             /* [end - first], or NULL */
    const char* in;        /* the same */
} walker;

static void pass(walker* w, const void* piece, size_t bytes) {
    size_t from = w->first > w->at ? w->first - w->at : 0;
    size_t left = w->end > w->at ? w->end - w->at : 0, end = left < bytes ? left : bytes;
    ptrdiff_t at = (ptrdiff_t)(w->at + from) - (ptrdiff_t)w->first;
    if (from < end && w->out) memcpy(w->out + at, (const char*)piece + from, end - from);
    if (from < end && w->in) memcpy((char*)piece + from, w->in + at, end - from);
    w->at += bytes;
}

static void pass_panel(walker* w, const sd_key_values* kv, int p) {
    for (int head = 0; head < kv->n_kv_head; head++) {
        pass(w, sd_key_panel(kv, head, p), sd_key_panel_bytes(kv));
        for (int v = 0; v < sd_value_panels(kv->d_head); v++)
            pass(w, sd_value_rows(kv, head, v, p * SD_PANEL), sd_value_block_bytes(kv));
    }
}

static void pass_layer(walker* w, const sd_key_values* kv) {
    for (int p = 0; p < kv->n_slots / SD_PANEL; p++) pass_panel(w, kv, p);
}

static void pass_state(walker* w, const sd_layer_state* s) {
    pass(w, s->inputs, (size_t)s->n_ring * (size_t)s->n_channels * sizeof *s->inputs);
    if (s->n_units == 0) return;
    pass(w, s->tiles, (size_t)s->n_units * (size_t)s->sizes->d_key * SD_PANEL * sizeof *s->tiles);
}

static int has_window(const sd_cache* c, int layer) { return c->model->config.layers[layer].window > 0; }

static void pass_tokens(walker* w, const sd_cache* c, int p) {
    for (int layer = 0; layer < c->n_layer; layer++)
        if (!has_window(c, layer)) pass_panel(w, &c->layers[layer], p);
    size_t floats = SD_PANEL * (size_t)c->captures.n * (size_t)c->model->config.d_model;
    if (floats > 0) pass(w, c->captured + (size_t)p * floats, floats * sizeof *c->captured);
}

size_t sd_image_panel_bytes(const sd_cache* cache) {
    walker w = {0};
    pass_tokens(&w, cache, 0);
    return w.at;
}

static void pass_rest(walker* w, const sd_cache* c) {
    for (int layer = 0; layer < c->n_layer; layer++)
        if (has_window(c, layer)) pass_layer(w, &c->layers[layer]);
    for (int layer = 0; layer < c->n_layer; layer++) pass_state(w, &c->states[layer]);
    for (int i = 0; i < c->snapshots.n; i++)
        for (int layer = 0; layer < c->n_layer; layer++) pass_state(w, &c->snapshots.taken[i]->states[layer]);
    for (int layer = 0; c->encoded && layer < c->n_layer; layer++) pass_layer(w, &c->encoded->layers[layer]);
}

static size_t bytes_of_panels(const sd_cache* c) {
    return (size_t)sd_matrix_panels(c->n_committed) * sd_image_panel_bytes(c);
}

size_t sd_image_bytes(const sd_cache* cache) {
    walker w = {.at = bytes_of_panels(cache)};
    pass_rest(&w, cache);
    return w.at;
}

static void pass_all(walker w, const sd_cache* c) {
    size_t bytes = sd_image_panel_bytes(c), n = bytes_of_panels(c);
    for (size_t p = bytes > 0 ? w.first / bytes : 0; bytes > 0 && p * bytes < n && p * bytes < w.end; p++) {
        w.at = p * bytes;
        pass_tokens(&w, c, (int)p);
    }
    w.at = n;
    if (w.end > n) pass_rest(&w, c);
}

void sd_image_read(const sd_cache* cache, size_t first, size_t n, char* out) {
    pass_all((walker){.first = first, .end = first + n, .out = out}, cache);
}

void sd_image_write(sd_cache* cache, size_t first, size_t n, const char* in) {
    pass_all((walker){.first = first, .end = first + n, .in = in}, cache);
}

enum { MOST_TREE = 1 << 16 };

static sd_status check_shape(const sd_model* model, const sd_image_shape* s, const int32_t* tokens, int n) {
    const sd_config* c = &model->config;
    if (n < 1 || n > c->n_ctx) return sd_fail(SD_ERR_VALUE, "%d tokens, expected 1 to %d", n, c->n_ctx);
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= c->n_vocab)
            return sd_fail(SD_ERR_VALUE, "token %d is %d, expected 0 to %d", i, tokens[i], c->n_vocab - 1);
    int has_snapshots = sd_any_has_mixer(c), last = 0;
    int fits = s->n_tree >= 1 && s->n_tree <= MOST_TREE && s->n_prompt >= 0 && s->n_prompt <= n;
    fits &= 0 <= s->n_window_low && s->n_window_low <= s->n_low && s->n_low <= n;
    fits &= s->n_snapshots == 0 || has_snapshots;
    for (int i = 0; i < s->n_snapshots; last = s->snapshots[i++])
        fits &= last < s->snapshots[i] && s->snapshots[i] <= n;
    return fits ? SD_OK : sd_fail(SD_ERR_VALUE, "the shape of a text of %d tokens is impossible", n);
}

/* The tiles of states have the tokens of their text. */
static void set_folded(const sd_cache* c, const sd_layer_state* states, int n) {
    for (int layer = 0; layer < c->n_layer; layer++)
        for (int unit = 0; unit < states[layer].n_units; unit++) states[layer].n_folded[unit] = n;
}

sd_status sd_image_restore(sd_cache* cache, const sd_model* model, const sd_image_shape* shape,
                           const int32_t* tokens, int n, sd_encoded* encoded) {
    SD_TRY(check_shape(model, shape, tokens, n));
    SD_TRY(sd_cache_create(cache, model, n, shape->n_tree, 0, &shape->captures));
    sd_cache_set_source(cache, encoded);
    memcpy(cache->tokens, tokens, (size_t)n * sizeof *tokens);
    cache->n_committed = n;
    cache->n_prompt = shape->n_prompt;
    cache->n_low = shape->n_low;
    cache->n_window_low = shape->n_window_low;
    set_folded(cache, cache->states, n);
    for (int i = 0; i < shape->n_snapshots; i++) {
        SD_TRY(sd_snapshots_append(&cache->snapshots, &model->config, shape->snapshots[i]));
        set_folded(cache, cache->snapshots.taken[i]->states, shape->snapshots[i]);
    }
    return SD_OK;
}
