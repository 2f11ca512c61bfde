/* EAGLE-1, EAGLE-3, MTP blocks and assistants: a small model that reads tokens and the target's hidden
 * states. */
#include "predictors.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "forward.h"
#include "tensor_list.h"

/* Most rows of a text read together with the root's; more are read in slices. */
#define MOST_CATCH_UP 64

typedef struct sequence_state {
    const int32_t* prompt;  /* [n_prompt] being read into the cache; borrowed */
    int n_prompt;           /* 0: nothing to read */
    const sd_cache* target; /* target's cache, which holds the prompt without its last token; borrowed */
    int32_t first;          /* first token of the text whose rows are committed */
    int n_true;             /* number of first pending nodes that have read the target's hidden states */
    sd_failure* failure;    /* of the sequence alone; borrowed */
} sequence_state;

typedef struct eagle_predictor {
    sd_predictor base; /* must stay first */
    const sd_eagle* eagle;
    int n_sequences;
    int n_nodes;      /* of a proposal, without the root */
    int catch_up;     /* rows read together with the root's */
    int row_capacity; /* rows of a sequence in one forward pass */
    int n_vocab;      /* of the target */
    sd_workspace workspace;
    sd_cache* caches;       /* [n_sequences] row k in slot k */
    sequence_state* states; /* [n_sequences] */
    sd_branch* branches;    /* [n_sequences] */
    int32_t* pending;       /* [n_sequences, n_nodes + 1] pending row of each node of the proposal */
    int32_t* parents;       /* [n_sequences, row_capacity] of the rows of one forward pass */
    int32_t* tokens;        /* [n_sequences, row_capacity] */
    float* features;        /* [n_sequences, row_capacity, the wider of the target's and its own] */
    float* own;             /* [n_sequences, n_slots, sd_own_width] outputs of pending rows for children */
    int n_slots;            /* most pending rows of a sequence */
    float* slice;           /* [slice of a prompt, width] features of a slice */
    float* logits;          /* [n_sequences · n_rows, ld] if tokens are translated, else empty */
    int n_logits;
    ptrdiff_t ld;
} eagle_predictor;

static int target_width(const sd_eagle* e) { return e->model->config.features.width / e->n_layers; }

/* Numbers of a feature of its own. */
static int own_width(const eagle_predictor* r) { return sd_own_width(&r->eagle->model->config); }

/* Does it read the text in the target's cache, and so has none of its own? */
static int borrows(const eagle_predictor* r) { return r->eagle->model->config.borrows_kv; }

static int feature_capacity(const sd_config* c) {
    return c->features.width > sd_own_width(c) ? c->features.width : sd_own_width(c);
}

static void lay_out(eagle_predictor* r) {
    sd_arena* arena = &r->base.arena;
    const sd_config* c = &r->eagle->model->config;
    size_t n = (size_t)r->n_sequences, rows = n * (size_t)r->row_capacity;
    r->caches = sd_arena_take(arena, n, sizeof *r->caches);
    r->states = sd_arena_take(arena, n, sizeof *r->states);
    r->branches = sd_arena_take(arena, n, sizeof *r->branches);
    r->pending = sd_arena_take(arena, n, (size_t)(r->n_nodes + 1) * sizeof *r->pending);
    r->parents = sd_arena_take(arena, rows, sizeof *r->parents);
    r->tokens = sd_arena_take(arena, rows, sizeof *r->tokens);
    r->features = sd_arena_take(arena, rows, (size_t)feature_capacity(c) * sizeof *r->features);
    r->own = sd_arena_take(arena, n * (size_t)r->n_slots, (size_t)own_width(r) * sizeof *r->own);
    r->slice = sd_arena_take(arena, (size_t)sd_prompt_slice(r->eagle->model),
                             (size_t)c->features.width * sizeof *r->slice);
    r->logits =
        sd_arena_take(arena, r->eagle->tokens ? (size_t)r->n_logits : 0, (size_t)r->ld * sizeof *r->logits);
}

