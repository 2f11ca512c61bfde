/* The second half of a layer with experts: which rows go through which expert. */
#include "layer.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "routing.h"

sd_routing sd_routing_take(sd_arena* arena, const sd_config* c, int max_rows) {
    const sd_experts* e = &c->experts;
    if (e->n == 0) return (sd_routing){0};
    size_t rows = (size_t)max_rows, chosen = rows * (size_t)e->n_chosen;
    size_t shared = e->shared_width > 0 ? rows : 0, d_model = sd_prepared_bytes((size_t)c->d_model);
    sd_routing r = {.ld_logits = (ptrdiff_t)SD_PANEL * (sd_matrix_panels(e->n) + (e->shared_gate ? 1 : 0))};
    r.touched = sd_arena_take(arena, (size_t)e->n + 1, sizeof *r.touched);
    r.logits = sd_arena_take(arena, rows, (size_t)r.ld_logits * sizeof *r.logits);
    r.input = sd_arena_take(arena, rows, d_model);
    r.chosen = sd_arena_take(arena, chosen, sizeof *r.chosen);
    r.chosen_weights = sd_arena_take(arena, chosen, sizeof *r.chosen_weights);
    r.starts = sd_arena_take(arena, (size_t)e->n, sizeof *r.starts);
    r.rows = sd_arena_take(arena, chosen + shared, sizeof *r.rows);
    r.weights = sd_arena_take(arena, chosen + shared, sizeof *r.weights);
    r.inputs = sd_arena_take(arena, chosen, d_model);
    size_t activated = chosen * sd_prepared_bytes((size_t)e->width);
    r.activated = sd_arena_take(arena, activated + shared * sd_prepared_bytes((size_t)e->shared_width), 1);
    return r;
}

static float rank_of(const float* x, const float* correction, int i) {
    return correction ? x[i] + correction[i] : x[i];
}

int sd_insert_largest(const float* x, const float* correction, int first, int end, int k, int n,
                      int32_t* chosen) {
    for (int i = first; i < end; i++) {
        int at = n;
        while (at > 0 && rank_of(x, correction, i) > rank_of(x, correction, chosen[at - 1])) at--;
        if (at == k) continue;
        if (n < k) n++;
        for (int j = n - 1; j > at; j--) chosen[j] = chosen[j - 1];
        chosen[at] = i;
    }
    return n;
}

static void sort_ascending(int n, int32_t* x) {
    for (int i = 1; i < n; i++) {
        int32_t value = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] > value; at--) x[at] = x[at - 1];
        x[at] = value;
    }
}

/* Choose experts, ascending, by their logits, or scores and corrections, x [n]. */
static void choose_ranked(const sd_experts* e, const float* x, const float* correction, int32_t* chosen) {
    float sums[SD_MOST_GROUPS];
    int32_t groups[SD_MOST_GROUPS] = {0}, best[2];
    int n_groups = e->n_groups > 0 ? e->n_groups : 1, size = e->n / n_groups, kept = 1, n = 0;
    for (int g = 0; g < e->n_groups; g++) {
        sd_insert_largest(x, correction, g * size, (g + 1) * size, 2, 0, best);
        sums[g] = rank_of(x, correction, best[0]) + rank_of(x, correction, best[1]);
    }
    if (e->n_groups > 0) kept = sd_insert_largest(sums, NULL, 0, n_groups, e->n_chosen_groups, 0, groups);
    sort_ascending(kept, groups);
    for (int g = 0; g < kept; g++)
        n = sd_insert_largest(x, correction, groups[g] * size, (groups[g] + 1) * size, e->n_chosen, n,
                              chosen);
    sort_ascending(e->n_chosen, chosen);
}

static void softmax(int n, float* x) {
    float lanes[SD_LANES];
    sd_kernels_get()->softmax(n, x, SD_BLOCK, 1.0f, n, lanes);
    float sum = sdk_tree_sum(lanes);
    for (int i = 0; i < n; i++) x[i] /= sum;
}

static void score(const sd_experts* e, float* logits) {
    if (e->router == SD_ROUTER_SOFTMAX) softmax(e->n, logits);
    if (e->router == SD_ROUTER_SIGMOID) sd_kernels_get()->sigmoid(e->n, logits, logits);
}

