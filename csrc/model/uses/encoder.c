/* All rows of a source through the encoder; keys and values for cross-attention from its output. */
#include "forward.h"

#include <string.h>

#include "interrupt.h"
#include "layer.h"

typedef struct encoder {
    const sd_model* model; /* with an encoder; borrowed */
    sd_workspace w;        /* the encoder's, for all rows at once; its `prepared` holds the output */
    sd_pass pass;
    sd_arena arena;      /* owns the arrays below */
    sd_key_values* keys; /* [n_layer]; layers with equal heads share one */
    float* projected;    /* [n_rows, ld_projected] keys and values of one layer of the decoder */
    ptrdiff_t ld_projected;
} encoder;

sd_status sd_encoder_check(const sd_model* model, const int32_t* source, int n) {
    if (model->encoder == NULL && source == NULL) return SD_OK;
    SD_FAIL_IF(model->encoder == NULL, SD_ERR_VALUE, "a source is given, but the model has no encoder");
    if (source == NULL) return sd_fail(SD_ERR_VALUE, "the model has an encoder, expected a source");
    const sd_config* c = &model->encoder->config;
    if (n < 1 || n > c->n_ctx)
        return sd_fail(SD_ERR_CONTEXT, "the source has %d tokens, expected 1 to %d", n, c->n_ctx);
    for (int i = 0; i < n; i++)
        SD_FAIL_IF(source[i] < 0 || source[i] >= c->n_vocab, SD_ERR_VALUE,
                   "the source: token %d is %d, expected 0 to %d", i, (int)source[i], c->n_vocab - 1);
    return SD_OK;
}

static int same_heads(const sd_layer_config* a, const sd_layer_config* b) {
    return a->n_kv_head == b->n_kv_head && a->d_head == b->d_head;
}

static void lay_out(encoder* e, int n, int projects) {
    const sd_config* c = &e->model->encoder->config;
    e->keys = sd_arena_take(&e->arena, (size_t)c->n_layer, sizeof *e->keys);
    for (int i = 0; i < c->n_layer; i++) {
        int like = 0;
        while (!same_heads(&c->layers[like], &c->layers[i])) like++;
        sd_key_values keys = e->keys ? e->keys[like] : (sd_key_values){0};
        if (like == i)
            keys = sd_key_values_take(&e->arena, e->model->numbers.cache, c->layers[i].n_kv_head,
                                      c->layers[i].d_head, sd_whole_panels(n));
        if (e->keys) e->keys[i] = keys;
    }
    int n_outputs = sd_widest(&e->model->config, sd_cross_outputs);
    e->ld_projected = sd_whole_panels(n_outputs);
    e->projected =
        sd_arena_take(&e->arena, projects ? (size_t)n : 0, (size_t)e->ld_projected * sizeof(float));
}

static void release(encoder* e) {
    sd_workspace_free(&e->w);
    sd_arena_free(&e->arena);
}

/* Check that the residual stream is finite. layer: the last one it passed, -1 for none. */
static sd_status check(const encoder* e, int layer, const char* name) {
    const sd_config* c = &e->model->encoder->config;
    for (int m = 0; m < e->pass.n_rows; m++) {
        if (sd_all_finite(e->w.hidden + (ptrdiff_t)m * c->d_model, c->d_model)) continue;
        SD_FAIL_IF(layer < 0, SD_ERR_OVERFLOW, "%s: the embedding of position %d of the source is not finite",
                   name, m);
        return sd_fail(SD_ERR_OVERFLOW,
                       "%s: the output of layer %d (of 0 to %d) of the encoder at position %d is not finite; "
                       "earlier layers are finite",
                       name, layer, c->n_layer - 1, m);
    }
    return SD_OK;
}

/* Other callers may use the pool between two steps. */
static sd_status step(encoder* e, int layer) {
    e->pass.team = sd_team_open(e->w.n_threads);
    if (layer < 0) {
        sd_pass_embed(&e->pass);
    } else {
        e->pass.keys = &e->keys[layer];
        sd_layer_run(&e->pass, layer, 0);
    }
    sd_team_close(&e->pass.team);
    return e->pass.status;
}

/* Run source [n] through the layers; the prepared output is then in e->w.prepared. The encoder must be
 * released even after a failure. */
