#include "forward.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "interrupt.h"
#include "layer.h"

/* Gather the rows of hidden that need logits, [n_logits, d_model], in the order of branches and nodes. */
static void gather(const sd_pass* pass, float* to) {
    size_t d_model = (size_t)pass->w->model->config.d_model;
    const float* from = pass->w->hidden;
    for (int b = 0; b < pass->n_branches; b++) {
        size_t n_rows = (size_t)sd_pass_rows_of(pass, &pass->branches[b]);
        size_t n = (size_t)pass->branches[b].n_logits, n_extra = (size_t)pass->branches[b].n_extra;
        memcpy(to, from + (n_rows - n_extra - n) * d_model, n * d_model * sizeof *to);
        from += n_rows * d_model;
        to += n * d_model;
    }
}

/* Copy rows of hidden to the caches that keep them, or back. */
static void copy_hidden(const sd_pass* pass, int to_caches) {
    size_t d_model = (size_t)pass->w->model->config.d_model;
    float* rows = pass->w->hidden;
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_cache* cache = pass->branches[b].cache;
        size_t n_new = (size_t)pass->branches[b].n_new;
        float* kept = cache->hidden + ((size_t)cache->n_pending - n_new) * d_model;
        memcpy(to_caches ? kept : rows, to_caches ? rows : kept, n_new * d_model * sizeof *rows);
        rows += n_new * d_model;
    }
}

/* Store the rows of hidden in the caches that capture them after n_layers layers; n_layer + 1 means after the
 * output norm. */
static void keep_captures(const sd_pass* pass, int n_layers) {
    const sd_model* model = pass->w->model;
    int d_model = model->config.d_model;
    const float* row = pass->w->hidden;
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_cache* cache = pass->branches[b].cache;
        int n_new = pass->branches[b].n_new, first = cache->n_committed + cache->n_pending - n_new;
        int captured = sd_captures_find(&cache->captures, n_layers) >= 0;
        for (int i = 0; i < n_new; i++, row += d_model) {
            if (!captured) continue;
            float* kept = sd_cache_captured(cache, first + i, n_layers);
            if (n_layers > model->config.n_layer && model->output_norm)
                sd_model_norm(model, d_model, row, model->output_norm, model->output_norm_bias, kept);
            else
                memcpy(kept, row, (size_t)d_model * sizeof *kept);
        }
    }
}

/* What is skipped in a layer. The attention of layers without keys is skipped with that of the layer that has
 * them. */
static unsigned skipped_in(const sd_pass* pass, int i) {
    int kv_layer = pass->w->model->config.layers[i].kv_layer;
    return pass->skipped ? pass->skipped[i] | (pass->skipped[kv_layer] & SD_SKIP_ATTN) : 0;
}

static void run_layers(sd_pass* pass) {
    sd_workspace* w = pass->w;
    const sd_model* model = w->model;
    const sd_config* c = &model->config;
    if (c->features.use != SD_FEATURE_NONE && pass->first == 0)
        sd_pass_embed_features(pass);
    else if (pass->first == 0 || c->d_per_layer > 0)
        sd_pass_embed(pass);
    if (c->d_per_layer > 0) sd_pass_embed_per_layer(pass);
    if (pass->first > 0) copy_hidden(pass, 0);

    int whole = 1; /* no layer has been skipped */
    for (int i = pass->first; i < pass->end && pass->n_rows > 0 && pass->status == SD_OK; i++) {
        unsigned skipped = skipped_in(pass, i);
        if (i == pass->keep) copy_hidden(pass, 1);
        if (whole) keep_captures(pass, i);
        sd_layer_run(pass, i, skipped);
        whole &= skipped == 0;
    }
    if (pass->status != SD_OK) return;
    if (pass->keep == pass->end) copy_hidden(pass, 1);
    if (whole) keep_captures(pass, pass->end);
    if (whole && pass->end == c->n_layer) keep_captures(pass, c->n_layer + 1);
    if (model->feature_output.n_out > 0) sd_pass_project_features(pass);
    if (pass->n_logits == 0) return;

    const float* rows = w->hidden;
    if (pass->n_logits < pass->n_rows) {
        gather(pass, w->update);
        rows = w->update;
    }
    sd_head_run(pass, rows, pass->n_logits, 0);
}

