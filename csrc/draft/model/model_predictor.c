/* A model with its own caches predicts draft tokens, or the target without some of its layers. */
#include "model_drafters.h"

#include "forward.h"
#include "translation.h"

/* Tokens read together with the root: after a round in which every draft token was accepted the cache lacks
 * the last one, and the root is always new. */
#define CATCH_UP 2

/* Most tokens of a draft with another vocabulary per target token, over a whole text. */
#define MOST_FOR_ONE 8

typedef struct model_predictor {
    sd_predictor base; /* must stay first */
    sd_model_predictor_options options;
    int n_sequences;
    int n_nodes;  /* of a proposal, without the root */
    int catch_up; /* tokens read together with the root: CATCH_UP, and those that a constraint forces */
    sd_workspace workspace;
    sd_cache* caches; /* [n_sequences] its own; none for the target */
    /* [n_sequences] models of the sequences, if layers of the target draft; else NULL; borrowed while the
     * prompts are read */
    const sd_model** adapted;
    sd_prefill* prefills;  /* [n_sequences] prompts being read into them; text NULL: none */
    long n_begun;          /* prompts so far */
    sd_failure** failures; /* [n_sequences] of each sequence alone; borrowed */
    int32_t* pending;      /* [n_sequences, n_nodes + 1] pending row of each node of the proposal */
    sd_branch* branches;   /* [n_sequences] */
    int row_capacity;
    int32_t *tokens, *parents; /* [n_sequences, row_capacity] nodes of one forward pass */
    unsigned char* reads;      /* [n_sequences] the sequence's source is not empty and fits */
    /* For a model with another vocabulary. */
    sd_retokenized_text* retokenized; /* [n_sequences] the texts in its tokens */
    sd_prompt* prompts;               /* [n_sequences] begun, not yet retokenized; tokens NULL: none */
    int32_t* sources;                 /* [n_sequences, the encoder's n_ctx] sources in its tokens */
    float* logits;                    /* [rows, ld] of the target's tokens */
    ptrdiff_t ld;
} model_predictor;

/* A text in the model's tokens. */
typedef struct own_prompt {
    const int32_t* tokens; /* [n] borrowed */
    int n;
} own_prompt;

static const sd_translation* translation_of(const model_predictor* r) { return r->options.translation; }

/* Are its predictions translated into the target's vocabulary? */
static int predicts_for_target(const model_predictor* r) {
    return translation_of(r) != NULL && !r->options.writes;
}

static own_prompt text_of(const model_predictor* r, const sd_proposal* p) {
    const sd_retokenized_text* own_text = translation_of(r) ? &r->retokenized[p->sequence] : NULL;
    return own_text ? (own_prompt){own_text->tokens, own_text->n} : (own_prompt){p->text, p->n_text};
}

/* Most tokens of the model for a text of n target tokens. */
static int capacity_of(const model_predictor* r, int n) {
    int n_ctx = r->options.model->config.n_ctx, most = translation_of(r) ? MOST_FOR_ONE : 1;
    return n < n_ctx / most ? most * n : n_ctx;
}

/* Take what a model with another vocabulary needs in addition. */
static void lay_out_translation(model_predictor* r, const sd_prediction* of) {
    sd_arena* arena = &r->base.arena;
    const sd_model* model = r->options.model;
    size_t n = (size_t)r->n_sequences, n_source = model->encoder ? (size_t)model->encoder->config.n_ctx : 0;
    r->retokenized = sd_arena_take(arena, n, sizeof *r->retokenized);
    r->prompts = sd_arena_take(arena, n, sizeof *r->prompts);
    r->sources = sd_arena_take(arena, n * n_source, sizeof *r->sources);
    r->logits = sd_arena_take(arena, n * (size_t)of->n_rows * (size_t)r->ld, sizeof *r->logits);
    char* piece = sd_arena_take(arena, SD_RETOKENIZED_PIECE, sizeof *piece);
    int32_t* ids = sd_arena_take(arena, SD_RETOKENIZED_PIECE, sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        sd_retokenized_text own_text = sd_retokenized_text_take(
            arena, r->options.translation, r->options.caller, of->n_text, capacity_of(r, of->n_text) + 1);
        own_text.piece = piece, own_text.ids = ids;
        if (arena->base != NULL) r->retokenized[i] = own_text;
    }
}

