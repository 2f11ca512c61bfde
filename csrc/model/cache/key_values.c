#include "key_values.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

void sd_prefetch_add(sd_prefetch_list* prefetch, const char* from, size_t bytes) {
    assert(prefetch->n < SD_MOST_RANGES);
    prefetch->from[prefetch->n] = from;
    prefetch->lines[prefetch->n++] = (int)((bytes + SD_LINE - 1) / SD_LINE);
}

void sd_prefetch_share(const sd_prefetch_list* prefetch, int share, int n_shares) {
    int most = 0;
    for (int p = 0; p < prefetch->n; p++)
        if (prefetch->lines[p] > most) most = prefetch->lines[p];
    for (int line = most * share / n_shares; line < most * (share + 1) / n_shares; line++)
        for (int p = 0; p < prefetch->n; p++)
            if (line < prefetch->lines[p])
                __builtin_prefetch(prefetch->from[p] + (ptrdiff_t)line * SD_LINE, 0, 2);
}

static size_t element_bytes(const sd_key_values* kv) {
    return kv->format == SD_FORMAT_F32 ? 4 : kv->format == SD_FORMAT_BF16 ? 2 : 1;
}
size_t sd_key_panel_bytes(const sd_key_values* kv) { return sd_panel_bytes(kv->format, (size_t)kv->d_head); }

/* Bytes of 32 columns of the values of n slots, in whole blocks of 32 slots. */
static size_t value_bytes(const sd_key_values* kv, int n) {
    size_t scales = kv->format == SD_FORMAT_INT8 ? SD_BLOCK * sizeof(uint16_t) : 0;
    return (size_t)sd_matrix_panels(n) * (SD_BLOCK * SD_PANEL * element_bytes(kv) + scales);
}

size_t sd_value_block_bytes(const sd_key_values* kv) { return value_bytes(kv, SD_BLOCK); }

/* Bytes of one head's keys, and of its values. */
static size_t keys_of_head(const sd_key_values* kv) {
    return (size_t)kv->n_slots / SD_PANEL * sd_key_panel_bytes(kv);
}
static size_t values_of_head(const sd_key_values* kv) {
    return (size_t)sd_value_panels(kv->d_head) * value_bytes(kv, kv->n_slots);
}

sd_key_values sd_key_values_take(sd_arena* arena, sd_format format, int n_kv_head, int d_head, int n_slots) {
    sd_key_values kv = {.format = format, .n_kv_head = n_kv_head, .d_head = d_head, .n_slots = n_slots};
    kv.keys = sd_arena_take(arena, (size_t)n_kv_head, keys_of_head(&kv));
    kv.values = sd_arena_take(arena, (size_t)n_kv_head, values_of_head(&kv));
    return kv;
}

static char* key_panel(const sd_key_values* kv, int head, int p) {
    size_t at = (size_t)(p % (kv->n_slots / SD_PANEL)) * sd_key_panel_bytes(kv);
    return kv->keys + (size_t)head * keys_of_head(kv) + at;
}

/* The block of 32 slots with a slot's values of panel p, and its 32 columns there. */
static char* value_block(const sd_key_values* kv, int head, int p, int slot) {
    return kv->values + (size_t)head * values_of_head(kv) + (size_t)p * value_bytes(kv, kv->n_slots) +
           value_bytes(kv, slot % kv->n_slots / SD_BLOCK * SD_BLOCK);
}
static char* value_row(const sd_key_values* kv, int head, int p, int slot) {
    return value_block(kv, head, p, slot) + (size_t)(slot % SD_BLOCK) * SD_PANEL * element_bytes(kv);
}

/* int8: a slot's scale in a block of keys or values. */
static uint16_t* scale_of(char* block, int slot) {
    return (uint16_t*)(void*)(block + SD_BLOCK * SD_PANEL) + slot % SD_BLOCK;
}

const char* sd_key_panel(const sd_key_values* kv, int head, int p) { return key_panel(kv, head, p); }

const char* sd_value_rows(const sd_key_values* kv, int head, int p, int slot) {
    return value_row(kv, head, p, slot);
}

/* Element d of a slot's key, in its panel. */
static float* key_f32(char* panel, int slot, int d) {
    return (float*)(void*)panel + (size_t)d * SD_PANEL + slot % SD_PANEL;
}
static uint16_t* key_bf16(char* panel, int slot, int d) {
    return (uint16_t*)(void*)panel + ((size_t)(d / 2) * SD_PANEL + (size_t)(slot % SD_PANEL)) * 2 + d % 2;
}

