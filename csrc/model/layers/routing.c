#include "routing.h"

#include "kernels.h"

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

/* The k largest of x [n], ascending by index; of equal ones those with the lower index. A value that is
 * not a number is larger than none. */
static void choose_largest(int n, const float* x, int k, int32_t* chosen) {
    int n_chosen = 0;
    for (int i = 0; i < n; i++) { /* chosen: descending by value */
        int at = n_chosen;
        while (at > 0 && x[i] > x[chosen[at - 1]]) at--;
        if (at == k) continue;
        if (n_chosen < k) n_chosen++;
        for (int j = n_chosen - 1; j > at; j--) chosen[j] = chosen[j - 1];
        chosen[at] = i;
    }
    for (int i = 1; i < k; i++) {
        int32_t expert = chosen[i];
        int at = i;
        for (; at > 0 && chosen[at - 1] > expert; at--) chosen[at] = chosen[at - 1];
        chosen[at] = expert;
    }
}

/* x = the softmax of x [n], in place. */
static void softmax(int n, float* x) {
    float lanes[SD_LANES];
    sd_kernels_get()->softmax(n, x, SD_BLOCK, 1.0f, n, lanes);
    float sum = sdk_tree_sum(lanes);
    for (int i = 0; i < n; i++) x[i] /= sum;
}

static void choose(const sd_experts* e, float* logits, int32_t* chosen, float* weights) {
    choose_largest(e->n, logits, e->n_chosen, chosen);
    if (e->router == SD_ROUTER_SOFTMAX) softmax(e->n, logits);
    for (int i = 0; i < e->n_chosen; i++) weights[i] = logits[chosen[i]];
    if (e->router == SD_ROUTER_SOFTMAX_CHOSEN) softmax(e->n_chosen, weights);
    if (e->router == SD_ROUTER_SIGMOID) sd_kernels_get()->sigmoid(e->n_chosen, weights, weights);
    float sum = 0.0f;
    for (int i = 0; i < e->n_chosen; i++) sum += weights[i];
    for (int i = 0; e->renormalise && i < e->n_chosen; i++) weights[i] /= sum;
    for (int i = 0; i < e->n_chosen; i++) weights[i] *= e->scale;
}

void sd_routing_choose(const sd_routing* r, const sd_config* c, int first, int end) {
    int k = c->experts.n_chosen;
    for (int m = first; m < end; m++)
        choose(&c->experts, r->logits + m * r->ld_logits, r->chosen + (ptrdiff_t)m * k,
               r->chosen_weights + (ptrdiff_t)m * k);
}

/* The next touched expert: its rows, weights and inputs lie from index `start` on, its activations at
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
