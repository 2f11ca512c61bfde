#include "forward.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"

/* Floats from row to row of an array with n columns in whole panels. Rows that lie 4 KiB or a multiple
 * apart would share few places of the first-level cache, so they get a panel more. */
static ptrdiff_t row_stride(int n) {
    ptrdiff_t floats = (ptrdiff_t)SD_PANEL * sd_matrix_panels(n);
    return floats % 1024 == 0 ? floats + SD_PANEL : floats;
}

static void lay_out(sd_workspace* w) {
    const sd_config* c = &w->model->config;
    sd_arena* arena = &w->arena;
    size_t rows = (size_t)w->max_rows, d_model = (size_t)c->d_model, d_q = (size_t)(c->n_head * c->d_head);
    w->ld_qkv = row_stride(sd_qkv_outputs(c));
    w->ld_update = row_stride(c->d_model);
    w->ld_logits = row_stride(c->n_vocab);
    w->tokens = sd_arena_take(arena, rows, sizeof *w->tokens);
    w->positions = sd_arena_take(arena, rows, sizeof *w->positions);
    w->parts = sd_arena_take(arena, rows, sizeof *w->parts);
    w->hidden = sd_arena_take(arena, rows, d_model * sizeof(float));
    w->qkv = sd_arena_take(arena, rows, (size_t)w->ld_qkv * sizeof(float));
    w->attended = sd_arena_take(arena, rows, d_q * sizeof(float));
    w->activated = sd_arena_take(arena, rows, sd_prepared_bytes((size_t)c->d_ff));
    w->update = sd_arena_take(arena, rows, (size_t)w->ld_update * sizeof(float));
    w->logits = sd_arena_take(arena, (size_t)w->max_logits, (size_t)w->ld_logits * sizeof(float));
    w->normed = sd_arena_take(arena, rows, d_model * sizeof(float));
    w->prepared = sd_arena_take(arena, rows, sd_prepared_bytes(d_model > d_q ? d_model : d_q));
    w->angles = sd_angles_take(arena, w->model, sd_matrix_panels(w->max_slots) * SD_PANEL);
    for (int t = 0; t < w->n_threads; t++) {
        w->projected[t] = sd_arena_take(arena, rows, 2 * SD_PANEL * sizeof(float));
        w->attention[t] = sd_attention_take(arena, c, w->max_slots);
    }
}

sd_status sd_workspace_create(sd_workspace* w, const sd_model* model, int n_threads, int max_rows,
                              int max_logits, int max_slots) {
    *w = (sd_workspace){.model = model,
                        .n_threads = n_threads,
                        .max_rows = max_rows,
                        .max_logits = max_logits,
                        .max_slots = max_slots};
    sd_status status = sd_pool_reserve(n_threads);
    if (status != SD_OK) return status;
    status = SD_ARENA_BUILD(&w->arena, lay_out(w));
    if (status != SD_OK) return status;
    return SD_OK;
}

void sd_workspace_free(sd_workspace* w) { sd_arena_free(&w->arena); }

/* A forward. The caller's thread runs it from layer to layer; the team computes the pieces of its loops. */
typedef struct job {
    sd_workspace* w;
    const sd_branch* branches;
    int n_branches, n_rows, n_logits;
    int first, end;               /* layers [first, end); from a later one on with rows of the caches */
    const unsigned char* skipped; /* [n_layer] what is passed by; NULL: nothing */
    int keep;                     /* before this layer the rows are kept with their caches; -1: nowhere */
    sd_team team;
} job;

/* ------------------------------------------------------------------ rows as inputs of a product */

/* With as many rows as this the team shares their preparation; with fewer the caller is done before the
 * others have come. */
#define SHARED_ROWS 12
#define ROW_GRAIN 4

/* A norm before a product; weight NULL: none. */
typedef struct norm {
    const float *weight, *bias;
} norm;

typedef struct preparation {
    sd_workspace* w;
    const float* x; /* [n_rows, n] */
    int n_rows, n;
    norm norm;
} preparation;

static void prepare_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const preparation* p = argument;
    const sd_model* model = p->w->model;
    const sd_kernels* k = sd_kernels_get();
    const float* x = p->x + (ptrdiff_t)first * p->n;
    if (p->norm.weight) {
        float* normed = p->w->normed + (ptrdiff_t)first * p->n;
        for (int m = first; m < end; m++, x += p->n, normed += p->n) {
            if (model->config.norm == SD_NORM_RMS)
                k->rms_norm(p->n, x, p->norm.weight, model->config.norm_eps, normed);
            else
                k->layer_norm(p->n, x, p->norm.weight, p->norm.bias, model->config.norm_eps, normed);
        }
        x = p->w->normed + (ptrdiff_t)first * p->n;
    }
    const sd_part part = {p->n_rows, first, end - first, 0, p->n};
    k->prepare[model->numbers.weights](part, x, p->n, p->n, p->w->prepared);
}