/* int8: 4 codes of a slot's key, plus 128, from element d on, a multiple of 4. */
static uint8_t* key_codes(char* panel, int slot, int d) {
    return (uint8_t*)panel + (size_t)(d / SD_BLOCK) * SD_INT8_BLOCK_BYTES +
           (size_t)(d % SD_BLOCK / 4 * SD_PANEL + slot % SD_PANEL) * 4;
}
static char* key_block(char* panel, int d) { return panel + (size_t)(d / SD_BLOCK) * SD_INT8_BLOCK_BYTES; }

/* bf16: columns j and j + 16 of a row side by side. */
static void store_columns(const uint16_t* columns, void* row) {
    uint16_t pairs[SD_PANEL];
    for (int j = 0; j < SD_LANES; j++) {
        pairs[2 * j] = columns[j];
        pairs[2 * j + 1] = columns[SD_LANES + j];
    }
    memcpy(row, pairs, sizeof pairs);
}

static void store_int8(const sd_key_values* kv, int head, int slot, const float* key, const float* value) {
    const sd_kernels* k = sd_kernels_get();
    char* panel = key_panel(kv, head, slot / SD_PANEL);
    for (int d = 0; d < kv->d_head; d += SD_BLOCK) {
        int n = kv->d_head - d < SD_BLOCK ? kv->d_head - d : SD_BLOCK;
        int8_t codes[SD_BLOCK];
        *scale_of(key_block(panel, d), slot) = k->to_int8(n, key + d, codes);
        for (int i = 0; i < SD_BLOCK; i++)
            key_codes(panel, slot, d + i / 4 * 4)[i % 4] = (uint8_t)(codes[i] + 128);
        *scale_of(value_block(kv, head, d / SD_PANEL, slot), slot) = k->to_int8(n, value + d, codes);
        memcpy(value_row(kv, head, d / SD_PANEL, slot), codes, sizeof codes);
    }
}

void sd_key_values_store(const sd_key_values* kv, int head, int slot, const float* key, const float* value) {
    char* panel = key_panel(kv, head, slot / SD_PANEL);
    if (kv->format == SD_FORMAT_F32) {
        for (int d = 0; d < kv->d_head; d++) *key_f32(panel, slot, d) = key[d];
        for (int d = 0; d < kv->d_head; d += SD_PANEL) {
            int n = kv->d_head - d < SD_PANEL ? kv->d_head - d : SD_PANEL;
            memcpy(value_row(kv, head, d / SD_PANEL, slot), value + d, (size_t)n * sizeof *value);
        }
        return;
    }
    if (kv->format == SD_FORMAT_INT8) {
        store_int8(kv, head, slot, key, value);
        return;
    }
    const sd_kernels* k = sd_kernels_get();
    for (int d = 0; d < kv->d_head; d += SD_PANEL) {
        int n = kv->d_head - d < SD_PANEL ? kv->d_head - d : SD_PANEL;
        uint16_t rounded[SD_PANEL] = {0};
        k->to_bf16(n, key + d, rounded);
        for (int i = 0; i + 1 < n; i += 2)
            memcpy(key_bf16(panel, slot, d + i), rounded + i, 2 * sizeof *rounded); /* a pair */
        if (n % 2 > 0) *key_bf16(panel, slot, d + n - 1) = rounded[n - 1];
        k->to_bf16(n, value + d, rounded);
        store_columns(rounded, value_row(kv, head, d / SD_PANEL, slot));
    }
}

/* Element d of a slot's key in f32 or int8. */
static float key_number(const sd_key_values* kv, char* panel, int slot, int d) {
    if (kv->format == SD_FORMAT_F32) return *key_f32(panel, slot, d);
    int code = key_codes(panel, slot, d)[d % 4] - 128;
    return (float)code * sd_float_from_f16(*scale_of(key_block(panel, d), slot));
}

void sd_key_values_gather_keys(const sd_key_values* kv, int head, const int* slots, uint16_t* panel) {
    memset(panel, 0, sd_panel_bytes(SD_FORMAT_BF16, (size_t)kv->d_head));
    for (int d = 0; d < kv->d_head; d++) {
        float wide[SD_PANEL] = {0};
        uint16_t rounded[SD_PANEL] = {0};
        for (int i = 0; i < SD_PANEL; i++) {
            if (slots[i] < 0) continue;
            char* from = key_panel(kv, head, slots[i] / SD_PANEL);
            if (kv->format == SD_FORMAT_BF16)
                rounded[i] = *key_bf16(from, slots[i], d);
            else
                wide[i] = key_number(kv, from, slots[i], d);
        }
        if (kv->format != SD_FORMAT_BF16) sd_kernels_get()->to_bf16(SD_PANEL, wide, rounded);
        for (int i = 0; i < SD_PANEL; i++) panel[(d / 2 * SD_PANEL + i) * 2 + d % 2] = rounded[i];
    }
}

