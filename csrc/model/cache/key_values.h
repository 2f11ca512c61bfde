/* The keys and values of one layer, laid out as products read them: in panels (format.h).
 *
 * Slot s is slot s % n_slots: a layer may have fewer slots than its cache. */
#ifndef SD_KEY_VALUES_H
#define SD_KEY_VALUES_H

#include "matrix.h"
#include "prefetch.h"

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

#endif
