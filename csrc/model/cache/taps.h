/* Which hidden states of a model are kept with the tokens of a cache, for drafts that live on them. A hidden
 * state is named by the layers behind it: 0, the embedding; n, the residual stream after n layers; n_layer +
 * 1, what the head reads, the output norm behind the last layer. */
#ifndef SD_TAPS_H
#define SD_TAPS_H

#include "config.h"
#include "status.h"

#define SD_MAX_TAPS 16

typedef struct sd_taps {
    int n;
    /* [n] ascending */
    int layers[SD_MAX_TAPS];
} sd_taps;

/* Where a hidden state is among those; -1: nowhere. */
int sd_taps_find(const sd_taps* taps, int layer);

/* Add a hidden state of a model of this configuration. One that is there already is not added again. */
sd_status sd_taps_add(sd_taps* taps, int layer, const sd_config* config);

/* Are all of `wanted` among those? */
int sd_taps_include(const sd_taps* taps, const sd_taps* wanted);

#endif
