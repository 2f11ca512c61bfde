#include "layer_state.h"

#include <string.h>

int sd_ring_rows(const sd_config* c, int n_tree) { return c->mixers.conv_width - 1 + 2 * n_tree; }

sd_layer_state sd_layer_state_take(sd_arena* arena, const sd_config* c, int layer, int n_tree) {
    const sd_layer_config* own = &c->layers[layer];
    if (sd_attends(own)) return (sd_layer_state){0};
    sd_layer_state state = {.n_ring = sd_ring_rows(c, n_tree), .n_channels = sd_mixer_channels(c, own)};
    state.inputs =
        sd_arena_take(arena, (size_t)state.n_ring, (size_t)state.n_channels * sizeof *state.inputs);
    return state;
}

void sd_layer_state_copy_slot(const sd_layer_state* state, int from, const sd_layer_state* other, int to) {
    if (state->n_ring == 0) return;
    memcpy(sd_layer_state_inputs(other, to), sd_layer_state_inputs(state, from),
           (size_t)state->n_channels * sizeof *state->inputs);
}
