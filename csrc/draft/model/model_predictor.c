#include "model_predictor.h"

#include "prefill.h"

/* Tokens that are read together with the root: after a round in which every guess was accepted the
 * cache lacks the last guess, and the root is new in any case. */
#define CATCH_UP 2

typedef struct model_predictor {
    sd_predictor base; /* must stay first */
    sd_model_predictor_options options;
    int n_sequences;
    int n_nodes; /* of a proposal, without the root */
    sd_workspace workspace;
    sd_arena arena;       /* owns the arrays below */
    sd_cache* caches;     /* [n_sequences] its own; of none for the target */
    sd_prefill* prefills; /* [n_sequences] the prompts on their way into them; text NULL: there is none */
    int32_t* pending;     /* [n_sequences, n_nodes + 1] where the cache holds a node of the proposal */
    sd_branch* branches;  /* [n_sequences] */
    int row_room;
    int32_t *tokens, *parents; /* [n_sequences, row_room] of the nodes of one run */
    unsigned char* reads;      /* [n_sequences] the model has room for the source of the sequence */
} model_predictor;

static void lay_out(model_predictor* r) {
    sd_arena* arena = &r->arena;
    size_t n = (size_t)r->n_sequences;
    r->caches = sd_arena_take(arena, r->options.skipped ? 0 : n, sizeof *r->caches);
    r->prefills = sd_arena_take(arena, n, sizeof *r->prefills);
    r->pending = sd_arena_take(arena, n, (size_t)(r->n_nodes + 1) * sizeof *r->pending);
    r->branches = sd_arena_take(arena, n, sizeof *r->branches);
    r->tokens = sd_arena_take(arena, n, (size_t)r->row_room * sizeof *r->tokens);
    r->parents = sd_arena_take(arena, n, (size_t)r->row_room * sizeof *r->parents);
    r->reads = sd_arena_take(arena, n, sizeof *r->reads);
}

/* The cache takes part of the text until that outgrows the model's context. */
static int fits(const model_predictor* r, int sequence, int n_text) {
    return r->reads[sequence] && n_text <= r->options.model->config.n_ctx;
}

static void begin(sd_predictor* base, int sequence, const sd_prompt* prompt) {
    model_predictor* r = (model_predictor*)base;
    const sd_model* encoder = r->options.model->encoder;
    r->reads[sequence] = encoder == NULL || prompt->n_source <= encoder->config.n_ctx;
    /* the last token is the root of the first round */
    sd_prefill prefill = {.text = prompt->tokens, .n = prompt->n - 1, .n_read = -1};
    if (encoder != NULL) prefill.source = prompt->source, prefill.n_source = prompt->n_source;
    int reads = r->options.skipped == NULL && fits(r, sequence, prompt->n);
    r->prefills[sequence] = reads ? prefill : (sd_prefill){0};
}

static int all_read(const model_predictor* r) {
    for (int i = 0; i < r->n_sequences; i++)
        if (!sd_prefill_done(&r->prefills[i])) return 0;
    return 1;
}

static sd_status read_prompts(sd_predictor* base, int* done) {
    model_predictor* r = (model_predictor*)base;
    sd_status status = SD_OK;
    if (!all_read(r)) status = sd_prefill_slice(&r->workspace, r->caches, r->prefills, r->n_sequences);
    *done = all_read(r);
    return status;
}

/* The target's cache follows the text by itself; what another drafter has begun in it is dropped. */
static sd_status follow_in_target(const model_predictor* r, sd_cache* cache, int n_text) {
    if (cache == NULL || cache->model != r->options.model || cache->n_committed != n_text - 1)
        return sd_fail(SD_ERR_STATE,
                       "layers of the target can draft for the target only, expected no other "
                       "draft between them");
    return sd_cache_keep(cache, NULL, 0);
}

/* Where a sequence is read. */
static sd_cache* cache_of(const model_predictor* r, const sd_proposal* p) {
    return r->options.skipped ? p->cache : &r->caches[p->sequence];
}

/* Bring the sequence's cache to the text but for the last tokens, which are read with the root. */
static sd_status follow(sd_predictor* base, sd_proposal* p) {
    model_predictor* r = (model_predictor*)base;
    sd_cache* cache = cache_of(r, p);
    /* the last guess in a row is not read, so the context may be full when it is drawn */
    int room = fits(r, p->sequence, p->n_text) ? r->options.model->config.n_ctx - p->n_text + 1 : 0;
    if (p->depth > room) p->depth = room;
    if (p->budget == 0 || p->depth == 0) return SD_OK;
    if (r->options.skipped) return follow_in_target(r, cache, p->n_text);
    sd_cache_follow(cache, p->text, p->n_text - 1);
    for (int n_read = cache->n_committed; p->n_text - n_read > CATCH_UP;) {
        sd_status status =
            sd_forward_slice(&r->workspace, cache, p->text, p->n_text - CATCH_UP, &n_read, SD_LOGITS_NONE);
        if (status != SD_OK) return status;
    }
    return SD_OK;
}