/* Make the n_rows rows x [n_rows, n], normalised, the input of a product: w->prepared. */
static void prepare(const job* j, int n_rows, const float* x, int n, norm norm) {
    preparation p = {j->w, x, n_rows, n, norm};
    if (n_rows < SHARED_ROWS)
        prepare_rows(&p, 0, 0, n_rows);
    else
        sd_team_run(&j->team, n_rows, ROW_GRAIN, prepare_rows, &p);
}

/* ------------------------------------------------------------------ products */

/* y += bias for all rows of n columns; without bias nothing happens. */
static void add_bias(int n_rows, int n, float* y, ptrdiff_t ldy, const float* bias) {
    if (bias != NULL) sd_kernels_get()->add(n_rows, n, y, ldy, bias, 0);
}

typedef struct product {
    const sd_matrix* matrix;
    const float* bias; /* [n_out]; NULL: none */
    int n_rows;
    const void* x; /* prepared */
    float* y;      /* [n_rows, n_out in whole panels], rows ldy apart */
    ptrdiff_t ldy;
    float* hidden; /* [n_rows, n_out] the product is added to it; NULL: it is not */
} product;

static void multiply_panels(void* argument, int thread, int panel, int panel_end) {
    (void)thread;
    const product* p = argument;
    int n_out = p->matrix->n_out, first = panel * SD_PANEL;
    int end = panel_end * SD_PANEL < n_out ? panel_end * SD_PANEL : n_out;
    float* y = p->y + first;
    sd_matrix_multiply(p->matrix, panel, panel_end, p->n_rows, p->x, y, p->ldy);
    add_bias(p->n_rows, end - first, y, p->ldy, p->bias ? p->bias + first : NULL);
    if (p->hidden) sd_kernels_get()->add(p->n_rows, end - first, p->hidden + first, n_out, y, p->ldy);
}

static void multiply(const job* j, product p) {
    sd_team_run(&j->team, sd_matrix_panels(p.matrix->n_out), sd_matrix_grain(p.matrix, &j->team),
                multiply_panels, &p);
}

/* hidden += x · matrixᵀ + bias; x is prepared. */
static void add_product(const job* j, const sd_matrix* matrix, const float* bias, const void* x) {
    sd_workspace* w = j->w;
    multiply(j, (product){matrix, bias, j->n_rows, x, w->update, w->ld_update, w->hidden});
}

/* ------------------------------------------------------------------ the halves of a layer */

/* Attention of (sequence, key/value head) pairs. */
typedef struct attention {
    const job* j;
    int layer;
} attention;

static void attend_pairs(void* argument, int thread, int pair, int end) {
    const attention* a = argument;
    const job* j = a->j;
    sd_workspace* w = j->w;
    const sd_config* c = &w->model->config;
    ptrdiff_t d_q = (ptrdiff_t)c->n_head * c->d_head;
    for (; pair < end; pair++) {
        const sd_branch* branch = &j->branches[pair / c->n_kv_head];
        ptrdiff_t row = 0;
        for (const sd_branch* before = j->branches; before < branch; before++) row += before->n_new;
        sd_attention(w->model, branch->cache, a->layer, pair % c->n_kv_head, branch->n_new, &w->angles,
                     w->qkv + row * w->ld_qkv, w->ld_qkv, w->attended + row * d_q, d_q,
                     &w->attention[thread]);
    }
}

static void run_attention(const job* j, int i) {
    sd_workspace* w = j->w;
    const sd_config* c = &w->model->config;
    const sd_layer* layer = &w->model->layers[i];
    prepare(j, j->n_rows, w->hidden, c->d_model, (norm){layer->attn_norm, layer->attn_norm_bias});
    multiply(j, (product){&layer->qkv, layer->qkv_bias, j->n_rows, w->prepared, w->qkv, w->ld_qkv, NULL});
    sd_team_run(&j->team, j->n_branches * c->n_kv_head, 1, attend_pairs, &(attention){j, i});
    prepare(j, j->n_rows, w->attended, c->n_head * c->d_head, (norm){0});
    add_product(j, &layer->attn_out, layer->attn_out_bias, w->prepared);
}

