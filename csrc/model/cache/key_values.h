/* The keys and values of one layer, laid out as products read them: in panels (format.h).
 *
 * Slot s is slot s % n_slots: a layer may have fewer slots than its cache. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "matrix.h"
#include "weights.h"

/* Bytes of a cache line. */
#define SD_LINE 64

/* Pieces of memory that will be read soon: cache lines from an address on. */
#define SD_MOST_PIECES 8
typedef struct sd_soon {
    int n;
    const char* from[SD_MOST_PIECES]; /* borrowed */
    int lines[SD_MOST_PIECES];
} sd_soon;

/* Add a piece: `bytes` from `from` on, borrowed. There is room for it. */
void sd_soon_add(sd_soon* soon, const char* from, size_t bytes);

/* Request share `share` of n_shares of each piece, to the second-level cache: the first level has few places
 * for lines on their way (benchmarks/SPEED.md). A line of each piece in turn: a processor that fetches the
 * next lines of a page by itself then does so in several pages at once. */
void sd_request(const sd_soon* soon, int share, int n_shares);

/* Request x [n], borrowed, at once. */
static inline void sd_request_floats(const float* x, int n) {
    for (int i = 0; i < n; i += SD_LINE / (int)sizeof *x) __builtin_prefetch(x + i);
}

typedef struct sd_key_values {
    sd_format format; /* f32 or bf16 */
    int n_kv_head, d_head;
    int n_slots;  /* a multiple of SD_PANEL */
    char* keys;   /* [n_kv_head, n_slots / 32] panels of d_head inputs */
    char* values; /* [n_kv_head, value panels, n_slots, 32] f32 or bf16 */
} sd_key_values;

/* Take room for n_slots slots, a multiple of SD_PANEL, from the arena (which may be counting). */
sd_key_values sd_key_values_take(sd_arena* arena, sd_format format, int n_kv_head, int d_head, int n_slots);

/* Panels of 32 that hold d_head value columns. */
static inline int sd_value_panels(int d_head) { return sd_matrix_panels(d_head); }

/* One head: panel p of the keys, that of slots 32p … 32p + 31; panel p of the values, [n_slots, 32], from
 * `slot` on. */
const char* sd_key_panel(const sd_key_values* kv, int head, int p);
const char* sd_value_rows(const sd_key_values* kv, int head, int p, int slot);

/* How many slots from `slot` on lie one after the other. */
static inline int sd_key_values_run(const sd_key_values* kv, int slot) {
    return kv->n_slots - slot % kv->n_slots;
}

/* What is read first of slots [first, end) of a head: keys and values, or, where they are many, only keys. */
sd_soon sd_key_values_soon(const sd_key_values* kv, int head, int first, int end);

/* Store the key and value rows [d_head] of a slot. Slots do not depend on each other. */
void sd_key_values_store(const sd_key_values* kv, int head, int slot, const float* key, const float* value);

/* Keys of one head in slots [32] as a panel in bf16, [d_head in pairs][32][2]; -1: no slot, zeros. */
void sd_key_values_gather_keys(const sd_key_values* kv, int head, const int* slots, uint16_t* panel);

/* The value columns of panel p in slots [32] as rows [32][32] in bf16; -1: no slot, zeros. */
void sd_key_values_gather_values(const sd_key_values* kv, int head, int p, const int* slots, uint16_t* rows);

/* Copy all heads of slot `from` to slot `to` of another layer of the same sizes but for its slots, or of the
 * same. */
void sd_key_values_copy_slot(const sd_key_values* kv, int from, const sd_key_values* other, int to);

/* Make slots 0 … n - 1 those of another layer, panels as a whole: what lies behind the n slots is overwritten
 * too. */
void sd_key_values_copy(const sd_key_values* to, const sd_key_values* from, int n);

/* What the cross-attention of a model attends to: the keys and values of one source in each of its layers.
 *
 * It is made once (forward.h), never changes, and is shared by all texts with this source: by references that
 * are counted. */
typedef struct sd_encoded {
    const sd_model* model; /* whose keys and values these are; borrowed */
    sd_arena arena;        /* owns the arrays below */
    int n;
    int32_t* source;       /* [n] the ids */
    sd_key_values* layers; /* [n_layer] of n slots in whole panels */
    _Atomic(int) n_references;
} sd_encoded;

/* Room for source [n] of a model with an encoder: its ids are copied, keys and values are zero. *encoded is a
 * reference of the caller's. */
sd_status sd_encoded_create(const sd_model* model, const int32_t* source, int n, sd_encoded** encoded);

/* One more reference to it, NULL for NULL; one fewer: with the last the memory is freed. */
sd_encoded* sd_encoded_share(sd_encoded* encoded);
void sd_encoded_release(sd_encoded* encoded);

/* Is it that of source [n]? Of NULL: is there no source? */
int sd_encoded_is_of(const sd_encoded* encoded, const int32_t* source, int n);

/* Are both of one source, or both NULL? */
int sd_encoded_equal(const sd_encoded* a, const sd_encoded* b);

/* Bytes that it takes; of NULL 0. */
size_t sd_encoded_bytes(const sd_encoded* encoded);