static sd_status run(sd_pass* pass) {
    pass->team = sd_team_open(pass->w->n_threads);
    run_layers(pass);
    sd_team_close(&pass->team);
    return pass->status;
}

static sd_status check(sd_pass* pass) {
    SD_TRY(sd_interrupted());
    const sd_workspace* w = pass->w;
    int n_vocab = w->n_vocab;
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_branch* branch = &pass->branches[b];
        if (w->model->encoder && branch->cache->encoded == NULL)
            return sd_fail(SD_ERR_STATE, "the model has an encoder, expected a source before its text");
        SD_FAIL_IF(w->model->config.features.use != SD_FEATURE_NONE && branch->features == NULL, SD_ERR_STATE,
                   "the model reads features next to tokens, expected those of a target");
        if (!sd_workspace_fits(w, branch->cache->model))
            return sd_fail(SD_ERR_STATE,
                           "a text belongs to an adapted model, expected one that was admitted");
        int n_tokens = branch->n_new - branch->n_extra;
        assert(branch->n_new >= 1 && branch->n_stored >= 0 && branch->n_logits >= 0 &&
               branch->n_stored + branch->n_logits <= n_tokens);
        for (int i = 0; i < n_tokens; i++) {
            SD_FAIL_IF(branch->tokens[i] < 0 || branch->tokens[i] >= n_vocab, SD_ERR_VALUE,
                       "token %d of node %d: expected 0 to %d", (int)branch->tokens[i], i, n_vocab - 1);
        }
        pass->n_rows += branch->n_new;
        pass->n_stored += branch->n_stored;
        pass->n_logits += branch->n_logits;
    }
    if (pass->n_rows > w->max_rows || pass->n_logits > w->max_logits)
        return sd_fail(SD_ERR_CONTEXT, "%d nodes with %d logits, expected at most %d with %d", pass->n_rows,
                       pass->n_logits, w->max_rows, w->max_logits);
    return SD_OK;
}

static int position_of(const sd_branch* branch, int i) {
    const sd_cache* cache = branch->cache;
    return cache->n_committed + cache->depths[cache->n_pending - branch->n_new + i];
}

/* Set up the rows of a branch, from `row` of the workspace on. */
static void set_up_rows(sd_workspace* w, const sd_branch* branch, int row) {
    size_t d_model = (size_t)w->model->config.d_model;
    for (int i = 0; i < branch->n_new; i++, row++) {
        int32_t token = branch->tokens[i];
        w->tokens[row] = token;
        w->inputs[row] = token < 0 ? branch->extra + (size_t)(-1 - token) * d_model : NULL;
        w->positions[row] = position_of(branch, i);
    }
}

/* Remove the new nodes of the first n branches from the pending ones. */
static void take_back(const sd_pass* pass, int n) {
    for (int b = 0; b < n; b++) sd_cache_take_back(pass->branches[b].cache, pass->branches[b].n_new);
}

static sd_status append(const sd_pass* pass) {
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_branch* branch = &pass->branches[b];
        sd_status status = sd_cache_grow(branch->cache, branch->tokens, branch->parents, branch->n_new,
                                         branch->n_commit, pass->w->model->config.n_ctx);
        if (status != SD_OK) {
            take_back(pass, b);
            return status;
        }
    }
    for (int b = 0; b < pass->n_branches; b++) pass->branches[b].cache->n_waiting = 0;
    return SD_OK;
}

static atomic_long count, work;

long sd_forward_count(void) { return atomic_load(&count); }
long sd_forward_work(void) { return atomic_load(&work); }

