#include "model_drafter.h"

#include "clock.h"
#include "forward.h"

/* Tokens a draft's cache lacks at most when a round begins: after a round in which every guess
 * was accepted it lacks the last guess and the bonus token. A longer gap, left by rounds without
 * drafting, is closed first. */
#define CATCH_UP 2

typedef struct reader {
    sd_cache cache;
    int n_read; /* prompt tokens in the cache */
    int root;   /* pending node that is the root of the last proposal */
} reader;

typedef struct model_drafter {
    sd_drafter base; /* must stay first */
    sd_model_drafter_options options;
    sd_workspace workspace;
    sd_arena arena; /* owns the arrays below */
    int n_sequences;
    reader* readers;     /* [n_sequences] */
    sd_branch* branches; /* [n_sequences] of the sequences still drafting in this step */
    int* drafting;       /* [n_sequences] their proposals */
    int32_t* tokens;     /* [n_sequences, CATCH_UP] of the step's nodes */
    int32_t* parents;    /* [n_sequences, CATCH_UP] */
    int32_t* path;       /* [CATCH_UP + gamma] */
    sd_guesser guesser;
} model_drafter;

static void lay_out(model_drafter* d) {
    sd_arena* arena = &d->arena;
    size_t n = (size_t)d->n_sequences;
    d->readers = sd_arena_take(arena, n, sizeof *d->readers);
    d->branches = sd_arena_take(arena, n, sizeof *d->branches);
    d->drafting = sd_arena_take(arena, n, sizeof *d->drafting);
    d->tokens = sd_arena_take(arena, n, CATCH_UP * sizeof *d->tokens);
    d->parents = sd_arena_take(arena, n, CATCH_UP * sizeof *d->parents);
    d->path = sd_arena_take(arena, (size_t)(CATCH_UP + d->options.gamma), sizeof *d->path);
    d->guesser = sd_guesser_take(arena, &d->options.guessing, d->options.model->config.n_vocab);
}

/* The draft's cache takes part of the text until that outgrows its context. */
static int fits(const model_drafter* d, int n_text) { return n_text <= d->options.model->config.n_ctx; }

static sd_status begin(sd_drafter* base, int sequence, const int32_t* prompt, int n_prompt, int* done) {
    model_drafter* d = (model_drafter*)base;
    reader* r = &d->readers[sequence];
    sd_status status = SD_OK;
    if (fits(d, n_prompt) && r->n_read < n_prompt - 1)
        status = sd_prefill_slice(&d->workspace, &r->cache, prompt, n_prompt - 1, &r->n_read, 0);
    if (status == SD_OK) *done = !fits(d, n_prompt) || r->n_read >= n_prompt - 1;
    return status;
}

/* Read text[: n - CATCH_UP] into the cache, node by node as decoding would. */
static sd_status close_gap(model_drafter* d, reader* r, const int32_t* text, int n) {
    while (n - r->cache.n_committed > CATCH_UP) {
        const int32_t parent = -1, node = 0;
        const sd_branch branch = {&r->cache, text + r->cache.n_committed, &parent, 1, 0};
        sd_status status = sd_forward(&d->workspace, &branch, 1);
        if (status == SD_OK) status = sd_cache_keep(&r->cache, &node, 1);
        if (status != SD_OK) return status;
    }
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    model_drafter* d = (model_drafter*)base;
    int n_ctx = d->options.model->config.n_ctx;
    base->other_s = 0.0;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        /* the last guess is not read, so the draft's context may be full when it is drawn */
        if (p->budget > n_ctx - p->n_text + 1) p->budget = fits(d, p->n_text) ? n_ctx - p->n_text + 1 : 0;
        if (p->budget == 0) continue;
        sd_status status = close_gap(d, &d->readers[p->sequence], p->text, p->n_text);
        if (status != SD_OK) return status;
    }
    for (int step = 0;; step++) { /* one token for every sequence that wants another */
        int n_drafting = 0;
        for (int i = 0; i < n; i++) {
            const sd_proposal* p = &proposals[i];
            if (p->budget <= step) continue;
            reader* r = &d->readers[p->sequence];
            int32_t *tokens = d->tokens + n_drafting * CATCH_UP,
                    *parents = d->parents + n_drafting * CATCH_UP;
            int n_new = step == 0 ? p->n_text - r->cache.n_committed : 1;
            for (int j = 0; j < n_new; j++) {
                tokens[j] = step == 0 ? p->text[r->cache.n_committed + j] : p->tree.tokens[step];
                parents[j] = r->cache.n_pending + j - 1;
            }
            if (step == 0) r->root = n_new - 1;
            d->branches[n_drafting] = (sd_branch){&r->cache, tokens, parents, n_new, 1};
            d->drafting[n_drafting++] = i;
        }
        if (n_drafting == 0) return SD_OK;
        sd_status status = sd_forward(&d->workspace, d->branches, n_drafting);
        if (status != SD_OK) return status;
        double begun = sd_now();
        for (int i = 0; i < n_drafting; i++)
            sd_guess(&d->guesser, &proposals[d->drafting[i]],
                     d->workspace.logits + i * d->workspace.ld_logits);
        base->other_s += sd_now() - begun;
    }
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* path, int n_path) {
    model_drafter* d = (model_drafter*)base;
    reader* r = &d->readers[sequence];
    int n = 0;
    if (r->cache.n_pending == 0) return SD_OK; /* nothing was drafted */
    for (int i = 0; i <= r->root; i++) d->path[n++] = i;
    for (int i = 0; i < n_path; i++) {
        int node = r->root + path[i];
        if (node < r->cache.n_pending) d->path[n++] = node; /* the last guess was never read */
    }
    return sd_cache_keep(&r->cache, d->path, n);
}

static void release(sd_drafter* base) {
    model_drafter* d = (model_drafter*)base;
    for (int i = 0; d->arena.base && i < d->n_sequences; i++) sd_cache_free(&d->readers[i].cache);
    sd_workspace_free(&d->workspace);
    sd_arena_free(&d->arena);
    sd_free(d);
}

sd_status sd_model_drafter_create(const sd_model_drafter_options* options, const int* n_prompt, int n,
                                  sd_drafter** drafter) {
    sd_status status = sd_gamma_check(options->gamma);
    if (status == SD_OK) status = sd_guessing_check(&options->guessing, options->model->config.n_vocab);
    if (status != SD_OK) return status;
    model_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) return SD_ERR_MEMORY;
    d->base = (sd_drafter){0.0, begin, propose, commit, release};
    d->options = *options;
    d->n_sequences = n;
    lay_out(d);
    if ((status = sd_arena_commit(&d->arena)) != SD_OK) goto fail;
    lay_out(d);
    int n_ctx = options->model->config.n_ctx, longest = 0;
    for (int i = 0; i < n; i++) {
        long text = (long)n_prompt[i] + options->max_new_tokens;
        int n_slots = (text < n_ctx ? (int)text : n_ctx) + options->gamma + CATCH_UP;
        longest = n_slots > longest ? n_slots : longest;
        if ((status = sd_cache_create(&d->readers[i].cache, options->model, n_slots)) != SD_OK) goto fail;
    }
    int rows = n * CATCH_UP;
    status = sd_workspace_create(&d->workspace, options->model, options->n_threads,
                                 rows > SD_PROMPT_SLICE ? rows : SD_PROMPT_SLICE, n, longest);
    if (status != SD_OK) goto fail;
    *drafter = &d->base;
    return SD_OK;
fail:
    release(&d->base);
    return status;
}