static void activate(sd_activation activation, int n, const float* x, float* y) {
    const sd_kernels* k = sd_kernels_get();
    switch (activation) {
    case SD_ACT_SILU: k->silu(n, x, y); break;
    case SD_ACT_GELU: k->gelu(n, x, y); break;
    case SD_ACT_GELU_TANH: k->gelu_tanh(n, x, y); break;
    }
}

typedef struct mlp {
    const job* j;
    const sd_layer* layer;
} mlp;

/* activated = act(gate) · up, or act(up), prepared for mlp_down: one group of panels after the other, so
 * that what follows a projection needs no loop of its own. */
static void mlp_in_groups(void* argument, int thread, int first_group, int end_group) {
    const mlp* m = argument;
    const job* j = m->j;
    sd_workspace* w = j->w;
    const sd_config* c = &w->model->config;
    const sd_kernels* k = sd_kernels_get();
    const sd_matrix* matrix = &m->layer->mlp_in;
    const float* bias = m->layer->mlp_in_bias;
    float* projected = w->projected[thread];
    for (int group = first_group; group < end_group; group++) {
        for (int i = 0; i < matrix->group; i++) { /* gate, then up, each contiguous */
            int panel = group * matrix->group + i, first = panel * SD_PANEL;
            int n = matrix->n_out - first < SD_PANEL ? matrix->n_out - first : SD_PANEL;
            float* y = projected + (ptrdiff_t)i * j->n_rows * SD_PANEL;
            sd_matrix_multiply(matrix, panel, panel + 1, j->n_rows, w->prepared, y, SD_PANEL);
            add_bias(j->n_rows, n, y, SD_PANEL, bias ? bias + first : NULL);
        }
        int n_gates = j->n_rows * SD_PANEL;
        activate(c->activation, n_gates, projected, projected);
        if (c->gated) k->multiply(n_gates, projected, projected + n_gates);
        int column = group * SD_PANEL, n = c->d_ff - column < SD_PANEL ? c->d_ff - column : SD_PANEL;
        const sd_part part = {j->n_rows, 0, j->n_rows, column, n};
        k->prepare[w->model->numbers.weights](part, projected, SD_PANEL, c->d_ff, w->activated);
    }
}

static void run_mlp(const job* j, int i) {
    sd_workspace* w = j->w;
    const sd_layer* layer = &w->model->layers[i];
    const sd_matrix* matrix = &layer->mlp_in;
    prepare(j, j->n_rows, w->hidden, w->model->config.d_model, (norm){layer->mlp_norm, layer->mlp_norm_bias});
    sd_team_run(&j->team, sd_matrix_panels(matrix->n_out) / matrix->group,
                sd_matrix_grain(matrix, &j->team) / matrix->group, mlp_in_groups, &(mlp){j, layer});
    add_product(j, &layer->mlp_down, layer->mlp_down_bias, w->activated);
}

/* ------------------------------------------------------------------ the whole */

static void embed_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const sd_workspace* w = ((const job*)argument)->w;
    for (int m = first; m < end; m++)
        sd_model_embed(w->model, w->tokens[m], w->positions[m],
                       w->hidden + (ptrdiff_t)m * w->model->config.d_model);
}

/* The rows of hidden that need logits, [n_logits, d_model], in the order of branches and nodes. */
static void gather(const job* j, float* to) {
    size_t d_model = (size_t)j->w->model->config.d_model;
    const float* from = j->w->hidden;
    for (int b = 0; b < j->n_branches; b++) {
        size_t n_new = (size_t)j->branches[b].n_new, n = (size_t)j->branches[b].n_logits;
        memcpy(to, from + (n_new - n) * d_model, n * d_model * sizeof *to);
        from += n_new * d_model;
        to += n * d_model;
    }
}

/* Copy the rows of hidden to where the caches keep them, or back. */
static void copy_hidden(const job* j, int to_caches) {
    size_t d_model = (size_t)j->w->model->config.d_model;
    float* rows = j->w->hidden;
    for (int b = 0; b < j->n_branches; b++) {
        const sd_cache* cache = j->branches[b].cache;
        size_t n_new = (size_t)j->branches[b].n_new;
        float* kept = cache->hidden + ((size_t)cache->n_pending - n_new) * d_model;
        memcpy(to_caches ? kept : rows, to_caches ? rows : kept, n_new * d_model * sizeof *rows);
        rows += n_new * d_model;
    }
}