static sd_status start(sd_pass* pass) {
    const sd_config* c = &pass->w->model->config;
    long n_blocks = 0, n_unused = 0; /* halves; those that stored rows skip */
    for (int i = pass->first; i < pass->end; i++) {
        unsigned skipped = skipped_in(pass, i);
        int first = sd_has_first_half(&c->layers[i]), second = sd_has_second_half(&c->layers[i]);
        n_blocks += (first && !(skipped & SD_SKIP_ATTN)) + (second && !(skipped & SD_SKIP_MLP));
        if (i >= sd_last_stored(c)) n_unused += first + second;
    }
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&work, n_blocks * pass->n_rows - n_unused * pass->n_stored,
                              memory_order_relaxed);
    for (int b = 0; b < pass->n_branches; b++) {
        const sd_cache* cache = pass->branches[b].cache;
        assert(cache->n_committed + cache->n_pending <= sd_whole_panels(pass->w->max_slots));
        for (int node = cache->n_pending - pass->branches[b].n_new; node < cache->n_pending; node++)
            sd_angles_extend(&pass->w->angles, cache->n_committed + cache->depths[node] + 1);
    }
    for (int b = 0, row = 0; b < pass->n_branches; b++) {
        const sd_branch* branch = &pass->branches[b];
        sd_cache_plan_walk(branch->cache, branch->n_new, branch->n_commit);
        set_up_rows(pass->w, branch, row);
        row += branch->n_new;
    }
    pass->w->last_branches = pass->branches;
    pass->w->n_last_branches = pass->n_branches;
    pass->w->last_skipped = pass->skipped;
    pass->w->last_engine = pass->engine;
    pass->w->n_last_logits = pass->n_logits;
    sd_workspace_begin(pass->w, pass->branches, pass->n_branches);
    return run(pass);
}

/* Run a pass of new nodes from the embedding on. */
static sd_status run_new(sd_pass* pass) {
    SD_TRY(check(pass));
    SD_TRY(append(pass));
    sd_status status = start(pass);
    if (status != SD_OK) take_back(pass, pass->n_branches);
    return status;
}

/* Can nodes with this n_through follow the pending nodes of a cache? */
static sd_status check_through(const sd_cache* c, int n_through) {
    if (c->n_pending == 0 || c->n_through == n_through) return SD_OK;
    return sd_fail(SD_ERR_STATE, "the pending nodes have passed %d layers, expected %d", c->n_through,
                   n_through);
}

static sd_status forward(sd_workspace* w, const sd_branch* branches, int n_branches, sd_engine engine) {
    int n_layer = w->model->config.n_layer;
    for (int b = 0; b < n_branches; b++) SD_TRY(check_through(branches[b].cache, n_layer));
    return run_new(&SD_MAKE(sd_pass, .w = w, .branches = branches, .n_branches = n_branches, .end = n_layer,
                            .engine = engine, .keep = -1));
}

sd_status sd_forward(sd_workspace* w, const sd_branch* branches, int n_branches) {
    return forward(w, branches, n_branches, SD_ENGINE_ROWS);
}

int sd_forward_may_end(const sd_workspace* w, const sd_cache* cache) {
    const sd_config* c = &w->model->config;
    return c->parallel == SD_PARALLEL_NO && c->layers[sd_last_stored(c)].attends &&
           !sd_prompts_in_slices(w->model) && cache->captures.n == 0 && w->input_sums == NULL &&
           w->adaptation.of_row == NULL;
}

sd_status sd_forward_prompt(sd_workspace* w, const sd_branch* branches, int n_branches) {
    assert(!sd_prompts_in_slices(w->model) || n_branches == 1);
    return forward(w, branches, n_branches, sd_prompt_engine(w->model));
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
        SD_TRY(check_through(cache, n_shared));
        if (n_shared > 0) SD_TRY(check_hidden(cache, cache->n_pending + branches[b].n_new));
    }
    sd_status status =
        run_new(&SD_MAKE(sd_pass, .w = w, .branches = branches, .n_branches = n_branches, .end = n_layer,
                         .skipped = skipped, .keep = n_shared > 0 ? n_shared : -1));
    for (int b = 0; b < n_branches && status == SD_OK; b++) {
        sd_cache* cache = branches[b].cache;
        cache->n_through = n_shared;
        cache->n_waiting = n_shared > 0 ? cache->n_pending : 0;
    }
    return status;
}

/* Number of a branch's leading nodes that wait to be finished. */
static int count_begun(const sd_branch* branch) {
    const sd_cache* c = branch->cache;
    int n = 0;
    while (n < branch->n_new && n < c->n_waiting && c->tokens[c->n_committed + n] == branch->tokens[n] &&
           c->parents[n] == branch->parents[n])
        n++;
    return n;
}

/* Drop pending nodes that no branch continues, and return after how many layers the others wait; 0 if there
 * are none. */
