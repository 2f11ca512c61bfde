/* Convolutions, and the gated short convolution (LFM2). */
#include "convolution.h"

#include <string.h>

#include "kernels.h"
#include "layer.h"

/* Numbers of a pass from which the team shares a loop over channels. */
#define SHARED_NUMBERS (1 << 14)

static const float before_text[SD_MOST_CHANNELS];

/* Find the convolution inputs of new node i of a branch, oldest first, from channel `first` on. x: the rows
 * of the branch. */
static void find_inputs(const sd_branch* branch, int layer, int i, const float* x, ptrdiff_t ldx, int first,
                        const float** inputs) {
    const sd_cache* cache = branch->cache;
    const sd_layer_state* state = &cache->states[layer];
    int first_node = cache->n_pending - branch->n_new, node = first_node + i;
    for (int t = cache->model->config.mixers.conv_width - 1; t >= 0; t--) {
        if (node >= first_node)
            inputs[t] = x + (node - first_node) * ldx + first;
        else if (cache->n_committed + node >= 0) /* node -n: the n-th token from the end of the text */
            inputs[t] = sd_layer_state_inputs(state, cache->n_committed + node) + first;
        else
            inputs[t] = before_text;
        node = node >= 0 ? cache->parents[node] : node - 1;
    }
}

/* Store the inputs of a branch's new nodes, the last ones that fit. */
static void store_inputs(const sd_branch* branch, int layer, const float* x, ptrdiff_t ldx, int first,
                         int n) {
    const sd_cache* cache = branch->cache;
    const sd_layer_state* state = &cache->states[layer];
    int slot = cache->n_committed + cache->n_pending - branch->n_new;
    for (int i = branch->n_new > state->n_ring ? branch->n_new - state->n_ring : 0; i < branch->n_new; i++)
        memcpy(sd_layer_state_inputs(state, slot + i) + first, x + i * ldx + first, (size_t)n * sizeof *x);
}

void sd_convolve(const sd_pass* pass, int layer, const float* x, ptrdiff_t ldx, float* out, ptrdiff_t ldo,
                 int first, int n) {
    const sd_layer* of = &pass->w->model->layers[layer];
    const float* weights = (const float*)(const void*)of->conv.data + first;
    const float* inputs[SD_MOST_CONV_WIDTH];
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_branch* branch = &pass->branches[b];
        for (int i = 0; i < branch->n_new; i++, out += ldo) {
            find_inputs(branch, layer, i, x, ldx, first, inputs);
            sd_kernels_get()->convolve(n, of->conv.n_rows, inputs, weights, of->conv.n_cols,
                                       of->conv_bias ? of->conv_bias + first : NULL, out + first);
        }
        store_inputs(branch, layer, x, ldx, first, n);
        x += branch->n_new * ldx;
    }
}

/* A loop over channels. */
typedef struct loop {
    int n_channels;
    sd_channel_work work;
    void* argument;
} loop;

static void run_panels(void* argument, int thread, int panel, int end) {
    (void)thread;
    const loop* of = argument;
    int last = end * SD_PANEL < of->n_channels ? end * SD_PANEL : of->n_channels;
    for (int first = panel * SD_PANEL; first < last; first += SD_MOST_CHANNELS)
        of->work(of->argument, first, last - first < SD_MOST_CHANNELS ? last - first : SD_MOST_CHANNELS);
}

void sd_pass_loop_channels(const sd_pass* pass, int n_channels, sd_channel_work work, void* argument) {
    loop of = {n_channels, work, argument};
    if ((double)pass->n_rows * n_channels < SHARED_NUMBERS)
        run_panels(&of, 0, 0, sd_matrix_panels(n_channels));
    else
        sd_team_run(&pass->team, sd_matrix_panels(n_channels), 1, run_panels, &of);
}

typedef struct mixing {
    const sd_pass* pass;
    int layer;
} mixing;

/* attended = C ⊙ convolution(B ⊙ x), with (B, C, x) the thirds of w->qkv, for channels [first, first + n). */
static void mix_channels(void* argument, int first, int n) {
    const mixing* m = argument;
    const sd_workspace* w = m->pass->w;
    const sd_kernels* k = sd_kernels_get();
    int d = w->model->config.d_model;
    for (int row = 0; row < m->pass->n_rows; row++) {
        float* b = w->qkv + row * w->ld_qkv + first;
        k->multiply(n, b, b + 2 * d);
    }
    sd_convolve(m->pass, m->layer, w->qkv, w->ld_qkv, w->attended, d, first, n);
    for (int row = 0; row < m->pass->n_rows; row++)
        k->multiply(n, w->attended + (ptrdiff_t)row * d + first, w->qkv + row * w->ld_qkv + d + first);
}

void sd_convolution_block_run(sd_pass* pass, int i, const void* input) {
    const sd_layer* layer = &pass->w->model->layers[i];
    mixing m = {pass, i};
    sd_pass_project(pass, &layer->mixer_in, layer->mixer_in_bias, input);
    sd_pass_loop_channels(pass, pass->w->model->config.d_model, mix_channels, &m);
    sd_pass_project_back(pass, &layer->mixer_out, layer->mixer_out_bias,
                         (sd_norm_weights){layer->attn_post_norm, layer->attn_post_norm_bias},
                         pass->w->model->config.mixer_out_scale);
}