/* Does the last row of a text fit the model's context? */
static int fits(const eagle_predictor* r, int n_text) {
    return n_text >= 2 && n_text - 2 < r->eagle->model->config.n_ctx;
}

static void begin(sd_predictor* base, int sequence, const sd_prompt* prompt) {
    eagle_predictor* r = (eagle_predictor*)base;
    sd_cache_cut(&r->caches[sequence], 0);
    r->states[sequence] = (sequence_state){.first = prompt->tokens[0], .failure = prompt->failure};
    if (prompt->cache == NULL || !fits(r, prompt->n) || borrows(r)) return;
    r->states[sequence].prompt = prompt->tokens;
    r->states[sequence].n_prompt = prompt->n;
    r->states[sequence].target = prompt->cache;
}

/* Copy the feature of row k, the hidden states of token k, to out [width]. */
static void take_feature(const eagle_predictor* r, const sd_cache* target, int k, float* out) {
    size_t n = (size_t)target_width(r->eagle);
    for (int i = 0; i < r->eagle->n_layers; i++)
        memcpy(out + (size_t)i * n, sd_cache_captured(target, k, r->eagle->layers[i]), n * sizeof *out);
}

/* Does the cache have the hidden states of its first n tokens? */
static sd_status check_target(const eagle_predictor* r, const sd_cache* target, int n) {
    int there =
        target != NULL && target->n_committed >= n && target->model->config.d_model == target_width(r->eagle);
    for (int i = 0; there && i < r->eagle->n_layers; i++)
        there = sd_captures_find(&target->captures, r->eagle->layers[i]) >= 0;
    if (there) return SD_OK;
    return sd_fail(SD_ERR_STATE,
                   "the draft reads hidden states of the target, expected the text in the target's cache");
}

/* Read and commit rows of `text` up to row `end`, at most one slice. */
static sd_status read_slice(eagle_predictor* r, int sequence, const int32_t* text, const sd_cache* target,
                            int end) {
    int32_t parents[SD_MOST_SLICE];
    sd_cache* cache = &r->caches[sequence];
    int first = cache->n_committed, n = sd_slice_length(cache, end - first);
    ptrdiff_t width = r->eagle->model->config.features.width;
    for (int i = 0; i < n; i++) {
        parents[i] = i - 1;
        take_feature(r, target, first + i, r->slice + i * width);
    }
    const sd_branch branch = {
        .cache = cache, .tokens = text + first + 1, .parents = parents, .n_new = n, .features = r->slice};
    SD_TRY(sd_forward(&r->workspace, &branch, 1));
    sd_status status = sd_forward_check(&r->workspace, 0, n);
    if (status == SD_OK) return sd_cache_settle(cache, n);
    sd_cache_keep(cache, NULL, 0);
    return status;
}

/* Number of rows of a prompt read before its first round: those before the root's. */
static int prompt_rows(const sequence_state* g) { return g->n_prompt > 0 ? g->n_prompt - 2 : 0; }

static sd_status read_prompts(sd_predictor* base, int* done) {
    eagle_predictor* r = (eagle_predictor*)base;
    *done = 0;
    for (int i = 0; i < r->n_sequences; i++) {
        sequence_state* g = &r->states[i];
        if (r->caches[i].n_committed < prompt_rows(g)) {
            sd_status status = check_target(r, g->target, g->n_prompt - 1);
            if (status == SD_OK) status = read_slice(r, i, g->prompt, g->target, prompt_rows(g));
            if (status != SD_ERR_OVERFLOW) return status;
            sd_failure_note(g->failure, status);
        }
        g->n_prompt = 0;
    }
    *done = 1;
    return SD_OK;
}