static int32_t* pending_of(const model_predictor* r, const sd_proposal* p) {
    return r->pending + (ptrdiff_t)p->sequence * (r->n_nodes + 1);
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    model_predictor* r = (model_predictor*)base;
    for (int i = 0; i < n; i++) {
        const sd_proposal* p = batch[i].proposal;
        sd_cache* cache = cache_of(r, p);
        int32_t *tokens = r->tokens + (ptrdiff_t)i * r->row_room,
                *parents = r->parents + (ptrdiff_t)i * r->row_room, *pending = pending_of(r, p);
        int n_new = 0;
        for (int j = 0; j < batch[i].n_nodes; j++) {
            int32_t node = batch[i].nodes[j];
            if (node == 0) { /* with the tokens before it that have not been read */
                for (int at = cache->n_committed; at < p->n_text - 1; at++) {
                    parents[n_new] = n_new - 1;
                    tokens[n_new++] = p->text[at];
                }
                parents[n_new] = n_new - 1;
            } else {
                parents[n_new] = pending[p->tree.parents[node]];
            }
            pending[node] = cache->n_pending + n_new;
            tokens[n_new++] = p->tree.tokens[node];
        }
        r->branches[i] = (sd_branch){.cache = cache,
                                     .tokens = tokens,
                                     .parents = parents,
                                     .n_new = n_new,
                                     .n_logits = batch[i].n_nodes};
    }
    const unsigned char* skipped = r->options.skipped;
    sd_status status = skipped ? sd_forward_skipping(&r->workspace, skipped, r->branches, n)
                               : sd_forward(&r->workspace, r->branches, n);
    return status == SD_OK ? sd_forward_check(&r->workspace, 0, r->workspace.max_rows) : status;
}

static void share(sd_predictor* base, const sd_proposal* p, int32_t duplicate, int32_t node) {
    int32_t* pending = pending_of((model_predictor*)base, p);
    pending[duplicate] = pending[node];
}

static void release(sd_predictor* base) {
    model_predictor* r = (model_predictor*)base;
    int n = r->arena.base && r->options.skipped == NULL ? r->n_sequences : 0;
    for (int i = 0; i < n; i++) sd_cache_free(&r->caches[i]);
    sd_workspace_free(&r->workspace);
    sd_arena_free(&r->arena);
    sd_free(r);
}

/* Caches and workspace of a predictor that has its arrays. */
static sd_status make_room(model_predictor* r, const sd_prediction* of) {
    const sd_model* model = r->options.model;
    int n = r->n_sequences, n_ctx = model->config.n_ctx;
    int n_slots = (of->n_text < n_ctx ? of->n_text : n_ctx) + of->n_nodes + CATCH_UP;
    for (int i = 0; i < n && r->options.skipped == NULL; i++) {
        sd_status status = sd_cache_create(&r->caches[i], model, n_slots, of->n_nodes + CATCH_UP, 0, NULL);
        if (status != SD_OK) return status;
    }
    int n_rows = n * r->row_room, slice = sd_prompt_slice(model);
    return sd_workspace_create_for(&r->workspace, model, of->drafting->n_vocab, of->drafting->n_threads,
                                   n_rows > slice ? n_rows : slice, n * of->n_rows, n_slots);
}

sd_status sd_model_predictor_make(const void* given, const sd_prediction* of, sd_predictor** out) {
    const sd_model_predictor_options* options = given;
    if (options->model->encoder != NULL && !of->drafting->has_sources)
        return sd_fail(SD_ERR_VALUE, "the draft has an encoder, expected a target that has one too");
    model_predictor* r = sd_alloc(sizeof *r);
    if (r == NULL) return SD_ERR_MEMORY;
    *r = (model_predictor){.base = {.begin = begin,
                                    .read = read_prompts,
                                    .follow = follow,
                                    .predict = predict,
                                    .share = share,
                                    .free = release},
                           .options = *options,
                           .n_sequences = of->drafting->n_sequences,
                           .n_nodes = of->n_nodes,
                           .row_room = of->n_rows + CATCH_UP - 1};
    sd_status status = SD_ARENA_BUILD(&r->arena, lay_out(r));
    if (status == SD_OK) status = make_room(r, of);
    if (status != SD_OK) {
        release(&r->base);
        return status;
    }
    r->workspace.name = "the draft";
    if (options->skipped == NULL) r->base.caches = r->caches;
    r->base.logits = r->workspace.logits;
    r->base.ld_logits = r->workspace.ld_logits;
    *out = &r->base;
    return SD_OK;
}
