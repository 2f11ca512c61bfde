/* What a layer without attention keeps of a text, in place of keys and values. */
#pragma once

#include <stddef.h>

#include "config.h"
#include "memory.h"

/* A convolution reads the last conv_width - 1 tokens before a row. So the ring holds these, and twice the
 * nodes that may be pending: texts can be cut back by n_tree tokens or more. Slot s of the cache is row s
 * % n_ring. */
typedef struct sd_layer_state {
    int n_ring, n_channels; /* 0: the layer has attention */
    float* inputs;          /* [n_ring, n_channels] f32 inputs of the convolution */
} sd_layer_state;

/* Rows of a ring for up to n_tree pending nodes. */
int sd_ring_rows(const sd_config* config, int n_tree);

/* Take memory for a layer from the arena (which may be counting); none if it has attention. */
sd_layer_state sd_layer_state_take(sd_arena* arena, const sd_config* config, int layer, int n_tree);

/* Convolution inputs [n_channels] of a slot; borrowed. */
static inline float* sd_layer_state_inputs(const sd_layer_state* state, int slot) {
    return state->inputs + (size_t)(slot % state->n_ring) * (size_t)state->n_channels;
}

/* Copy slot `from` to slot `to` of the same layer, or of one that differs only in n_ring. */
void sd_layer_state_copy_slot(const sd_layer_state* state, int from, const sd_layer_state* other, int to);