/* The logits [n] become scores. */
static void choose(const sd_experts* e, const sd_layer* layer, float* logits, int32_t* chosen,
                   float* weights) {
    const float* correction = layer->router_correction;
    if (correction) score(e, logits);
    choose_ranked(e, logits, correction, chosen);
    if (!correction) score(e, logits);
    for (int i = 0; i < e->n_chosen; i++) weights[i] = logits[chosen[i]];
    if (e->router == SD_ROUTER_SOFTMAX_CHOSEN) softmax(e->n_chosen, weights);
    float sum = 0.0f;
    for (int i = 0; i < e->n_chosen; i++) sum += weights[i];
    sum += e->eps;
    for (int i = 0; e->renormalize && i < e->n_chosen; i++) weights[i] /= sum;
    for (int i = 0; i < e->n_chosen; i++) weights[i] *= e->scale;
    for (int i = 0; e->with_dense && i < e->n_chosen; i++) weights[i] *= layer->expert_scale[chosen[i]];
}

void sd_routing_choose(const sd_routing* r, const sd_config* c, const sd_layer* layer, int first, int end) {
    int k = c->experts.n_chosen;
    for (int m = first; m < end; m++)
        choose(&c->experts, layer, r->logits + m * r->ld_logits, r->chosen + (ptrdiff_t)m * k,
               r->chosen_weights + (ptrdiff_t)m * k);
}

/* Set the next touched expert: its rows, weights and inputs start at index `start`, its activations at
 * `activated`. Returns where the activations end. */
static char* touch(sd_routing* r, const sd_mlp* mlp, int start, int n_rows, const void* input,
                   char* activated) {
    r->touched[r->n_touched++] =
        (sd_expert_rows){mlp, n_rows, r->rows + start, r->weights + start, input, activated, r->n_groups};
    r->n_groups += sd_mlp_groups(mlp);
    return activated + (size_t)n_rows * sd_prepared_bytes((size_t)mlp->width);
}

void sd_routing_group(sd_routing* r, const sd_config* c, const sd_layer* layer, int n_rows,
                      const void* input) {
    const sd_experts* e = &c->experts;
    int n = n_rows * e->n_chosen, start = 0;
    char* activated = r->activated;
    r->n_touched = r->n_shared = r->n_groups = 0;
    for (int i = 0; i < e->n; i++) r->starts[i] = 0;
    for (int i = 0; i < n; i++) r->starts[r->chosen[i]]++;
    for (int i = 0; i < e->n; i++) {
        int here = r->starts[i];
        r->starts[i] = start;
        if (here == 0) continue;
        char* inputs = r->inputs + (size_t)start * sd_prepared_bytes((size_t)c->d_model);
        activated = touch(r, &layer->experts[i], start, here, inputs, activated);
        start += here;
    }
    for (int i = 0; i < n; i++) {
        int at = r->starts[r->chosen[i]]++;
        r->rows[at] = i / e->n_chosen;
        r->weights[at] = r->chosen_weights[i];
    }
    if (e->shared_width == 0) return;
    r->n_shared = 1;
    touch(r, &layer->experts[e->n], start, n_rows, input, activated);
    for (int m = 0; m < n_rows; m++) {
        r->rows[start + m] = m;
        r->weights[start + m] =
            e->shared_gate ? r->logits[m * r->ld_logits + sd_shared_gate_output(c)] : 1.0f;
    }
    if (e->shared_gate) sd_kernels_get()->sigmoid(n_rows, r->weights + start, r->weights + start);
}

typedef struct mixture {
    sd_pass* pass;
    const sd_layer* layer;
    const float* rows; /* [n_rows, d_model] */
} mixture;

static void prepare_f32(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    int d = mix->pass->w->model->config.d_model;
    const sd_part part = {mix->pass->n_rows, first, end - first, 0, d};
    sd_rows_prepare(mix->pass->engine, SD_ROWS_F32, part, mix->rows + (ptrdiff_t)first * d, d, d,
                    mix->pass->w->routing.input);
}

static void choose_experts(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    const sd_workspace* w = mix->pass->w;
    sd_routing_choose(&w->routing, &w->model->config, mix->layer, first, end);
}