void sd_key_values_gather_values(const sd_key_values* kv, int head, int p, const int* slots, uint16_t* rows) {
    for (int i = 0; i < SD_PANEL; i++, rows += SD_PANEL) {
        if (slots[i] < 0) {
            memset(rows, 0, SD_PANEL * sizeof *rows);
            continue;
        }
        const void* from = value_row(kv, head, p, slots[i]);
        float wide[SD_PANEL];
        if (kv->format == SD_FORMAT_INT8) {
            float scale = sd_float_from_f16(*scale_of(value_block(kv, head, p, slots[i]), slots[i]));
            for (int j = 0; j < SD_PANEL; j++) wide[j] = (float)((const int8_t*)from)[j] * scale;
            from = wide;
        }
        if (kv->format == SD_FORMAT_BF16) {
            memcpy(rows, from, SD_PANEL * sizeof *rows);
        } else {
            uint16_t columns[SD_PANEL];
            sd_kernels_get()->to_bf16(SD_PANEL, from, columns);
            store_columns(columns, rows);
        }
    }
}

static void copy_key(const sd_key_values* kv, char* source, int from, char* target, int to) {
    if (kv->format == SD_FORMAT_INT8) {
        for (int d = 0; d < kv->d_head; d += 4)
            memcpy(key_codes(target, to, d), key_codes(source, from, d), 4);
        for (int d = 0; d < kv->d_head; d += SD_BLOCK)
            *scale_of(key_block(target, d), to) = *scale_of(key_block(source, d), from);
        return;
    }
    for (int d = 0; d < kv->d_head; d++) {
        if (kv->format == SD_FORMAT_F32)
            *key_f32(target, to, d) = *key_f32(source, from, d);
        else
            *key_bf16(target, to, d) = *key_bf16(source, from, d);
    }
}

void sd_key_values_copy_slot(const sd_key_values* kv, int from, const sd_key_values* other, int to) {
    for (int head = 0; head < kv->n_kv_head; head++) {
        copy_key(kv, key_panel(kv, head, from / SD_PANEL), from, key_panel(other, head, to / SD_PANEL), to);
        for (int p = 0; p < sd_value_panels(kv->d_head); p++) {
            memcpy(value_row(other, head, p, to), value_row(kv, head, p, from), SD_PANEL * element_bytes(kv));
            if (kv->format == SD_FORMAT_INT8)
                *scale_of(value_block(other, head, p, to), to) =
                    *scale_of(value_block(kv, head, p, from), from);
        }
    }
}

void sd_key_values_copy(const sd_key_values* to, const sd_key_values* from, int n) {
    size_t key_bytes = (size_t)sd_matrix_panels(n) * sd_key_panel_bytes(to);
    for (int head = 0; head < to->n_kv_head; head++) {
        memcpy(key_panel(to, head, 0), key_panel(from, head, 0), key_bytes);
        for (int p = 0; p < sd_value_panels(to->d_head); p++)
            memcpy(value_row(to, head, p, 0), value_row(from, head, p, 0), value_bytes(to, n));
    }
}

sd_prefetch_list sd_key_values_first_reads(const sd_key_values* kv, int head, int first, int end) {
    int n_values = sd_value_panels(kv->d_head), end_panel = sd_matrix_panels(end);
    sd_prefetch_list prefetch = {0};
    for (int p = first / SD_PANEL; p < end_panel && prefetch.n < SD_MOST_RANGES; p++)
        sd_prefetch_add(&prefetch, key_panel(kv, head, p), sd_key_panel_bytes(kv));
    if (prefetch.n + n_values > SD_MOST_RANGES) return prefetch;
    int run = sd_key_values_run(kv, first), n = end - first < run ? end - first : run;
    for (int p = 0; p < n_values; p++)
        sd_prefetch_add(&prefetch, value_row(kv, head, p, first), value_bytes(kv, n));
    return prefetch;
}

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
    SD_NEW(sd_encoded, e);
    e->model = model;
    e->n = n;
    atomic_init(&e->n_references, 1);
    /* memory is zero: slots after the source have weight 0 and must be finite */
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

int sd_encoded_has_source(const sd_encoded* e, const int32_t* source, int n) {
    if (e == NULL) return n == 0;
    return e->n == n && memcmp(e->source, source, (size_t)n * sizeof *source) == 0;
}

int sd_encoded_equal(const sd_encoded* a, const sd_encoded* b) {
    return a == b || (a != NULL && b != NULL && sd_encoded_has_source(a, b->source, b->n));
}

size_t sd_encoded_bytes(const sd_encoded* e) { return e == NULL ? 0 : e->arena.size; }