static int drop_others(const sd_branch* branches, int n_branches) {
    int from = 0;
    for (int b = 0; b < n_branches; b++) {
        sd_cache* cache = branches[b].cache;
        int n_begun = from == 0 || cache->n_through == from ? count_begun(&branches[b]) : 0;
        cache->n_pending = cache->n_waiting = n_begun;
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
    sd_pass rest = {
        .w = w, .branches = branches, .n_branches = n_branches, .first = from, .end = n_layer, .keep = -1};
    SD_TRY(check(&rest));
    for (int b = 0; b < n_branches; b++) {
        const sd_branch* branch = &branches[b];
        int n_begun = branch->cache->n_pending;
        SD_TRY(check_hidden(branch->cache, branch->n_new));
        if (n_begun == branch->n_new) continue;
        w->parts[n_parts++] = SD_MAKE(sd_branch, .cache = branch->cache, .tokens = branch->tokens + n_begun,
                                      .parents = branch->parents + n_begun, .n_new = branch->n_new - n_begun,
                                      .n_extra = branch->n_extra, .extra = branch->extra);
    }
    if (n_parts > 0)
        SD_TRY(run_new(&SD_MAKE(sd_pass, .w = w, .branches = w->parts, .n_branches = n_parts, .end = from,
                                .keep = from)));
    SD_TRY(start(&rest));
    for (int b = 0; b < n_branches; b++)
        branches[b].cache->n_through = n_layer, branches[b].cache->n_waiting = 0;
    return SD_OK;
}

sd_status sd_forward_more_logits(sd_workspace* w, const int32_t* rows, int n, const float** logits) {
    size_t d_model = (size_t)w->model->config.d_model;
    int first = w->n_last_logits;
    SD_FAIL_IF(first + n > w->max_logits, SD_ERR_CONTEXT, "%d more rows of logits, expected at most %d", n,
               w->max_logits - first);
    sd_workspace_choose_head(w, rows, n);
    for (int i = 0; i < n; i++)
        memcpy(w->update + (size_t)i * d_model, w->hidden + (size_t)rows[i] * d_model,
               d_model * sizeof *w->update);
    sd_pass pass = {.w = w, .n_rows = n, .engine = w->last_engine, .keep = -1};
    pass.team = sd_team_open(w->n_threads);
    sd_head_run(&pass, w->update, n, first);
    sd_team_close(&pass.team);
    *logits = w->logits + first * w->ld_logits;
    return pass.status;
}

/* ------------------------------------------------------------------------------- non-finite numbers */

/* Recompute the residual stream [n_new, d_model] of a branch of the last forward pass after the first
 * n_layers layers, in w->hidden. Keys and values of its nodes are rewritten with the same bits. Other
 * branches stay out: their nodes may be committed by now. */
static sd_status run_layers_again(sd_workspace* w, const sd_branch* branch, int n_layers) {
    sd_pass pass = SD_MAKE(sd_pass, .w = w, .branches = branch, .n_branches = 1, .n_rows = branch->n_new,
                           .end = n_layers, .skipped = w->last_skipped, .engine = w->last_engine, .keep = -1);
    set_up_rows(w, branch, 0);
    sd_cache_plan_walk(branch->cache, branch->n_new, branch->n_commit);
    sd_workspace_begin(w, branch, 1);
    return run(&pass);
}

/* Read the text before a prompt slice again, because its states now include the slice. Later layers keep
 * their contents, so the text can be cut back no further than before. */
static sd_status read_again(sd_workspace* w, const sd_branch* slice, int n_layers) {
    sd_cache* c = slice->cache;
    int32_t parents[SD_MOST_SLICE];
    int n = c->n_committed, low = c->n_low;
    sd_status status = SD_OK;
    for (int i = 0; i < SD_MOST_SLICE; i++) parents[i] = i - 1;
    sd_cache_cut(c, 0);
    while (c->n_committed < n && status == SD_OK) {
        int n_here = sd_slice_length(c, n - c->n_committed);
        if (n_here > w->max_rows) n_here = w->max_rows;
        const sd_branch branch = {.cache = c,
                                  .tokens = c->tokens + c->n_committed,
                                  .parents = parents,
                                  .n_new = n_here,
                                  .n_commit = n_here};
        status = sd_cache_grow(c, branch.tokens, parents, n_here, n_here, w->model->config.n_ctx);
        if (status == SD_OK) status = run_layers_again(w, &branch, n_layers);
        c->n_committed += n_here, c->n_pending = 0;
    }
    if (status == SD_OK)
        status = sd_cache_grow(c, slice->tokens, slice->parents, slice->n_new, slice->n_commit,
                               w->model->config.n_ctx);
    if (c->n_low < low) c->n_low = low;
    if (status != SD_OK) sd_cache_cut(c, 0);
    return status;
}

/* Run the first n_layers for the rows of a branch again. */
static sd_status run_again(sd_workspace* w, const sd_branch* branch, int n_layers) {
    if (branch->n_commit > 0 && branch->cache->n_ring > 0) SD_TRY(read_again(w, branch, n_layers));
    return run_layers_again(w, branch, n_layers);
}

/* Report the first layer with a non-finite output, and the row; SD_OK: there is none. A value that is not
 * finite stays so in later layers; it may spoil rows that do not attend to it, as 0 · infinity is not 0. */
static sd_status fail_in_layer(sd_workspace* w, const sd_branch* branch) {
    int d_model = w->model->config.d_model, low = -1, high = w->model->config.n_layer, i = 0;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        SD_TRY(run_again(w, branch, middle));
        if (sd_all_finite(w->hidden, branch->n_new * d_model))
            low = middle;
        else
            high = middle;
    }
    SD_TRY(run_again(w, branch, high));
    if (sd_all_finite(w->hidden, branch->n_new * d_model)) return SD_OK;
    while (i < branch->n_new - 1 && sd_all_finite(w->hidden + (ptrdiff_t)i * d_model, d_model)) i++;
    const char* name = w->name ? w->name : "the model";
    int position = position_of(branch, i);
    SD_FAIL_IF(high == 0, SD_ERR_OVERFLOW, "%s: the embedding of position %d is not finite", name, position);
    return sd_fail(
        SD_ERR_OVERFLOW,
        "%s: the output of layer %d (of 0 to %d) at position %d is not finite; earlier layers are finite",
        name, high - 1, w->model->config.n_layer - 1, position);
}

