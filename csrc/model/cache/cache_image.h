/* The image of a cached text: its keys, values and states as bytes, to be stored and read again.
 *
 * First come panels of 32 tokens, [panels, bytes of a panel]: keys and values of all layers without a window,
 * layer by layer and head by head, then captured hidden states. Texts with a common prefix have the same
 * bytes in the panels that it fills. The rest belongs to the text as a whole: layers with windows, states,
 * snapshots, and keys and values of the source. */
#pragma once

#include "cache.h"

/* What an image does not hold, besides tokens and source. */
typedef struct sd_image_shape {
    int n_tree, n_prompt, n_low, n_window_low; /* of the cache */
    int n_snapshots;
    int snapshots[SD_MOST_SNAPSHOTS]; /* [n_snapshots] tokens of each, ascending */
    sd_captures captures;
} sd_image_shape;

/* Bytes of a panel, and of the whole image. */
size_t sd_image_panel_bytes(const sd_cache* cache);
size_t sd_image_bytes(const sd_cache* cache);

/* Copy bytes [first, first + n) of the image to `out`, or from `in`; borrowed. */
void sd_image_read(const sd_cache* cache, size_t first, size_t n, char* out);
void sd_image_write(sd_cache* cache, size_t first, size_t n, const char* in);

/* Create a cache without capacity for more tokens than tokens [n], to be filled by sd_image_write; `encoded`
 * is shared, NULL for none. After a failure, which a wrong shape is too, the cache must still be freed. */
sd_status sd_image_restore(sd_cache* cache, const sd_model* model, const sd_image_shape* shape,
                           const int32_t* tokens, int n, sd_encoded* encoded);
