/* The gated delta rule (Qwen3-Next, Qwen3.5) and Mamba-2 (Granite 4). */
#include <string.h>

#include "convolution.h"
#include "kernels.h"
#include "layer.h"

/* Units of a piece of work: tiles of one branch, value head and 32 value columns. */
#define UNITS 2

typedef struct block {
    sd_pass* pass;
    int layer;
    sd_mixer mixer;
    sd_recurrent_columns at;
} block;

/* A branch of the pass and its rows, from `row` of the workspace on. */
typedef struct nodes {
    const sd_branch* branch;
    const sd_cache* cache;
    const sd_layer_state* state;
    ptrdiff_t row;
    int first_new; /* pending node of the first row */
} nodes;

static nodes nodes_of(const block* b, int branch) {
    nodes of = {.branch = &b->pass->branches[branch]};
    for (int i = 0; i < branch; i++) of.row += b->pass->branches[i].n_new;
    of.cache = of.branch->cache;
    of.state = &of.cache->states[b->layer];
    of.first_new = of.cache->n_pending - of.branch->n_new;
    return of;
}

/* w->rates = beta and decay of each row, or the time step, from unrounded inputs. */
static void project_rates(const block* b) {
    sd_workspace* w = b->pass->w;
    const sd_layer* layer = &w->model->layers[b->layer];
    sd_pass_prepare(b->pass, &layer->rates, b->pass->n_rows, layer->attn_norm ? w->normed : w->hidden,
                    w->model->config.d_model, (sd_norm_weights){0}, w->prepared);
    sd_pass_multiply(b->pass, SD_MAKE(sd_product, .matrix = &layer->rates, .n_rows = b->pass->n_rows,
                                      .x = w->prepared, .y = w->rates, .ldy = w->ld_rates, .factor = 1.0f));
}

/* ---- before the recurrence: convolution and SiLU, products of queries and keys, gates */

static void convolve(void* argument, int first, int n) {
    const block* b = argument;
    const sd_workspace* w = b->pass->w;
    const float* scales = w->model->channel_scales;
    for (int row = 0; scales != NULL && row < b->pass->n_rows; row++)
        sd_kernels_get()->multiply(n, w->qkv + row * w->ld_qkv + first, scales + first);
    sd_convolve(b->pass, b->layer, w->qkv, w->ld_qkv, w->convolved, b->at.n_channels, first, n);
    for (int row = 0; row < b->pass->n_rows; row++) {
        float* x = w->convolved + (ptrdiff_t)row * b->at.n_channels + first;
        sd_kernels_get()->silu(n, x, x);
    }
}

/* The delta rule has queries and keys of unit length. */
static void scale_rows(void* argument, int thread, int row, int end) {
    (void)thread;
    const block* b = argument;
    const sd_workspace* w = b->pass->w;
    const sd_kernels* k = sd_kernels_get();
    const sd_layer* layer = &w->model->layers[b->layer];
    const sd_mixer_sizes* sizes = &w->model->config.mixers;
    for (; row < end; row++) {
        float *query = w->convolved + (ptrdiff_t)row * b->at.n_channels, *key = query + b->at.n_keys;
        float *beta = w->rates + row * w->ld_rates, *decay = beta + b->at.decay,
              *products = w->products + (ptrdiff_t)row * sizes->n_key_head;
        for (int head = 0; head < sizes->n_key_head; head++, query += sizes->d_key, key += sizes->d_key)
            products[head] = b->mixer == SD_MIXER_DELTA ? k->unit_length(sizes->d_key, query, key)
                                                        : k->dot(sizes->d_key, query, key);
        float* time = b->mixer == SD_MIXER_DELTA ? decay : beta;
        if (sizes->scaled) k->scale(sizes->n_value_head, time, sizes->decay_scale, time);
        k->decay(sizes->n_value_head, time, layer->decay_bias, layer->decay_rate, time, decay);
        if (b->mixer == SD_MIXER_DELTA) k->sigmoid(sizes->n_value_head, beta, beta);
    }
}

/* ---- the recurrence, by units */

