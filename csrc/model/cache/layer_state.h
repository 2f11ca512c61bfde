/* State of a layer's mixer for a text, as keys and values are that of attention. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "kernels.h"
#include "matrix.h"
#include "memory.h"

/* A convolution reads the last conv_width - 1 tokens before a row. So the ring holds these, and twice the
 * nodes that may be pending: texts can be cut back by n_tree tokens or more. With a state, which cannot be
 * cut back, once is enough. Slot s of the cache is row s % n_ring.
 *
 * A recurrent layer reads a state of the whole text, in tiles: each unit has 32 value columns of a head, the
 * last one of a head perhaps fewer, followed by columns that nothing reads. Accepted tokens wait in a log
 * until the next pass folds them into the tiles, unit by unit, before it reads these. Slot s is entry s %
 * n_log: a new node overwrites an accepted token when its tile has been folded. */
typedef struct sd_layer_state {
    int n_ring, n_channels;      /* 0: the layer has no mixer */
    float* inputs;               /* [n_ring, n_channels] f32 inputs of the convolution */
    const sd_mixer_sizes* sizes; /* of the model; borrowed */
    int n_units;                 /* tiles; 0: the layer has a convolution only */
    int n_log, n_entry;          /* entries, and floats of one */
    float* tiles;                /* [n_units, d_key, SD_PANEL] f32 */
    int32_t* n_folded;           /* [n_units] tokens that a tile has; 0: its numbers mean nothing */
    float* log;                  /* [n_log, n_entry] keys, deltas and decays of all heads */
} sd_layer_state;

/* Rows of a ring for up to n_tree pending nodes. */
int sd_ring_rows(const sd_config* config, int n_tree);

/* Take memory for a layer from the arena (which may be counting); none without a mixer. */
sd_layer_state sd_layer_state_take(sd_arena* arena, const sd_config* config, int layer, int n_tree);

/* Convolution inputs [n_channels] of a slot; borrowed. */
static inline float* sd_layer_state_inputs(const sd_layer_state* state, int slot) {
    return state->inputs + (size_t)(slot % state->n_ring) * (size_t)state->n_channels;
}

/* A unit's tile, [d_key, SD_PANEL]; borrowed. */
static inline float* sd_layer_state_tile(const sd_layer_state* state, int unit) {
    return state->tiles + (size_t)unit * (size_t)state->sizes->d_key * SD_PANEL;
}

/* Units of a value head; the value head of a unit, and its first column among the values of all heads. */
static inline int sd_units_of_head(const sd_mixer_sizes* sizes) { return sd_matrix_panels(sizes->d_value); }
static inline int sd_head_of_unit(const sd_mixer_sizes* sizes, int unit) {
    return unit / sd_units_of_head(sizes);
}
static inline int sd_column_of_unit(const sd_mixer_sizes* sizes, int unit) {
    int n = sd_units_of_head(sizes);
    return unit / n * sizes->d_value + unit % n * SD_PANEL;
}

/* The delta [SD_PANEL] of a slot and unit, borrowed; and the slot's update of the unit's tile. */
float* sd_layer_state_delta(const sd_layer_state* state, int slot, int unit);
sd_recurrent_update sd_layer_state_update(const sd_layer_state* state, int slot, int unit);

/* Log the keys [n_key_head, d_key] and decays [n_value_head] of a slot; its deltas are there. */
void sd_layer_state_log(const sd_layer_state* state, int slot, const float* keys, const float* decays);

/* Write a unit's tile for a text of n tokens, which the log must reach, to `tile`, borrowed; it may be the
 * unit's own. Compute `row` from it unless that is NULL. */
void sd_layer_state_fold(const sd_layer_state* state, int unit, int n, float* tile,
                         const sd_recurrent_row* row);

/* Copy slot `from` to slot `to` of the same layer, or of one that differs only in n_ring. The log's entries
 * are copied within a layer only. */
void sd_layer_state_copy_slot(const sd_layer_state* state, int from, const sd_layer_state* other, int to);

/* Copy the states `from` [n_layer] of a text of n tokens to states `to` [n_layer] of the same model. They may
 * be cut back to `low` tokens where only convolutions have states. */
void sd_layer_states_copy(const sd_config* config, const sd_layer_state* from, int low, int n,
                          const sd_layer_state* to);

/* Begin a text: tiles have no tokens. */
void sd_layer_state_forget(const sd_layer_state* state);