static sd_status fail_in_head(const sd_workspace* w, int position) {
    return sd_fail(
        SD_ERR_OVERFLOW,
        "%s: the logits are not finite after position %d; the output of all layers is, so the head overflows",
        w->name ? w->name : "the model", position);
}

sd_status sd_forward_check_more(sd_workspace* w, const int32_t* rows, int n) {
    const float* logits = w->logits + w->n_last_logits * w->ld_logits;
    for (int i = 0; i < n; i++, logits += w->ld_logits)
        if (!sd_all_finite(logits, sd_logit_columns(&w->model->config)))
            return fail_in_head(w, w->positions[rows[i]]);
    return SD_OK;
}

/* The first row of a branch in the residual stream, and its first row of logits. */
static const float* rows_of(const sd_workspace* w, const sd_branch* branch, const float** logits) {
    const float* hidden = w->hidden;
    *logits = w->logits;
    for (const sd_branch* before = w->last_branches; before < branch; before++) {
        hidden += (ptrdiff_t)(before->n_new - before->n_stored) * w->model->config.d_model;
        *logits += before->n_logits * w->ld_logits;
    }
    return hidden;
}

/* The first of rows [first, end) of a branch that is not finite, or `end`. *in_layers: its residual stream is
 * not, else its logits. */
static int first_bad_row(const sd_workspace* w, const sd_branch* branch, int first, int end, int* in_layers) {
    const sd_config* c = &w->model->config;
    const float *logits, *hidden = rows_of(w, branch, &logits);
    int before = branch->n_new - branch->n_extra - branch->n_logits; /* rows before those with logits */
    for (int i = first; i < end; i++) {
        *in_layers = !sd_all_finite(hidden + (ptrdiff_t)i * c->d_model, c->d_model);
        int has_logits = i >= before && i < before + branch->n_logits;
        if (*in_layers ||
            (has_logits && !sd_all_finite(logits + (i - before) * w->ld_logits, sd_logit_columns(c))))
            return i;
    }
    return end;
}

/* Check rows [first, end) of a branch. */
static sd_status check_branch(sd_workspace* w, const sd_branch* branch, int first, int end) {
    int in_layers, bad = first_bad_row(w, branch, first, end, &in_layers);
    if (bad == end) return SD_OK;
    return in_layers ? fail_in_layer(w, branch) : fail_in_head(w, position_of(branch, bad));
}