static sd_recurrent_row row_of(const block* b, ptrdiff_t row, int unit, float* delta) {
    const sd_workspace* w = b->pass->w;
    const sd_mixer_sizes* sizes = &w->model->config.mixers;
    int head = sd_head_of_unit(sizes, unit), key_head = sd_key_head(sizes, head),
        column = sd_column_of_unit(sizes, unit);
    float* out = w->unit_outputs ? w->unit_outputs + (row * b->at.n_units + unit) * SD_PANEL
                                 : w->attended + row * b->at.n_values + column;
    const float* skip = w->model->layers[b->layer].mixer_skip;
    const float *query = w->convolved + row * b->at.n_channels, *rates = w->rates + row * w->ld_rates;
    return SD_MAKE(
        sd_recurrent_row, .query = query + key_head * sizes->d_key,
        .key = query + b->at.n_keys + key_head * sizes->d_key, .value = query + 2 * b->at.n_keys + column,
        .product = w->products[row * sizes->n_key_head + key_head], .decay = rates[b->at.decay + head],
        .beta = rates[head], .skip = skip != NULL ? skip[head] : 0.0f, .corrects = b->mixer == SD_MIXER_DELTA,
        .delta = delta, .out = out);
}

static sd_recurrent_update update_of_row(const sd_recurrent_row* row) {
    return (sd_recurrent_update){.key = row->key, .delta = row->delta, .decay = row->decay};
}

/* The row of a pending node. Its update goes to the log. */
static sd_recurrent_row row_of_node(const block* b, const nodes* of, int node, int unit) {
    float* delta = sd_layer_state_delta(of->state, of->cache->n_committed + node, unit);
    return row_of(b, of->row + node - of->first_new, unit, delta);
}

/* New nodes are not in the log yet, except for their deltas: older entries may be needed until all units are
 * done. */
static sd_recurrent_update update_of_node(const block* b, const nodes* of, int node, int unit) {
    if (node < of->first_new) return sd_layer_state_update(of->state, of->cache->n_committed + node, unit);
    const sd_recurrent_row row = row_of_node(b, of, node, unit);
    return update_of_row(&row);
}

/* Update the tile of a unit up to the rows that the pass commits, and compute `row` from it unless it is
 * NULL. */
static void walk_text(const block* b, const nodes* of, int unit, const sd_recurrent_row* row) {
    const sd_layer_state* state = of->state;
    int n_commit = of->branch->n_commit, n = of->cache->n_committed;
    float *tile = sd_layer_state_tile(state, unit), deltas[2][SD_PANEL];
    if (n_commit == 0) {
        sd_layer_state_fold(state, unit, n, tile, row);
        state->n_folded[unit] = n;
        return;
    }
    sd_recurrent_row here = row_of(b, of->row, unit, deltas[0]);
    sd_layer_state_fold(state, unit, n, tile, &here);
    for (int i = 1; i <= n_commit; i++) {
        const sd_recurrent_update update = update_of_row(&here);
        if (i < n_commit) here = row_of(b, of->row + i, unit, deltas[i % 2]);
        sd_kernels_get()->recurrent_step(state->sizes->d_key, tile, tile, 1, &update,
                                         i < n_commit ? &here : row);
    }
    state->n_folded[unit] = n + n_commit;
}

/* Walk one unit of a branch: the text, then the tree after it. */
static void walk_unit(const block* b, const nodes* of, int unit, int thread) {
    const sd_walk* walk = &of->cache->walk;
    const sd_walk_step *step = walk->steps, *end = step + walk->n_steps;
    float *text = sd_layer_state_tile(of->state, unit), *scratch = b->pass->w->tiles[thread];
    ptrdiff_t size = (ptrdiff_t)of->state->sizes->d_key * SD_PANEL;
    sd_recurrent_update updates[SD_MOST_UPDATES];
    sd_recurrent_row row;
    int at_text = step < end && step->from == SD_TILE_TEXT && step->n_updates == 0;
    if (at_text) row = row_of_node(b, of, step->node, unit);
    walk_text(b, of, unit, at_text ? &row : NULL);
    for (step += at_text; step < end; step++) {
        for (int i = 0; i < step->n_updates; i++)
            updates[i] = update_of_node(b, of, walk->updates[step->first_update + i], unit);
        if (step->node >= 0) row = row_of_node(b, of, step->node, unit);
        sd_kernels_get()->recurrent_step(of->state->sizes->d_key,
                                         step->from == SD_TILE_TEXT ? text : scratch + step->from * size,
                                         step->to == SD_TILE_NONE ? NULL : scratch + step->to * size,
                                         step->n_updates, updates, step->node >= 0 ? &row : NULL);
    }
}