static void run_layers(job* j) {
    sd_workspace* w = j->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    if (j->first > 0)
        copy_hidden(j, 0);
    else if (j->n_rows < SHARED_ROWS)
        embed_rows(j, 0, 0, j->n_rows);
    else
        sd_team_run(&j->team, j->n_rows, ROW_GRAIN, embed_rows, j);

    for (int i = j->first; i < j->end; i++) {
        unsigned skipped = j->skipped ? j->skipped[i] : 0;
        if (i == j->keep) copy_hidden(j, 1);
        if (!(skipped & SD_SKIP_ATTN)) run_attention(j, i);
        if (!(skipped & SD_SKIP_MLP)) run_mlp(j, i);
    }
    if (j->keep == j->end) copy_hidden(j, 1);
    if (j->n_logits == 0) return;

    const float* rows = w->hidden;
    if (j->n_logits < j->n_rows) {
        gather(j, w->update);
        rows = w->update;
    }
    prepare(j, j->n_logits, rows, c->d_model, (norm){model->output_norm, model->output_norm_bias});
    multiply(j, (product){&model->head, NULL, j->n_logits, w->prepared, w->logits, w->ld_logits, NULL});
}

static void run(job* j) {
    j->team = sd_team_open(j->w->n_threads);
    run_layers(j);
    sd_team_close(&j->team);
}

/* Check what the branches of a job ask for, and count its rows. */
static sd_status check(job* j) {
    sd_status status = sd_interrupted();
    if (status != SD_OK) return status;
    const sd_workspace* w = j->w;
    int n_vocab = w->model->config.n_vocab;
    for (int b = 0; b < j->n_branches; b++) {
        const sd_branch* branch = &j->branches[b];
        assert(branch->n_new >= 1 && branch->n_logits >= 0 && branch->n_logits <= branch->n_new);
        for (int i = 0; i < branch->n_new; i++) {
            if (branch->tokens[i] < 0 || branch->tokens[i] >= n_vocab)
                return sd_fail(SD_ERR_VALUE, "token %d of node %d: expected 0 to %d", (int)branch->tokens[i],
                               i, n_vocab - 1);
        }
        j->n_rows += branch->n_new;
        j->n_logits += branch->n_logits;
    }
    if (j->n_rows > w->max_rows || j->n_logits > w->max_logits)
        return sd_fail(SD_ERR_CONTEXT, "%d nodes with %d logits, expected at most %d with %d", j->n_rows,
                       j->n_logits, w->max_rows, w->max_logits);
    return SD_OK;
}

/* The position of new node i of a branch. */
static int position_of(const sd_branch* branch, int i) {
    const sd_cache* cache = branch->cache;
    return cache->n_committed + cache->depths[cache->n_pending - branch->n_new + i];
}

/* Make the nodes of a checked job pending. */
static sd_status append(const job* j) {
    sd_workspace* w = j->w;
    for (int b = 0; b < j->n_branches; b++) {
        const sd_branch* branch = &j->branches[b];
        sd_status status = sd_cache_grow(branch->cache, branch->tokens, branch->parents, branch->n_new,
                                         w->model->config.n_ctx);
        if (status != SD_OK) {
            for (int done = 0; done < b; done++)
                j->branches[done].cache->n_pending -= j->branches[done].n_new;
            return status;
        }
    }
    for (int b = 0, row = 0; b < j->n_branches; b++) {
        const sd_branch* branch = &j->branches[b];
        for (int i = 0; i < branch->n_new; i++, row++) {
            w->tokens[row] = branch->tokens[i];
            w->positions[row] = position_of(branch, i);
        }
    }
    return SD_OK;
}

static atomic_long count, work;

long sd_forward_count(void) { return atomic_load(&count); }
long sd_forward_work(void) { return atomic_load(&work); }

static void start(job* j) {
    long n_blocks = 0;
    for (int i = j->first; i < j->end; i++) {
        unsigned skipped = j->skipped ? j->skipped[i] : 0;
        n_blocks += !(skipped & SD_SKIP_ATTN) + !(skipped & SD_SKIP_MLP);
    }
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&work, n_blocks * j->n_rows, memory_order_relaxed);
    for (int b = 0; b < j->n_branches; b++) {
        const sd_cache* cache = j->branches[b].cache;
        assert(cache->n_committed + cache->n_pending <= sd_matrix_panels(j->w->max_slots) * SD_PANEL);
        for (int node = cache->n_pending - j->branches[b].n_new; node < cache->n_pending; node++)
            sd_angles_extend(&j->w->angles, cache->n_committed + cache->depths[node] + 1);
    }
    j->w->last_branches = j->branches;
    j->w->n_last_branches = j->n_branches;
    j->w->last_skipped = j->skipped;
    run(j);
}

