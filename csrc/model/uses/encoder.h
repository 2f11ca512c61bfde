/* The encoder: all rows of a source through its layers, and what a decoder's cross-attention makes of
 * them. */
#ifndef SD_ENCODER_H
#define SD_ENCODER_H

#include "cache.h"

/* Is source [n] (NULL: none is given) one that the model takes? A model with an encoder needs a source, any
 * other takes none. */
sd_status sd_encoder_check(const sd_model* model, const int32_t* source, int n);

/* Encode a source [n] for the texts of a cache, of a model with an encoder: they attend to it from then on
 * (sd_cache_attend). Ids past the encoder's vocabulary are read as its last token. name: of the model in
 * messages ("the target"); NULL: numbers that are not finite are not looked for. The call can be interrupted
 * between layers. On failure the cache is what it was. */
sd_status sd_encode(sd_cache* cache, const int32_t* source, int n, int n_threads, const char* name);

/* The encoder's output for a source [n]: out [n, d_model of the encoder] f32, borrowed. Ids, name and
 * interrupts as in sd_encode. */
sd_status sd_encoder_output(const sd_model* model, const int32_t* source, int n, int n_threads,
                            const char* name, float* out);

#endif