/* Bring the sequence's cache up to the text, except for the last rows, which are read with the root's. */
static sd_status follow(sd_predictor* base, sd_proposal* p) {
    eagle_predictor* r = (eagle_predictor*)base;
    sequence_state* g = &r->states[p->sequence];
    sd_cache* cache = &r->caches[p->sequence];
    int end = p->n_text - 2; /* the root's row */
    /* the last draft token in a row is not read */
    int limit = fits(r, p->n_text) ? r->eagle->model->config.n_ctx - end : 0;
    if (p->depth > limit) p->depth = limit;
    if (p->budget == 0 || p->depth == 0) return SD_OK;
    SD_TRY(check_target(r, p->cache, p->n_text - 1));
    if (borrows(r)) {
        sd_cache_borrow(cache, p->cache, p->n_text - 1);
        return SD_OK;
    }
    SD_TRY(sd_cache_settle(cache, g->n_true));
    sd_cache_keep(cache, NULL, 0);
    g->n_true = 0;
    if (g->first != p->text[0]) sd_cache_cut(cache, 0);
    g->first = p->text[0];
    sd_cache_follow(cache, p->text + 1, end);
    sd_status status = SD_OK;
    while (status == SD_OK && end - cache->n_committed > r->catch_up)
        status = read_slice(r, p->sequence, p->text, p->cache, end - r->catch_up);
    if (status != SD_ERR_OVERFLOW) return status;
    sd_failure_note(p->failure, status);
    return SD_OK;
}

static int32_t* pending_of(const eagle_predictor* r, int sequence) {
    return r->pending + (ptrdiff_t)sequence * (r->n_nodes + 1);
}

/* Output of a pending row for its children: [own_width]. */
static float* own_of(const eagle_predictor* r, int sequence, int row) {
    return r->own + ((ptrdiff_t)sequence * r->n_slots + row) * own_width(r);
}

/* Fill in the unread rows of a text, the root's last; the root's alone if the text is in the target's
 * cache. */
static int fill_text(eagle_predictor* r, const sd_proposal* p, sd_branch* branch, int32_t* tokens,
                     int32_t* parents, float* features) {
    const sd_cache* cache = &r->caches[p->sequence];
    int n = 0, first = borrows(r) ? p->n_text - 2 : cache->n_committed;
    for (int row = first; row < p->n_text - 1; row++, n++) {
        tokens[n] = p->text[row + 1];
        parents[n] = n - 1;
        take_feature(r, p->cache, row, features + (ptrdiff_t)n * r->eagle->model->config.features.width);
    }
    pending_of(r, p->sequence)[0] = n - 1;
    r->states[p->sequence].n_true = n;
    branch->own_features = 0;
    return n;
}

static int fill_draft_tokens(eagle_predictor* r, const sd_draft_nodes* of, sd_branch* branch, int32_t* tokens,
                             int32_t* parents, float* features) {
    const sd_proposal* p = of->proposal;
    int width = own_width(r);
    int32_t* pending = pending_of(r, p->sequence);
    for (int i = 0; i < of->n_nodes; i++) {
        int32_t node = of->nodes[i], parent = pending[p->tree.parents[node]];
        tokens[i] = p->tree.tokens[node];
        parents[i] = borrows(r) ? -1 : parent;
        memcpy(features + (ptrdiff_t)i * width, own_of(r, p->sequence, parent),
               (size_t)width * sizeof *features);
        pending[node] = r->caches[p->sequence].n_pending + i;
    }
    branch->own_features = 1;
    return of->n_nodes;
}

/* Keep the outputs of the last forward pass for the rows' children. */
static void keep_own(eagle_predictor* r, const sd_draft_nodes* batch, int n) {
    const sd_model* model = r->eagle->model;
    int projected = model->config.features.output, width = own_width(r);
    const float* row = projected ? r->workspace.own : r->workspace.hidden;
    ptrdiff_t stride = projected ? r->workspace.ld_own : width;
    for (int b = 0; b < n; b++) {
        int n_new = r->branches[b].n_new, first = r->branches[b].cache->n_pending - n_new;
        for (int i = 0; i < n_new; i++, row += stride) {
            float* to = own_of(r, batch[b].proposal->sequence, first + i);
            if (r->eagle->normed_feedback && model->output_norm && !projected)
                sd_model_norm(model, width, row, model->output_norm, model->output_norm_bias, to);
            else
                memcpy(to, row, (size_t)width * sizeof *to);
        }
    }
}