static void walk_units(void* argument, int thread, int i, int end) {
    const block* b = argument;
    for (; i < end; i++) {
        nodes of = nodes_of(b, i / b->at.n_units);
        walk_unit(b, &of, i % b->at.n_units, thread);
    }
}

/* Complete the log of the branches' pending rows. */
static void log_rows(const block* b) {
    const sd_workspace* w = b->pass->w;
    for (int branch = 0; branch < b->pass->n_branches; branch++) {
        nodes of = nodes_of(b, branch);
        for (int i = of.branch->n_commit; i < of.branch->n_new; i++) {
            ptrdiff_t row = of.row + i;
            sd_layer_state_log(of.state, of.cache->n_committed + of.first_new + i,
                               w->convolved + row * b->at.n_channels + b->at.n_keys,
                               w->rates + row * w->ld_rates + b->at.decay);
        }
    }
}

/* ---- after it: the norm of each head or group of values, and the product with SiLU of the gate */

static void finish_rows(void* argument, int thread, int row, int end) {
    (void)thread;
    const block* b = argument;
    const sd_workspace* w = b->pass->w;
    const sd_kernels* k = sd_kernels_get();
    const sd_config* c = &w->model->config;
    const sd_mixer_sizes* sizes = &c->mixers;
    const float* weight = w->model->layers[b->layer].mixer_norm;
    int n = b->at.n_values, delta = b->mixer == SD_MIXER_DELTA, norm_first = delta || sizes->norm_first;
    int width = delta ? sizes->d_value : sizes->n_norm_groups > 0 ? n / sizes->n_norm_groups : n;
    for (; row < end; row++) {
        float *out = w->attended + (ptrdiff_t)row * n, *gate = w->qkv + row * w->ld_qkv + b->at.gate;
        for (int head = 0; w->unit_outputs && head < sizes->n_value_head; head++) {
            ptrdiff_t unit = (ptrdiff_t)row * b->at.n_units + head * sd_units_of_head(sizes);
            memcpy(out + head * sizes->d_value, w->unit_outputs + unit * SD_PANEL,
                   (size_t)sizes->d_value * sizeof *out);
        }
        if (sizes->scaled) k->scale(n, gate, sizes->gate_scale, gate);
        k->silu(n, gate, gate);
        if (!norm_first) k->multiply(n, out, gate);
        for (int j = 0; weight != NULL && j < n; j += width)
            k->rms_norm(width, out + j, delta ? weight : weight + j, c->norm_eps, out + j);
        if (norm_first) k->multiply(n, out, gate);
    }
}

void sd_recurrent_block_run(sd_pass* pass, int i, const void* input) {
    const sd_workspace* w = pass->w;
    const sd_layer* layer = &w->model->layers[i];
    sd_mixer mixer = w->model->config.layers[i].mixer;
    block b = {pass, i, mixer, sd_recurrent_columns_of(&w->model->config.mixers, mixer)};
    double n_multiplications = 4.0 * pass->n_rows * b.at.n_values * w->model->config.mixers.d_key;
    sd_pass_project(pass, &layer->mixer_in, NULL, input);
    project_rates(&b);
    sd_pass_loop_channels(pass, b.at.n_channels, convolve, &b);
    sd_pass_loop_rows(pass, pass->n_rows, scale_rows, &b);
    sd_pass_run(pass, n_multiplications, pass->n_branches * b.at.n_units, UNITS, walk_units, &b);
    if (pass->status != SD_OK) return;
    log_rows(&b);
    sd_pass_loop_rows(pass, pass->n_rows, finish_rows, &b);
    sd_pass_project_back(pass, &layer->mixer_out, NULL,
                         (sd_norm_weights){layer->attn_post_norm, layer->attn_post_norm_bias},
                         w->model->config.mixer_out_scale);
}