/* Gather the inputs of the touched experts: rows [first, end), counted over all of them. */
static void gather_inputs(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    int d = mix->pass->w->model->config.d_model;
    const sd_expert_rows* expert = mix->pass->w->routing.touched;
    for (int i = first, before = 0; i < end; i++) {
        for (; i >= before + expert->n_rows; expert++) before += expert->n_rows;
        const sd_part part = {expert->n_rows, i - before, 1, 0, d};
        const float* row = mix->rows + (ptrdiff_t)expert->rows[i - before] * d;
        sd_input_sums_add_chosen(mix->pass->w->input_sums, &expert->mlp->in, 1, d, row, d);
        sd_rows_prepare(mix->pass->engine, expert->mlp->in.rows, part, row, d, d, (void*)expert->input);
    }
}

/* Compute groups [first, end) of the activations of all touched experts. */
static void activate_groups(void* argument, int thread, int first, int end) {
    const sd_pass* pass = ((const mixture*)argument)->pass;
    const sd_workspace* w = pass->w;
    const sd_expert_rows* expert = w->routing.touched;
    for (int group = first; group < end; expert++) {
        int n_groups = sd_mlp_groups(expert->mlp), from = group - expert->first_group;
        if (from >= n_groups) continue;
        int to = end - expert->first_group < n_groups ? end - expert->first_group : n_groups;
        sd_bands bands = sd_mlp_bands(expert->mlp, pass->engine, expert->n_rows);
        for (int band = 0; band < bands.n; band++)
            sd_mlp_activate(w, expert->mlp, pass->engine, bands, band, expert->input, thread, from, to,
                            expert->activated);
        group += to - from;
    }
}

/* Panels [first, end) of update = Σ weight · output of the touched experts, from +0, experts ascending. */
static void add_experts(void* argument, int thread, int first, int end) {
    const mixture* mix = argument;
    sd_workspace* w = mix->pass->w;
    const sd_kernels* k = sd_kernels_get();
    int d = w->model->config.d_model, column = first * SD_PANEL;
    float* y = w->projected[thread];
    for (int m = 0; m < mix->pass->n_rows; m++)
        memset(w->update + m * w->ld_update + column, 0, (size_t)(end - first) * SD_PANEL * sizeof(float));
    for (const sd_expert_rows* e = w->routing.touched; e < w->routing.touched + w->routing.n_touched; e++) {
        const sd_matrix* down = &e->mlp->down;
        sd_bands bands = sd_bands_of(mix->pass->engine, down->rows, down->n_in, e->n_rows);
        for (int panel = first; panel < end; panel++) {
            int at = panel * SD_PANEL, n = d - at < SD_PANEL ? d - at : SD_PANEL;
            for (int band = 0; band < bands.n; band++)
                sd_matrix_multiply(down, mix->pass->engine, panel, panel + 1, bands, band, e->activated,
                                   y + (ptrdiff_t)sd_band_row(bands, band) * SD_PANEL, SD_PANEL);
            sd_add_bias(e->n_rows, n, y, SD_PANEL, e->mlp->down_bias ? e->mlp->down_bias + at : NULL);
            for (int i = 0; i < e->n_rows; i++) {
                float *of_row = y + i * SD_PANEL, *update = w->update + e->rows[i] * w->ld_update + at;
                k->scale(n, of_row, e->weights[i], of_row);
                k->add(1, n, update, SD_PANEL, of_row, SD_PANEL);
            }
        }
    }
}

/* Choose the experts of all rows; input: the router's, prepared for a product in f32. */
static void route(mixture* mix, const void* input) {
    sd_pass* pass = mix->pass;
    const sd_layer* layer = mix->layer;
    const sd_routing* r = &pass->w->routing;
    sd_pass_multiply(pass, SD_MAKE(sd_product, .matrix = &layer->router, .bias = layer->router_bias,
                                   .n_rows = pass->n_rows, .x = input, .y = r->logits, .ldy = r->ld_logits,
                                   .factor = 1.0f));
    if (pass->status != SD_OK) return; /* there are no router logits */
    sd_pass_loop_rows(pass, pass->n_rows, choose_experts, mix);
}