static void lay_out(model_predictor* r, const sd_prediction* of) {
    sd_arena* arena = &r->base.arena;
    size_t n = (size_t)r->n_sequences;
    if (translation_of(r) != NULL) lay_out_translation(r, of);
    r->caches = sd_arena_take(arena, r->options.skipped ? 0 : n, sizeof *r->caches);
    r->prefills = sd_arena_take(arena, n, sizeof *r->prefills);
    r->failures = sd_arena_take(arena, n, sizeof *r->failures);
    r->adapted = sd_arena_take(arena, n, sizeof *r->adapted);
    r->pending = sd_arena_take(arena, n, (size_t)(r->n_nodes + 1) * sizeof *r->pending);
    r->branches = sd_arena_take(arena, n, sizeof *r->branches);
    r->tokens = sd_arena_take(arena, n, (size_t)r->row_capacity * sizeof *r->tokens);
    r->parents = sd_arena_take(arena, n, (size_t)r->row_capacity * sizeof *r->parents);
    r->reads = sd_arena_take(arena, n, sizeof *r->reads);
}

/* Does a text of n tokens fit the model's context? */
static int fits(const model_predictor* r, int sequence, int n_text) {
    if (translation_of(r) != NULL && !sd_retokenized_text_is_whole(&r->retokenized[sequence])) return 0;
    return r->reads[sequence] && n_text <= r->options.model->config.n_ctx;
}

/* Begin to read a prompt in the model's tokens. One that cannot be retokenized yet may be read in a later
 * round, with more of its text; its source is encoded in any case. */
static void begin_prefill(model_predictor* r, int sequence, const sd_prompt* prompt) {
    const sd_model* encoder = r->options.model->encoder;
    int n_source = prompt->n_source;
    r->reads[sequence] = encoder == NULL || (n_source > 0 && n_source <= encoder->config.n_ctx);
    r->prefills[sequence] = (sd_prefill){0};
    int reads = fits(r, sequence, prompt->n);
    int may_read = encoder != NULL && translation_of(r) != NULL && r->reads[sequence];
    if (r->options.skipped != NULL || !(reads || may_read)) return;
    /* the last token is the root of the first round */
    sd_prefill prefill = SD_MAKE(sd_prefill, .text = prompt->tokens, .n = reads ? prompt->n - 1 : 0,
                                 .n_read = -1, .order = r->n_begun++, .failure = r->failures[sequence]);
    if (encoder != NULL) prefill.source = prompt->source, prefill.n_source = n_source;
    r->prefills[sequence] = prefill;
}

static void begin(sd_predictor* base, int sequence, const sd_prompt* prompt) {
    model_predictor* r = (model_predictor*)base;
    r->adapted[sequence] = r->options.skipped && prompt->cache ? prompt->cache->model : NULL;
    r->failures[sequence] = prompt->failure;
    if (translation_of(r) == NULL) {
        begin_prefill(r, sequence, prompt);
        return;
    }
    r->prompts[sequence] = *prompt;
    r->prefills[sequence] = (sd_prefill){.n_read = -1};
}

/* Translate a prompt and its source from the target's tokens to the model's. */
static sd_status translate_prompt(model_predictor* r, int sequence) {
    const sd_translation* t = translation_of(r);
    const sd_model* encoder = r->options.model->encoder;
    sd_prompt* prompt = &r->prompts[sequence];
    sd_retokenized_text* own_text = &r->retokenized[sequence];
    sd_retokenized_text_begin(own_text);
    SD_TRY(sd_retokenized_text_follow(own_text, prompt->tokens, prompt->n));
    sd_encoded_ids ids = {0};
    if (encoder != NULL) {
        int capacity = encoder->config.n_ctx;
        const sd_encodable source = {
            .what = SD_ENCODE_SOURCE, .source = prompt->source, .n_source = prompt->n_source};
        ids = (sd_encoded_ids){.ids = r->sources + (ptrdiff_t)sequence * capacity, .capacity = capacity};
        SD_TRY(t->encode(t, r->options.caller, &source, &ids));
    }
    const sd_prompt own_prompt = {
        .tokens = own_text->tokens, .n = own_text->n, .source = ids.ids, .n_source = ids.n};
    begin_prefill(r, sequence, &own_prompt);
    prompt->tokens = NULL;
    return SD_OK;
}

static int all_read(const model_predictor* r) {
    for (int i = 0; i < r->n_sequences; i++)
        if (!sd_prefill_done(&r->prefills[i])) return 0;
    return 1;
}

