/* The encoder: all rows of a source through its layers, and what a decoder's cross-attention makes of
 * them. */
#ifndef SD_ENCODER_H
#define SD_ENCODER_H

#include "encoded.h"

/* Is source [n] (NULL: none is given) one that the model takes? A model with an encoder needs a source, any
 * other takes none. */
sd_status sd_source_check(const sd_model* model, const int32_t* source, int n);

/* The keys and values of a source [n] for the cross-attention of a model with an encoder. Ids past its
 * vocabulary are read as its last token. name: of the model in messages ("the target"); NULL: numbers that
 * are not finite are not looked for. The call can be interrupted between layers. *encoded is a reference of
 * the caller's. */
sd_status sd_encode(const sd_model* model, const int32_t* source, int n, int n_threads, const char* name,
                    sd_encoded** encoded);

/* The encoder's output for a source: out [n, d_model of the encoder] f32, borrowed. Otherwise as
 * sd_encode. */
sd_status sd_encoder_output(const sd_model* model, const int32_t* source, int n, int n_threads,
                            const char* name, float* out);

#endif
