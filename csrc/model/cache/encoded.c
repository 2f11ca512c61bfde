#include "encoded.h"

#include <stdatomic.h>
#include <string.h>

static void lay_out(sd_encoded* e) {
    const sd_config* c = &e->model->config;
    int n_slots = sd_whole_panels(e->n);
    e->source = sd_arena_take(&e->arena, (size_t)e->n, sizeof *e->source);
    e->layers = sd_arena_take(&e->arena, (size_t)c->n_layer, sizeof *e->layers);
    for (int i = 0; i < c->n_layer; i++) {
        sd_key_values kv = sd_key_values_take(&e->arena, e->model->numbers.cache, c->layers[i].n_kv_head,
                                              c->layers[i].d_head, n_slots);
        if (e->layers) e->layers[i] = kv;
    }
}

sd_status sd_encoded_create(const sd_model* model, const int32_t* source, int n, sd_encoded** out) {
    sd_encoded* e = sd_alloc(sizeof *e);
    if (e == NULL) return SD_ERR_MEMORY;
    e->model = model;
    e->n = n;
    atomic_init(&e->n_references, 1);
    /* the memory is zero: slots behind the source meet weight 0 and must be finite */
    sd_status status = SD_ARENA_BUILD(&e->arena, lay_out(e));
    if (status != SD_OK) {
        sd_free(e);
        return status;
    }
    memcpy(e->source, source, (size_t)n * sizeof *source);
    *out = e;
    return SD_OK;
}

sd_encoded* sd_encoded_share(sd_encoded* e) {
    if (e != NULL) atomic_fetch_add_explicit(&e->n_references, 1, memory_order_relaxed);
    return e;
}

void sd_encoded_release(sd_encoded* e) {
    if (e == NULL || atomic_fetch_sub_explicit(&e->n_references, 1, memory_order_acq_rel) > 1) return;
    sd_arena_free(&e->arena);
    sd_free(e);
}

int sd_encoded_is_of(const sd_encoded* e, const int32_t* source, int n) {
    if (e == NULL) return n == 0;
    return e->n == n && memcmp(e->source, source, (size_t)n * sizeof *source) == 0;
}

int sd_encoded_equal(const sd_encoded* a, const sd_encoded* b) {
    return a == b || (a != NULL && b != NULL && sd_encoded_is_of(a, b->source, b->n));
}

size_t sd_encoded_bytes(const sd_encoded* e) { return e == NULL ? 0 : e->arena.size; }