static sd_status run(encoder* e, const sd_model* model, const int32_t* source, int n, int n_threads,
                     int projects, const char* name) {
    const sd_model* own = model->encoder;
    *e = (encoder){.model = model};
    sd_status status = sd_workspace_create(&e->w, own, n_threads, n, 0, n);
    if (status == SD_OK) status = SD_ARENA_BUILD(&e->arena, lay_out(e, n, projects));
    if (status != SD_OK) return status;
    e->pass = (sd_pass){.w = &e->w, .n_rows = n, .end = own->config.n_layer, .keep = -1};
    e->pass.engine = sd_prompt_engine(own);
    memcpy(e->w.tokens, source, (size_t)n * sizeof *source);
    for (int i = 0; i < n; i++) e->w.positions[i] = i;
    sd_angles_extend(&e->w.angles, n);
    for (int layer = -1; layer < own->config.n_layer && status == SD_OK; layer++) {
        status = step(e, layer);
        if (status == SD_OK && name) status = check(e, layer, name);
        if (status == SD_OK) status = sd_interrupted();
    }
    if (status != SD_OK) return status;
    e->pass.team = sd_team_open(e->w.n_threads);
    sd_pass_prepare(&e->pass, &model->layers[0].cross_kv, n, e->w.hidden, own->config.d_model,
                    (sd_norm_weights){own->output_norm, own->output_norm_bias}, e->w.prepared);
    sd_team_close(&e->pass.team);
    return SD_OK;
}

/* Rows of one layer's keys and values, to be stored in an sd_encoded. */
typedef struct storing {
    const encoder* e;
    const sd_layer_config* layer;
    const sd_key_values* to;
} storing;

/* (Key/value head, panel of slots) pairs. */
static void store(void* argument, int thread, int pair, int end) {
    (void)thread;
    const storing* s = argument;
    const encoder* e = s->e;
    int n_rows = e->pass.n_rows, n_panels = sd_matrix_panels(n_rows);
    for (; pair < end; pair++) {
        int head = pair / n_panels, first = pair % n_panels * SD_PANEL, end_slot = first + SD_PANEL;
        for (int m = first; m < end_slot && m < n_rows; m++) {
            const float* key = e->projected + m * e->ld_projected + (ptrdiff_t)head * s->layer->d_head;
            sd_key_values_store(s->to, head, m, key, key + sd_cross_values_column(s->layer));
        }
    }
}

/* Compute the keys and values of layer i of the decoder. */
static sd_status project(encoder* e, int i, const sd_key_values* to) {
    const sd_layer* layer = &e->model->layers[i];
    e->pass.team = sd_team_open(e->w.n_threads);
    sd_pass_multiply(&e->pass, SD_MAKE(sd_product, .matrix = &layer->cross_kv, .bias = layer->cross_kv_bias,
                                       .n_rows = e->pass.n_rows, .x = e->w.prepared, .y = e->projected,
                                       .ldy = e->ld_projected, .factor = 1.0f));
    const sd_layer_config* own = &e->model->config.layers[i];
    int n_pairs = sd_matrix_panels(e->pass.n_rows) * own->n_kv_head;
    sd_team_run(&e->pass.team, n_pairs, 1, store, &(storing){e, own, to});
    sd_team_close(&e->pass.team);
    return e->pass.status;
}

sd_status sd_encode(sd_cache* cache, const int32_t* source, int n, int n_threads, const char* name) {
    const sd_model* model = cache->model;
    encoder e;
    sd_encoded* encoded;
    SD_TRY(sd_encoded_create(model, source, n, &encoded));
    sd_status status = run(&e, model, source, n, n_threads, 1, name);
    for (int i = 0; i < model->config.n_layer && status == SD_OK; i++) {
        status = project(&e, i, &encoded->layers[i]);
        if (status == SD_OK) status = sd_interrupted();
    }
    release(&e);
    if (status == SD_OK) sd_cache_set_source(cache, encoded);
    sd_encoded_release(encoded);
    return status;
}

sd_status sd_encoder_output(const sd_model* model, const int32_t* source, int n, int n_threads,
                            const char* name, float* out) {
    encoder e;
    sd_status status = run(&e, model, source, n, n_threads, 0, name);
    const float* rows = model->encoder->output_norm ? e.w.normed : e.w.hidden;
    if (status == SD_OK) memcpy(out, rows, (size_t)n * (size_t)model->encoder->config.d_model * sizeof *out);
    release(&e);
    return status;
}
