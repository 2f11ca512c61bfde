/* What the cross-attention of a model attends to: the keys and values of one source in each of its layers.
 *
 * It is made once (encoder.h), never changes, and is shared by all texts with this source: by references that
 * are counted. */
#ifndef SD_ENCODED_H
#define SD_ENCODED_H

#include <stdint.h>

#include "key_values.h"
#include "weights.h"

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

#endif