static sd_status reserve(sd_predictor* base) {
    model_predictor* r = (model_predictor*)base;
    SD_TRY(sd_workspace_reserve(&r->workspace));
    for (int i = 0; i < r->n_sequences && r->options.skipped == NULL; i++)
        SD_TRY(sd_cache_reserve(&r->caches[i]));
    r->base.logits = predicts_for_target(r) ? r->logits : r->workspace.logits;
    r->base.ld_logits = predicts_for_target(r) ? r->ld : r->workspace.ld_logits;
    return SD_OK;
}

static sd_status read_prompts(sd_predictor* base, int* done) {
    model_predictor* r = (model_predictor*)base;
    for (int i = 0; i < r->n_sequences; i++) {
        const sd_model* adapted = r->adapted[i];
        if (adapted != NULL && sd_workspace_admit(&r->workspace, adapted) != SD_OK)
            sd_failure_note(r->failures[i], SD_ERR_MEMORY);
    }
    for (int i = 0; translation_of(r) != NULL && i < r->n_sequences; i++)
        if (r->prompts[i].tokens != NULL) SD_TRY(translate_prompt(r, i));
    if (!all_read(r)) SD_TRY(sd_prefill_slice(&r->workspace, r->caches, r->prefills, r->n_sequences));
    *done = all_read(r);
    return SD_OK;
}

/* The target's cache already follows the text; drop pending rows of another drafter. */
static sd_status follow_in_target(const model_predictor* r, sd_cache* cache, int n_text) {
    SD_FAIL_IF(cache == NULL || sd_model_base(cache->model) != sd_model_base(r->options.model) ||
                   cache->n_committed != n_text - 1,
               SD_ERR_STATE,
               "layers of the target can draft for the target only, expected no other draft between them");
    return sd_cache_keep(cache, NULL, 0);
}

/* The cache of a sequence. */
static sd_cache* cache_of(const model_predictor* r, const sd_proposal* p) {
    return r->options.skipped ? p->cache : &r->caches[p->sequence];
}

/* Bring the sequence's cache up to the text, except for the last tokens, which are read with the root. */
static sd_status follow(sd_predictor* base, sd_proposal* p) {
    model_predictor* r = (model_predictor*)base;
    sd_cache* cache = cache_of(r, p);
    if (translation_of(r) != NULL && p->budget > 0 && p->depth > 0)
        SD_TRY(sd_retokenized_text_follow(&r->retokenized[p->sequence], p->text, p->n_text));
    const own_prompt text = text_of(r, p);
    /* the last draft token in a row is not read, so the context may be full when it is drawn */
    int limit = fits(r, p->sequence, text.n) ? r->options.model->config.n_ctx - text.n + 1 : 0;
    if (p->depth > limit) p->depth = limit;
    if (p->budget == 0 || p->depth == 0) return SD_OK;
    if (r->options.skipped) return follow_in_target(r, cache, p->n_text);
    sd_cache_follow(cache, text.tokens, text.n - 1);
    for (int n_read = cache->n_committed; text.n - n_read > r->catch_up;) {
        sd_status status = sd_forward_slice(&r->workspace, cache, text.tokens, text.n - r->catch_up, &n_read,
                                            SD_LOGITS_NONE);
        if (status == SD_ERR_OVERFLOW) {
            sd_failure_note(p->failure, status);
            return SD_OK;
        }
        SD_TRY(status);
    }
    return SD_OK;
}

static int32_t* pending_of(const model_predictor* r, const sd_proposal* p) {
    return r->pending + (ptrdiff_t)p->sequence * (r->n_nodes + 1);
}

/* The model's token of a draft token that it predicted. */
static int32_t own_token(const model_predictor* r, int32_t token) {
    return predicts_for_target(r) ? translation_of(r)->draft_of[token] : token;
}