/* w->update = weighted sum of the chosen experts' outputs. */
static void run_experts(mixture* mix, const void* input) {
    sd_pass* pass = mix->pass;
    sd_workspace* w = pass->w;
    sd_routing* r = &w->routing;
    const sd_config* c = &w->model->config;
    sd_routing_group(r, c, mix->layer, pass->n_rows, input);
    sd_pass_loop_rows(pass, pass->n_rows * c->experts.n_chosen, gather_inputs, mix);

    int pieces = 8 * pass->team.n_threads, grain = r->n_groups / pieces;
    const sd_mlp* expert = &mix->layer->experts[0];
    double n_chosen = (double)pass->n_rows * c->experts.n_chosen;
    sd_pass_run(pass, n_chosen * expert->in.n_out * expert->in.n_in, r->n_groups, grain > 1 ? grain : 1,
                activate_groups, mix);
    sd_pass_run(pass, n_chosen * expert->down.n_out * expert->down.n_in, sd_matrix_panels(c->d_model),
                sd_matrix_grain(&expert->down, &pass->team), add_experts, mix);
    w->n_mixtures++;
    w->n_touched += r->n_touched - r->n_shared;
}

void sd_mixture_run(sd_pass* pass, int i, const float* rows, const void* input) {
    sd_workspace* w = pass->w;
    const sd_layer* layer = &w->model->layers[i];
    mixture mix = {.pass = pass, .layer = layer, .rows = rows};
    const void* unrounded = input;
    if (sd_layer_mlp(&w->model->config, layer)->in.rows != SD_ROWS_F32) {
        sd_pass_loop_rows(pass, pass->n_rows, prepare_f32, &mix);
        unrounded = w->routing.input;
    }
    route(&mix, unrounded);
    if (pass->status != SD_OK) return;
    run_experts(&mix, input);
    sd_pass_add_update(pass, (sd_norm_weights){layer->mlp_post_norm, layer->mlp_post_norm_bias});
}

/* w->dense = the dense block's output, and w->normed = the stream, each normalized. */
static void keep_dense(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    const sd_workspace* w = mix->pass->w;
    ptrdiff_t d = w->model->config.d_model;
    float factor = (float)(1.0 / sqrt((double)d));
    for (int m = first; m < end; m++) {
        float* row = w->normed + m * d;
        sd_model_norm(w->model, (int)d, w->update + m * w->ld_update, mix->layer->dense_post_norm, NULL,
                      w->dense + m * d);
        sd_model_norm(w->model, (int)d, w->hidden + m * d, mix->layer->router_norm, NULL, row);
        sd_kernels_get()->scale((int)d, row, factor, row);
    }
}

/* w->normed = the experts' input. */
static void norm_inputs(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    const sd_workspace* w = mix->pass->w;
    ptrdiff_t d = w->model->config.d_model;
    for (int m = first; m < end; m++)
        sd_model_norm(w->model, (int)d, w->hidden + m * d, mix->layer->experts_norm, NULL, w->normed + m * d);
}

/* w->update = its norm plus the dense output. */
static void add_dense(void* argument, int thread, int first, int end) {
    (void)thread;
    const mixture* mix = argument;
    const sd_workspace* w = mix->pass->w;
    ptrdiff_t d = w->model->config.d_model;
    for (int m = first; m < end; m++) {
        float* row = w->update + m * w->ld_update;
        sd_model_norm(w->model, (int)d, row, mix->layer->experts_post_norm, NULL, row);
        sd_kernels_get()->add(1, (int)d, row, d, w->dense + m * d, d);
    }
}

void sd_mixture_run_with_dense(sd_pass* pass, int i) {
    const sd_layer* layer = &pass->w->model->layers[i];
    mixture mix = {.pass = pass, .layer = layer, .rows = pass->w->normed};
    sd_pass_loop_rows(pass, pass->n_rows, keep_dense, &mix);
    sd_pass_loop_rows(pass, pass->n_rows, prepare_f32, &mix);
    route(&mix, pass->w->routing.input);
    if (pass->status != SD_OK) return;
    sd_pass_loop_rows(pass, pass->n_rows, norm_inputs, &mix);
    run_experts(&mix, NULL);
    sd_pass_loop_rows(pass, pass->n_rows, add_dense, &mix);
    sd_pass_add_update(pass, (sd_norm_weights){layer->mlp_post_norm, NULL});
}