/* Move the logits of clusters [n_chosen_clusters] of the head to the target's ids; others are -infinity. */
static void translate_clusters(const eagle_predictor* r, const int32_t* clusters, const float* from,
                               float* to) {
    const sd_config* c = &r->eagle->model->config;
    int size = sd_cluster_rows(c);
    for (ptrdiff_t i = 0; i < r->n_vocab; i++) to[i] = -INFINITY;
    for (int i = 0; i < c->n_chosen_clusters; i++, from += size)
        sd_draft_tokens_scatter(r->eagle->tokens + (ptrdiff_t)clusters[i] * size, size, from, to);
}

/* Move the logits of the head's tokens to the target's ids; the others stay -infinity. */
static void translate(eagle_predictor* r, int n_rows) {
    const sd_config* c = &r->eagle->model->config;
    for (int row = 0; r->eagle->tokens != NULL && row < n_rows; row++) {
        const float* from = r->workspace.logits + row * r->workspace.ld_logits;
        float* to = r->logits + row * r->ld;
        if (c->n_clusters > 0)
            translate_clusters(r, r->workspace.clusters + row * c->n_chosen_clusters, from, to);
        else
            sd_draft_tokens_scatter(r->eagle->tokens, sd_head_rows(c), from, to);
    }
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    eagle_predictor* r = (eagle_predictor*)base;
    ptrdiff_t width = feature_capacity(&r->eagle->model->config);
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        ptrdiff_t at = (ptrdiff_t)i * r->row_capacity;
        sd_branch* branch = &r->branches[i];
        float* features = r->features + at * width;
        *branch = SD_MAKE(sd_branch, .cache = &r->caches[batch[i].proposal->sequence],
                          .tokens = r->tokens + at, .parents = r->parents + at, .n_logits = batch[i].n_nodes,
                          .features = features, .failure = batch[i].proposal->failure);
        assert(batch[i].nodes[0] != 0 || batch[i].n_nodes == 1);
        branch->n_new =
            batch[i].nodes[0] == 0
                ? fill_text(r, batch[i].proposal, branch, r->tokens + at, r->parents + at, features)
                : fill_draft_tokens(r, &batch[i], branch, r->tokens + at, r->parents + at, features);
        n_rows += batch[i].n_nodes;
    }
    sd_status status = sd_forward(&r->workspace, r->branches, n);
    if (status != SD_OK) {
        for (int i = 0; i < n; i++) r->states[batch[i].proposal->sequence].n_true = 0;
        return status;
    }
    keep_own(r, batch, n);
    sd_forward_settle_failures(&r->workspace);
    translate(r, n_rows);
    return SD_OK;
}

static void share(sd_predictor* base, const sd_proposal* p, int32_t duplicate, int32_t node) {
    int32_t* pending = pending_of((eagle_predictor*)base, p->sequence);
    pending[duplicate] = pending[node];
}

static void release(sd_predictor* base) {
    eagle_predictor* r = (eagle_predictor*)base;
    for (int i = 0; r->base.arena.base && i < r->n_sequences; i++) sd_cache_free(&r->caches[i]);
    sd_workspace_free(&r->workspace);
    sd_predictor_release(base);
}