/* Translate the logits of the last forward pass, `n_rows` rows, to the target's tokens. */
static void translate_logits(model_predictor* r, int n_rows) {
    const sd_translation* t = translation_of(r);
    double named = 0.0;
    for (int i = 0; i < n_rows; i++)
        named +=
            sd_translate_logits(t, r->workspace.logits + i * r->workspace.ld_logits, r->logits + i * r->ld);
    atomic_fetch_add_explicit(t->n_rows, n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(t->named, (long long)(named * SD_SHARE_UNIT), memory_order_relaxed);
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    model_predictor* r = (model_predictor*)base;
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        const sd_proposal* p = batch[i].proposal;
        sd_cache* cache = cache_of(r, p);
        int32_t *tokens = r->tokens + (ptrdiff_t)i * r->row_capacity,
                *parents = r->parents + (ptrdiff_t)i * r->row_capacity, *pending = pending_of(r, p);
        const own_prompt text = text_of(r, p);
        int n_new = 0;
        for (int j = 0; j < batch[i].n_nodes; j++) {
            int32_t node = batch[i].nodes[j];
            if (node == 0) { /* with unread tokens before it */
                for (int at = cache->n_committed; at < text.n - 1; at++) {
                    parents[n_new] = n_new - 1;
                    tokens[n_new++] = text.tokens[at];
                }
                parents[n_new] = n_new - 1;
            } else {
                parents[n_new] = pending[p->tree.parents[node]];
            }
            pending[node] = cache->n_pending + n_new;
            tokens[n_new++] = node == 0 ? text.tokens[text.n - 1] : own_token(r, p->tree.tokens[node]);
        }
        n_rows += batch[i].n_nodes;
        r->branches[i] = SD_MAKE(sd_branch, .cache = cache, .tokens = tokens, .parents = parents,
                                 .n_new = n_new, .n_logits = batch[i].n_nodes, .failure = p->failure);
    }
    const unsigned char* skipped = r->options.skipped;
    SD_TRY(skipped ? sd_forward_skipping(&r->workspace, skipped, r->branches, n)
                   : sd_forward(&r->workspace, r->branches, n));
    sd_forward_settle_failures(&r->workspace);
    if (predicts_for_target(r)) translate_logits(r, n_rows);
    return SD_OK;
}

static void share(sd_predictor* base, const sd_proposal* p, int32_t duplicate, int32_t node) {
    int32_t* pending = pending_of((model_predictor*)base, p);
    pending[duplicate] = pending[node];
}

static void release(sd_predictor* base) {
    model_predictor* r = (model_predictor*)base;
    int n = r->base.arena.base && r->options.skipped == NULL ? r->n_sequences : 0;
    for (int i = 0; i < n; i++) sd_cache_free(&r->caches[i]);
    sd_workspace_free(&r->workspace);
    sd_predictor_release(base);
}

/* Plan the sizes of caches and workspace of a predictor that has its arrays. */
static void plan(model_predictor* r, const sd_prediction* of) {
    const sd_model* model = r->options.model;
    int n = r->n_sequences;
    int n_slots = capacity_of(r, of->n_text) + of->n_nodes + r->catch_up;
    int n_vocab = translation_of(r) ? model->config.n_vocab : of->drafting->n_vocab;
    for (int i = 0; i < n && r->options.skipped == NULL; i++)
        r->caches[i] = sd_cache_plan(model, n_slots, of->n_nodes + r->catch_up, 0, NULL);
    int n_rows = sd_rows_with_prompts(model, n * r->row_capacity, n, n_slots);
    r->workspace =
        sd_workspace_plan(model, n_vocab, of->drafting->n_threads, n_rows, n * of->n_rows, n_slots);
    r->workspace.name = "the draft";
}

sd_status sd_model_predictor_make(const void* given, const sd_prediction* of, sd_predictor** out) {
    const sd_model_predictor_options* options = given;
    if (options->model->encoder != NULL && !of->drafting->has_sources)
        return sd_fail(SD_ERR_VALUE, "the draft has an encoder, expected a target that has one too");
    SD_NEW(model_predictor, r);
    int catch_up = CATCH_UP + of->drafting->max_forced;
    *r = SD_MAKE(model_predictor,
                 .base = SD_MAKE(sd_predictor, .reserve = reserve, .begin = begin, .read = read_prompts,
                                 .follow = follow, .predict = predict, .share = share, .free = release),
                 .options = *options, .n_sequences = of->drafting->n_sequences, .n_nodes = of->n_nodes,
                 .catch_up = catch_up, .row_capacity = of->n_rows + catch_up - 1);
    r->ld = (of->drafting->n_vocab + 15) & ~15;
    sd_status status = SD_ARENA_BUILD(&r->base.arena, lay_out(r, of));
    if (status == SD_OK) plan(r, of);
    if (options->skipped == NULL) r->base.caches = r->caches;
    r->base.own_ids = translation_of(r) != NULL;
    r->base.in_target = options->skipped != NULL;
    return sd_predictor_made(&r->base, status, out);
}