sd_status sd_forward_check(sd_workspace* w, int first, int n) {
    sd_status status = SD_OK;
    int end = first + n;
    for (int b = 0, row = 0; b < w->n_last_branches && row < end && status == SD_OK; b++) {
        const sd_branch* branch = &w->last_branches[b];
        int low = first > row ? first - row : 0, high = end - row < branch->n_new ? end - row : branch->n_new;
        if (low < high) status = check_branch(w, branch, low, high);
        row += branch->n_new;
    }
    return status;
}

int sd_forward_row_is_finite(const sd_workspace* w, int b, int row) {
    int in_layers;
    return first_bad_row(w, &w->last_branches[b], row, row + 1, &in_layers) > row;
}

/* First row of logits of a branch that is not finite, or their number. */
static int first_bad_logits(const sd_workspace* w, const sd_branch* branch, const float* logits) {
    int i = 0;
    while (i < branch->n_logits &&
           sd_all_finite(logits + i * w->ld_logits, sd_logit_columns(&w->model->config)))
        i++;
    return i;
}

int sd_forward_is_finite(const sd_workspace* w, int b) {
    const sd_branch* branch = &w->last_branches[b];
    const float *logits, *hidden = rows_of(w, branch, &logits);
    return (branch->n_stored == 0 || w->stored_finite[b]) &&
           sd_all_finite(hidden, (branch->n_new - branch->n_stored) * w->model->config.d_model) &&
           first_bad_logits(w, branch, logits) == branch->n_logits;
}

sd_status sd_forward_fail(sd_workspace* w, int b) {
    const sd_branch* branch = &w->last_branches[b];
    const float* logits;
    rows_of(w, branch, &logits);
    int bad = first_bad_logits(w, branch, logits);
    sd_status status = fail_in_layer(w, branch);
    return status == SD_OK ? fail_in_head(w, position_of(branch, branch->n_new - branch->n_logits + bad))
                           : status;
}

void sd_forward_settle_failures(sd_workspace* w) {
    float* logits = w->logits;
    for (int b = 0; b < w->n_last_branches; b++) {
        const sd_branch* branch = &w->last_branches[b];
        /* A failing branch is recomputed in the first rows, which belong to it or to earlier branches. */
        sd_status status = check_branch(w, branch, 0, branch->n_new);
        if (status != SD_OK) {
            sd_failure_note(branch->failure, status);
            memset(logits, 0, (size_t)(branch->n_logits * w->ld_logits) * sizeof *logits);
        }
        logits += branch->n_logits * w->ld_logits;
    }
}

sd_status sd_forward_slice(sd_workspace* w, sd_cache* cache, const int32_t* tokens, int n, int* n_done,
                           sd_prompt_logits logits) {
    int32_t parents[SD_MOST_SLICE], path[SD_MOST_SLICE];
    int n_before = cache->n_committed;
    int n_here = sd_slice_length(cache, n - *n_done), blas = sd_prompts_in_slices(w->model);
    if (logits == SD_LOGITS_ALL && n_here > w->max_logits) n_here = w->max_logits;
    int all = logits == SD_LOGITS_ALL, last = logits == SD_LOGITS_LAST && n_here == n - *n_done;
    for (int i = 0; i < n_here; i++) parents[i] = i - 1, path[i] = i;
    sd_branch branch = {.cache = cache,
                        .tokens = tokens + *n_done,
                        .parents = parents,
                        .n_new = n_here,
                        .n_commit = n_here,
                        /* with OpenBLAS the bits of a row may depend on the rows next to it */
                        .n_logits = all || (last && blas) ? n_here : last};
    if (sd_forward_may_end(w, cache)) branch.n_stored = n_here - branch.n_logits;
    sd_status status = sd_forward_prompt(w, &branch, 1);
    if (status == SD_OK && w->name && !sd_forward_is_finite(w, 0)) {
        status = sd_forward_fail(w, 0);
        sd_cache_keep(cache, NULL, 0);
    }
    if (status == SD_OK) status = sd_cache_keep(cache, path, n_here);
    if (status != SD_OK) {
        int n_lost = n_before - cache->n_committed;
        *n_done = n_lost < *n_done ? *n_done - n_lost : 0;
        return status;
    }
    sd_cache_count_prompt(cache, n_here);
    *n_done += n_here;
    return SD_OK;
}