static sd_status reserve(eagle_predictor* r, const sd_prediction* of) {
    const sd_model* model = r->eagle->model;
    int n = r->n_sequences, n_ctx = model->config.n_ctx;
    int n_slots = (of->n_text < n_ctx ? of->n_text : n_ctx) + r->n_slots;
    for (int i = 0; i < n; i++) SD_TRY(sd_cache_create(&r->caches[i], model, n_slots, r->n_slots, 0, NULL));
    for (ptrdiff_t i = 0; r->eagle->tokens != NULL && i < r->n_logits * r->ld; i++) r->logits[i] = -INFINITY;
    return sd_workspace_create_for(&r->workspace, model, r->n_vocab, of->drafting->n_threads,
                                   sd_rows_with_prompts(model, n * r->row_capacity, 1, n_slots), r->n_logits,
                                   n_slots);
}

/* Does the target have the keys and values that the draft's layers read? */
static sd_status check_borrowed(const sd_config* c, const sd_config* target) {
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* own = &c->layers[i];
        const sd_layer_config* of = own->kv_layer < target->n_layer ? &target->layers[own->kv_layer] : NULL;
        if (of == NULL || !sd_has_own_keys(of) || of->n_kv_head != own->n_kv_head ||
            of->d_head != own->d_head || of->window != own->window)
            return sd_fail(SD_ERR_VALUE,
                           "layer %d of the draft reads layer %d of the target, expected one with keys and "
                           "values of its own, and with the KV heads, dimensions and window of the draft's",
                           i, own->kv_layer);
    }
    return SD_OK;
}

/* Does it read hidden states of a target of this width and with this vocabulary? */
static sd_status check(const sd_eagle* e, const sd_config* target) {
    const sd_config* c = &e->model->config;
    SD_FAIL_IF(c->features.width != e->n_layers * target->d_model, SD_ERR_VALUE,
               "the draft's features have %d numbers, expected %d hidden states of %d, the target's d_model",
               c->features.width, e->n_layers, target->d_model);
    if (c->borrows_kv) SD_TRY(check_borrowed(c, target));
    for (int i = 0; i < sd_head_rows(c); i++)
        if (e->tokens ? e->tokens[i] < 0 || e->tokens[i] >= target->n_vocab : i >= target->n_vocab)
            return sd_fail(SD_ERR_VALUE, "the draft predicts the token %d, expected 0 to %d",
                           e->tokens ? (int)e->tokens[i] : i, target->n_vocab - 1);
    return SD_OK;
}

sd_status sd_eagle_predictor_make(const void* given, const sd_prediction* of, sd_predictor** out) {
    const sd_eagle_predictor_options* options = given;
    SD_TRY(check(options->eagle, &options->target->config));
    SD_NEW(eagle_predictor, r);
    int catch_up = of->n_nodes < MOST_CATCH_UP ? of->n_nodes : MOST_CATCH_UP;
    *r = SD_MAKE(eagle_predictor,
                 .base = SD_MAKE(sd_predictor, .begin = begin, .read = read_prompts, .follow = follow,
                                 .predict = predict, .share = share, .free = release),
                 .eagle = options->eagle, .n_sequences = of->drafting->n_sequences, .n_nodes = of->n_nodes,
                 .catch_up = catch_up, .row_capacity = of->n_rows > catch_up + 1 ? of->n_rows : catch_up + 1,
                 .n_vocab = of->drafting->n_vocab, .n_slots = catch_up + 1 + of->n_nodes,
                 .n_logits = of->drafting->n_sequences * of->n_rows, .ld = of->drafting->n_vocab);
    sd_status status = SD_OK;
    for (int i = 0; i < r->eagle->n_layers && status == SD_OK; i++)
        status = sd_captures_add(&r->base.captures, r->eagle->layers[i], &options->target->config);
    if (status == SD_OK) status = SD_ARENA_BUILD(&r->base.arena, lay_out(r));
    if (status == SD_OK) status = reserve(r, of);
    r->workspace.name = "the draft";
    r->base.logits = r->eagle->tokens ? r->logits : r->workspace.logits;
    r->base.ld_logits = r->eagle->tokens ? r->ld : r->workspace.ld_logits;
    return sd_predictor_made(&r->base, status, out);
}