/* A job of new nodes, from the embedding on. */
static sd_status run_new(job* j) {
    sd_status status = check(j);
    if (status == SD_OK) status = append(j);
    if (status == SD_OK) start(j);
    return status;
}

/* Are the pending nodes of a cache such that others may follow, of which n_through will be said? */
static sd_status check_through(const sd_cache* c, int n_through) {
    if (c->n_pending == 0 || c->n_through == n_through) return SD_OK;
    return sd_fail(SD_ERR_STATE, "the pending nodes have gone through %d layers, expected %d", c->n_through,
                   n_through);
}

sd_status sd_forward(sd_workspace* w, const sd_branch* branches, int n_branches) {
    int n_layer = w->model->config.n_layer;
    for (int b = 0; b < n_branches; b++) {
        sd_status status = check_through(branches[b].cache, n_layer);
        if (status != SD_OK) return status;
    }
    return run_new(
        &(job){.w = w, .branches = branches, .n_branches = n_branches, .end = n_layer, .keep = -1});
}

static sd_status check_hidden(const sd_cache* cache, int n) {
    if (n <= cache->n_hidden) return SD_OK;
    return sd_fail(SD_ERR_CONTEXT, "%d nodes are to be finished later, expected at most %d", n,
                   cache->n_hidden);
}

sd_status sd_forward_skipping(sd_workspace* w, const unsigned char* skipped, const sd_branch* branches,
                              int n_branches) {
    int n_layer = w->model->config.n_layer, n_shared = 0;
    while (n_shared < n_layer && skipped[n_shared] == 0) n_shared++;
    if (n_shared == n_layer) return sd_fail(SD_ERR_VALUE, "no layer is skipped, expected at least one");
    for (int b = 0; b < n_branches; b++) {
        const sd_cache* cache = branches[b].cache;
        sd_status status = check_through(cache, n_shared);
        if (status == SD_OK && n_shared > 0)
            status = check_hidden(cache, cache->n_pending + branches[b].n_new);
        if (status != SD_OK) return status;
    }
    sd_status status = run_new(&(job){.w = w,
                                      .branches = branches,
                                      .n_branches = n_branches,
                                      .end = n_layer,
                                      .skipped = skipped,
                                      .keep = n_shared > 0 ? n_shared : -1});
    for (int b = 0; b < n_branches && status == SD_OK; b++) branches[b].cache->n_through = n_shared;
    return status;
}

/* How many of a branch's first nodes are pending. */
static int count_begun(const sd_branch* branch) {
    const sd_cache* c = branch->cache;
    int n = 0;
    while (n < branch->n_new && n < c->n_pending && c->tokens[c->n_committed + n] == branch->tokens[n] &&
           c->parents[n] == branch->parents[n])
        n++;
    return n;
}

/* Drop those pending nodes with which no branch goes on, and say after how many layers the others wait;
 * 0 if there are none. */
static int drop_others(const sd_branch* branches, int n_branches) {
    int from = 0;
    for (int b = 0; b < n_branches; b++) {
        sd_cache* cache = branches[b].cache;
        int waits = cache->n_through < cache->n_layer && (from == 0 || cache->n_through == from);
        int n_begun = waits && cache->n_through > 0 ? count_begun(&branches[b]) : 0;
        cache->n_pending = n_begun;
        if (n_begun > 0)
            from = cache->n_through;
        else
            cache->n_through = cache->n_layer;
    }
    return from;
}

sd_status sd_forward_finish(sd_workspace* w, const sd_branch* branches, int n_branches) {
    int n_layer = w->model->config.n_layer, from = drop_others(branches, n_branches), n_parts = 0;
    if (from == 0) return sd_forward(w, branches, n_branches);
    job rest = {
        .w = w, .branches = branches, .n_branches = n_branches, .first = from, .end = n_layer, .keep = -1};
    sd_status status = check(&rest);
    for (int b = 0; b < n_branches && status == SD_OK; b++) {
        const sd_branch* branch = &branches[b];
        int n_begun = branch->cache->n_pending;
        status = check_hidden(branch->cache, branch->n_new);
        if (n_begun == branch->n_new) continue;
        w->parts[n_parts++] = (sd_branch){branch->cache, branch->tokens + n_begun, branch->parents + n_begun,
                                          branch->n_new - n_begun, 0};
    }
    if (status == SD_OK && n_parts > 0)
        status =
            run_new(&(job){.w = w, .branches = w->parts, .n_branches = n_parts, .end = from, .keep = from});
    if (status != SD_OK) return status;
    start(&rest);
    for (int b = 0; b < n_branches; b++) branches[b].cache->n_through = n_layer;
    return SD_OK;
}

