#include "layer_state.h"

#include <string.h>

#include "state_walk.h"

int sd_ring_rows(const sd_config* c, int n_tree) {
    return c->mixers.conv_width - 1 + (sd_any_has_state(c) ? 1 : 2) * n_tree;
}

static size_t key_floats(const sd_mixer_sizes* s) { return (size_t)s->n_key_head * (size_t)s->d_key; }
static size_t delta_floats(const sd_mixer_sizes* s) {
    return (size_t)s->n_value_head * (size_t)sd_units_of_head(s) * SD_PANEL;
}

static size_t tile_floats(const sd_layer_state* state) { return (size_t)state->sizes->d_key * SD_PANEL; }

sd_layer_state sd_layer_state_take(sd_arena* arena, const sd_config* c, int layer, int n_tree) {
    const sd_layer_config* own = &c->layers[layer];
    const sd_mixer_sizes* sizes = &c->mixers;
    if (own->mixer == SD_MIXER_NONE) return (sd_layer_state){0};
    sd_layer_state state = {
        .n_ring = sd_ring_rows(c, n_tree), .n_channels = sd_mixer_channels(c, own), .sizes = sizes};
    state.inputs =
        sd_arena_take(arena, (size_t)state.n_ring, (size_t)state.n_channels * sizeof *state.inputs);
    if (!sd_has_state(own)) return state;
    state.n_units = sd_recurrent_columns_of(sizes, own->mixer).n_units;
    state.n_log = n_tree;
    state.n_entry = (int)(key_floats(sizes) + delta_floats(sizes)) + sizes->n_value_head;
    state.tiles = sd_arena_take(arena, (size_t)state.n_units, tile_floats(&state) * sizeof *state.tiles);
    state.n_folded = sd_arena_take(arena, (size_t)state.n_units, sizeof *state.n_folded);
    state.log = sd_arena_take(arena, (size_t)state.n_log, (size_t)state.n_entry * sizeof *state.log);
    return state;
}

static float* entry_of(const sd_layer_state* state, int slot) {
    return state->log + (size_t)(slot % state->n_log) * (size_t)state->n_entry;
}

float* sd_layer_state_delta(const sd_layer_state* state, int slot, int unit) {
    return entry_of(state, slot) + key_floats(state->sizes) + unit * SD_PANEL;
}

sd_recurrent_update sd_layer_state_update(const sd_layer_state* state, int slot, int unit) {
    const sd_mixer_sizes* s = state->sizes;
    const float* entry = entry_of(state, slot);
    int head = sd_head_of_unit(s, unit);
    return SD_MAKE(sd_recurrent_update, .key = entry + sd_key_head(s, head) * s->d_key,
                   .delta = entry + key_floats(s) + unit * SD_PANEL,
                   .decay = entry[key_floats(s) + delta_floats(s) + (size_t)head]);
}

void sd_layer_state_log(const sd_layer_state* state, int slot, const float* keys, const float* decays) {
    const sd_mixer_sizes* s = state->sizes;
    float* entry = entry_of(state, slot);
    memcpy(entry, keys, key_floats(s) * sizeof *entry);
    memcpy(entry + key_floats(s) + delta_floats(s), decays, (size_t)s->n_value_head * sizeof *entry);
}

void sd_layer_state_fold(const sd_layer_state* state, int unit, int n, float* tile,
                         const sd_recurrent_row* row) {
    sd_recurrent_update updates[SD_MOST_UPDATES];
    const float* from = sd_layer_state_tile(state, unit);
    size_t bytes = tile_floats(state) * sizeof *tile;
    int slot = state->n_folded[unit];
    if (slot == 0) from = memset(tile, 0, bytes);
    do {
        int n_updates = 0;
        for (; slot < n && n_updates < SD_MOST_UPDATES; slot++)
            updates[n_updates++] = sd_layer_state_update(state, slot, unit);
        int last = slot >= n;
        if (n_updates > 0 || (last && row))
            sd_kernels_get()->recurrent_step(state->sizes->d_key, from,
                                             n_updates > 0 || from != tile ? tile : NULL, n_updates, updates,
                                             last ? row : NULL);
        else if (from != tile)
            memcpy(tile, from, bytes);
        from = tile;
    } while (slot < n);
}

void sd_layer_state_copy_slot(const sd_layer_state* state, int from, const sd_layer_state* other, int to) {
    if (state->n_ring == 0) return;
    memcpy(sd_layer_state_inputs(other, to), sd_layer_state_inputs(state, from),
           (size_t)state->n_channels * sizeof *state->inputs);
    if (state->n_units > 0 && state == other)
        memcpy(entry_of(state, to), entry_of(state, from), (size_t)state->n_entry * sizeof *state->log);
}

/* Copy the tiles for a text of n tokens to another state of the layer. */
static void copy_tiles(const sd_layer_state* state, int n, const sd_layer_state* other) {
    for (int unit = 0; unit < state->n_units; unit++) {
        sd_layer_state_fold(state, unit, n, sd_layer_state_tile(other, unit), NULL);
        other->n_folded[unit] = n;
    }
}

void sd_layer_states_copy(const sd_config* c, const sd_layer_state* from, int low, int n,
                          const sd_layer_state* to) {
    int first = low - c->mixers.conv_width + 1;
    for (int layer = 0; layer < c->n_layer; layer++) {
        for (int slot = first > 0 ? first : 0; slot < n; slot++)
            sd_layer_state_copy_slot(&from[layer], slot, &to[layer], slot);
        copy_tiles(&from[layer], n, &to[layer]);
    }
}

void sd_layer_state_forget(const sd_layer_state* state) {
    for (int unit = 0; unit < state->n_units; unit++) state->n_folded[unit] = 0;
}
