/* Keys and values of one layer, in the panel layout that products read (format.h).
 *
 * Slot s is slot s % n_slots: a layer may have fewer slots than its cache. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "matrix.h"
#include "weights.h"

/* Bytes of a cache line. */
#define SD_LINE 64

/* Memory to prefetch: ranges of cache lines. */
#define SD_MOST_RANGES 8
typedef struct sd_prefetch_list {
    int n;
    const char* from[SD_MOST_RANGES]; /* borrowed */
    int lines[SD_MOST_RANGES];
} sd_prefetch_list;

/* Add a range of `bytes` from `from` on, borrowed. The capacity must suffice. */
void sd_prefetch_add(sd_prefetch_list* prefetch, const char* from, size_t bytes);

/* Prefetch share `share` of n_shares of each range into the second-level cache: the first level can track few
 * pending lines (benchmarks/SPEED.md). Lines of the ranges alternate, so a processor that prefetches the next
 * lines of a page does so in several pages at once. */
void sd_prefetch_share(const sd_prefetch_list* prefetch, int share, int n_shares);

/* Prefetch x [n], borrowed, at once. */
static inline void sd_prefetch_floats(const float* x, int n) {
    for (int i = 0; i < n; i += SD_LINE / (int)sizeof *x) __builtin_prefetch(x + i);
}

typedef struct sd_key_values {
    sd_format format; /* f32, bf16 or int8 */
    int n_kv_head, d_head;
    int n_slots; /* a multiple of SD_PANEL */
    char* keys;  /* [n_kv_head, n_slots / 32] panels of d_head inputs */
    /* [n_kv_head, value panels, n_slots, 32] f32; [..., 16, 2] bf16, columns j and j + 16 side by side; or
     * blocks of int8, [n_kv_head, value panels, n_slots / 32]: [32][32] codes, then the scales of 32 slots in
     * f16 */
    char* values;
} sd_key_values;

/* Take memory for n_slots slots, a multiple of SD_PANEL, from the arena (which may be counting). */
sd_key_values sd_key_values_take(sd_arena* arena, sd_format format, int n_kv_head, int d_head, int n_slots);

/* Panels of 32 that hold d_head value columns. */
static inline int sd_value_panels(int d_head) { return sd_matrix_panels(d_head); }

/* One head's panel p of the keys, slots 32p … 32p + 31; panel p of the values, [n_slots, 32], from `slot`
 * on. */
const char* sd_key_panel(const sd_key_values* kv, int head, int p);
const char* sd_value_rows(const sd_key_values* kv, int head, int p, int slot);

/* Bytes of a panel of keys, and of the values of its 32 slots in 32 columns. */
size_t sd_key_panel_bytes(const sd_key_values* kv);
size_t sd_value_block_bytes(const sd_key_values* kv);

/* Number of contiguous slots from `slot` on. */
static inline int sd_key_values_run(const sd_key_values* kv, int slot) {
    return kv->n_slots - slot % kv->n_slots;
}

/* Memory read first for slots [first, end) of a head: keys and values, or only keys if there are many. */
sd_prefetch_list sd_key_values_first_reads(const sd_key_values* kv, int head, int first, int end);

/* Store the key and value rows [d_head] of a slot. Slots are independent. */
void sd_key_values_store(const sd_key_values* kv, int head, int slot, const float* key, const float* value);

/* Gather one head's keys of slots [32] as a bf16 panel, [d_head in pairs][32][2]; slot -1 gives zeros. */
void sd_key_values_gather_keys(const sd_key_values* kv, int head, const int* slots, uint16_t* panel);

/* Gather the value columns of panel p of slots [32] as bf16 rows [32][16][2]; slot -1 gives zeros. */
void sd_key_values_gather_values(const sd_key_values* kv, int head, int p, const int* slots, uint16_t* rows);

/* Copy all heads of slot `from` to slot `to` of the same layer, or of one that differs only in its number of
 * slots. */
void sd_key_values_copy_slot(const sd_key_values* kv, int from, const sd_key_values* other, int to);

/* Copy slots 0 … n - 1 of another layer in whole panels: later slots of the last panel are overwritten
 * too. */
void sd_key_values_copy(const sd_key_values* to, const sd_key_values* from, int n);

/* What a model's cross-attention attends to: keys and values of one source in each layer.
 *
 * Created once (forward.h) and then immutable; all texts with this source share it by counted references. */
typedef struct sd_encoded {
    const sd_model* model; /* whose keys and values these are; borrowed */
    sd_arena arena;        /* owns the arrays below */
    int n;
    int32_t* source;       /* [n] the ids */
    sd_key_values* layers; /* [n_layer] each with n slots in whole panels */
    _Atomic(int) n_references;
} sd_encoded;

/* Create it for source [n] of a model with an encoder: copy the ids, zero keys and values. *encoded is a
 * reference of the caller's. */
sd_status sd_encoded_create(const sd_model* model, const int32_t* source, int n, sd_encoded** encoded);

/* Add a reference (NULL for NULL); drop one: the last frees the memory. */
sd_encoded* sd_encoded_share(sd_encoded* encoded);
void sd_encoded_release(sd_encoded* encoded);

/* Does it have source [n]? If NULL: is there no source? */
int sd_encoded_has_source(const sd_encoded* encoded, const int32_t* source, int n);

/* Are the sources equal, or both NULL? */
int sd_encoded_equal(const sd_encoded* a, const sd_encoded* b);

/* Bytes it takes; 0 for NULL. */
size_t sd_encoded_bytes(const sd_encoded* encoded);