/* ------------------------------------------------------------------------------- numbers that overflow */

static int all_finite(const float* x, int n) {
    uint32_t found = 0; /* the sign is set by an exponent of all ones */
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & 0x7fffffffu) + 0x00800000u;
    }
    return !(found >> 31);
}

/* The residual stream [n_new, d_model] of a branch of the last forward after the first n_layers layers, in
 * w->hidden. Keys and values of the branch's nodes are written once more, with the bits that they had. Other
 * branches stay out: their nodes may have been committed since. */
static void run_again(sd_workspace* w, const sd_branch* branch, int n_layers) {
    job j = {.w = w,
             .branches = branch,
             .n_branches = 1,
             .n_rows = branch->n_new,
             .end = n_layers,
             .skipped = w->last_skipped,
             .keep = -1};
    for (int i = 0; i < branch->n_new; i++) {
        w->tokens[i] = branch->tokens[i];
        w->positions[i] = position_of(branch, i);
    }
    run(&j);
}

/* A row of the branch is not finite: name the first layer whose output is not finite, and the row. A value
 * that is not finite stays so in the layers that follow; it may spoil rows that do not attend to it, as 0 ·
 * infinity is not 0. */
static sd_status fail_in_layer(sd_workspace* w, const sd_branch* branch) {
    int d_model = w->model->config.d_model, low = -1, high = w->model->config.n_layer, i = 0;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        run_again(w, branch, middle);
        if (all_finite(w->hidden, branch->n_new * d_model))
            low = middle;
        else
            high = middle;
    }
    run_again(w, branch, high);
    while (i < branch->n_new - 1 && all_finite(w->hidden + (ptrdiff_t)i * d_model, d_model)) i++;
    const char* name = w->name ? w->name : "the model";
    int position = position_of(branch, i);
    if (high == 0)
        return sd_fail(SD_ERR_OVERFLOW, "%s: the embedding of position %d is not finite", name, position);
    return sd_fail(SD_ERR_OVERFLOW,
                   "%s: the output of layer %d (of 0 to %d) at position %d is not finite; that of the layers "
                   "before it is",
                   name, high - 1, w->model->config.n_layer - 1, position);
}

sd_status sd_forward_check(sd_workspace* w, int first, int n) {
    const sd_config* c = &w->model->config;
    const float *hidden = w->hidden, *logits = w->logits;
    for (int b = 0, row = 0; b < w->n_last_branches; b++) {
        const sd_branch* branch = &w->last_branches[b];
        for (int i = 0; i < branch->n_new; i++, row++, hidden += c->d_model) {
            int has_logits = i >= branch->n_new - branch->n_logits;
            const float* of_row = logits;
            if (has_logits) logits += w->ld_logits;
            if (row < first || row - first >= n) continue;
            if (!all_finite(hidden, c->d_model)) return fail_in_layer(w, branch);
            if (has_logits && !all_finite(of_row, c->n_vocab))
                return sd_fail(
                    SD_ERR_OVERFLOW,
                    "%s: the logits are not finite after position %d; the output of all layers is, "
                    "so it is the head that overflows",
                    w->name ? w->name : "the model", position_of(branch, i));
        }
    }
    return SD_OK;
}

sd_status sd_forward_slice(sd_workspace* w, sd_cache* cache, const int32_t* tokens, int n, int* n_done,
                           int logits) {
    int32_t parents[SD_PROMPT_SLICE], path[SD_PROMPT_SLICE];
    int n_here = n - *n_done < SD_PROMPT_SLICE ? n - *n_done : SD_PROMPT_SLICE;
    for (int i = 0; i < n_here; i++) parents[i] = i - 1, path[i] = i;
    const sd_branch branch = {cache, tokens + *n_done, parents, n_here, logits ? n_here : 0};
    sd_status status = sd_forward(w, &branch, 1);
    if (status != SD_OK) return status;
    if (w->name && (status = sd_forward_check(w, 0, n_here)) != SD_OK) {
        sd_cache_keep(cache, NULL, 0);
        return status;
    }
    status = sd_cache_keep(cache, path, n_here);
    if (status == SD_OK) *n_done += n_here;
    return status;
}
