#include "beam_search.h"

#include <string.h>

#include "clock.h"
#include "forward.h"
#include "interrupt.h"
#include "tree.h"

struct sd_beam_search {
    sd_beam_options options;
    sd_workspace target, draft; /* the draft's is not created if nothing is drafted */
    sd_beam_tree tree;
    sd_arena arena;                            /* owns the arrays below */
    int32_t* prompt;                           /* [n_prompt]; its last token is the first round's only node */
    int n_prompt, n_target_read, n_draft_read; /* prompt tokens in the caches */
    int begun;                                 /* reading the prompt has begun */
    int ready;                                 /* the prompt is read, and no round has failed */
    int ended;
    int n_steps, max_steps;
    sd_beam *beams, *next;     /* [width] hypotheses, best first, and space for the next ones */
    sd_beam *drafted, *better; /* [draft_width] the same for the draft's search */
    int n_beams;
    int32_t* step_tokens;  /* [max_steps, width] tokens and parents of each step (sd_beam) */
    int32_t* step_parents; /* [max_steps, width] */
    int32_t* stop_ids;     /* [options.n_stop_ids] */
    int32_t* source;       /* [options.n_source] */
};

static void lay_out(sd_beam_search* s) {
    sd_arena* arena = &s->arena;
    const sd_beam_options* o = &s->options;
    size_t width = (size_t)o->width, steps = (size_t)s->max_steps;
    s->prompt = sd_arena_take(arena, (size_t)s->n_prompt, sizeof *s->prompt);
    s->beams = sd_arena_take(arena, width, sizeof *s->beams);
    s->next = sd_arena_take(arena, width, sizeof *s->next);
    s->drafted = sd_arena_take(arena, (size_t)o->draft_width, sizeof *s->drafted);
    s->better = sd_arena_take(arena, (size_t)o->draft_width, sizeof *s->better);
    s->step_tokens = sd_arena_take(arena, steps, width * sizeof *s->step_tokens);
    s->step_parents = sd_arena_take(arena, steps, width * sizeof *s->step_parents);
    s->stop_ids = sd_arena_take(arena, (size_t)o->n_stop_ids, sizeof *s->stop_ids);
    s->source = sd_arena_take(arena, (size_t)o->n_source, sizeof *s->source);
}

static sd_status check(const sd_beam_options* o, const int32_t* prompt, int n) {
    const sd_config* c = &o->target->config;
    sd_status status = sd_gamma_check(o->gamma);
    if (status != SD_OK) return status;
    if (o->width < 1 || o->width > SD_MAX_WIDTH)
        return sd_fail(SD_ERR_VALUE, "width is %d, expected 1 to %d", o->width, SD_MAX_WIDTH);
    if (o->draft_width < o->width || o->draft_width > SD_MAX_WIDTH)
        return sd_fail(SD_ERR_VALUE, "draft_width is %d, expected %d (width) to %d", o->draft_width, o->width,
                       SD_MAX_WIDTH);
    if (o->max_new_tokens < 1)
        return sd_fail(SD_ERR_VALUE, "max_new_tokens is %d, expected at least 1", o->max_new_tokens);
    if (n < 1 || n >= c->n_ctx)
        return sd_fail(SD_ERR_CONTEXT, "the prompt has %d tokens, expected 1 to %d (the context is %d)", n,
                       c->n_ctx - 1, c->n_ctx);
    for (int i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= c->n_vocab)
            return sd_fail(SD_ERR_VALUE, "prompt: token %d is %d, expected 0 to %d", i, (int)prompt[i],
                           c->n_vocab - 1);
    if (o->draft != NULL && o->draft->encoder != NULL && o->target->encoder == NULL)
        return sd_fail(SD_ERR_VALUE, "the draft has an encoder, expected a target that has one too");
    return sd_encoder_check(o->target, o->source, o->n_source);
}

static int larger(int a, int b) { return a > b ? a : b; }

static void swap(sd_beam** one, sd_beam** other) {
    sd_beam* first = *one;
    *one = *other, *other = first;
}

/* Create caches and workspaces. Between rounds the tree has at most one node per hypothesis and step; a round
 * adds the hypotheses' last tokens and the draft's choices. */
static sd_status create_parts(sd_beam_search* s) {
    const sd_beam_options* o = &s->options;
    const sd_model* draft = s->tree.drafting ? o->draft : NULL;
    int depth = o->gamma < s->max_steps - 1 ? o->gamma : s->max_steps - 1;
    int64_t rows = o->width + (draft ? (int64_t)o->draft_width * depth : 0);
    int64_t n_nodes = (int64_t)o->width * s->max_steps + rows;
    if (n_nodes > 1 << 28)
        return sd_fail(SD_ERR_VALUE, "width is %d for %d tokens, expected fewer than %d nodes", o->width,
                       s->max_steps, 1 << 28);
    sd_status status = sd_beam_tree_create(&s->tree, o->target, draft, s->n_prompt, (int)n_nodes);
    if (status == SD_OK)
        status = sd_workspace_create(&s->target, o->target, o->n_threads,
                                     sd_rows_with_prompts(o->target, (int)rows, 1, s->n_prompt), (int)rows,
                                     s->n_prompt + (int)n_nodes);
    /* its first forward pass of a round reads up to `width` nodes of the last round and as many last tokens;
     * each of the others reads one step of its search */
    if (status == SD_OK && draft)
        status = sd_workspace_create_for(
            &s->draft, draft, o->target->config.n_vocab, o->n_threads,
            sd_rows_with_prompts(draft, larger(2 * o->width, o->draft_width), 1, s->n_prompt), o->draft_width,
            s->n_prompt + (int)n_nodes);
    s->target.name = "the target"; /* the draft has no name: if it overflows it proposes nothing */
    return status;
}

/* Do a prompt of n tokens and the source fit the draft? */
static int draft_fits(const sd_beam_options* o, int n) {
    const sd_model* encoder = o->draft->encoder;
    return n <= o->draft->config.n_ctx && (encoder == NULL || o->n_source <= encoder->config.n_ctx);
}

sd_status sd_beam_search_create(const sd_beam_options* options, const int32_t* prompt, int n,
                                sd_beam_search** out) {
    sd_beam_search* s = NULL;
    sd_status status = check(options, prompt, n);
    if (status != SD_OK) goto fail;
    status = SD_ERR_MEMORY;
    if ((s = sd_alloc(sizeof *s)) == NULL) goto fail;
    int n_left = options->target->config.n_ctx - n;
    s->options = *options;
    s->n_prompt = n;
    s->max_steps = options->max_new_tokens < n_left ? options->max_new_tokens : n_left;
    s->tree.drafting =
        options->draft != NULL && options->gamma > 0 && s->max_steps > 1 && draft_fits(options, n);
    if ((status = SD_ARENA_BUILD(&s->arena, lay_out(s))) != SD_OK) goto fail;
    memcpy(s->prompt, prompt, (size_t)n * sizeof *prompt);
    for (int i = 0; i < options->n_stop_ids; i++) s->stop_ids[i] = options->stop_ids[i];
    if (options->n_source > 0)
        memcpy(s->source, options->source, (size_t)options->n_source * sizeof *s->source);
    s->n_beams = 1;
    s->beams[0] = (sd_beam){.token = prompt[n - 1], .node = -1, .parent_node = -1};
    if ((status = create_parts(s)) != SD_OK) goto fail;
    *out = s;
    return SD_OK;
fail:
    sd_beam_search_free(s);
    return status;
}

void sd_beam_search_free(sd_beam_search* s) {
    if (s == NULL) return;
    sd_workspace_free(&s->target);
    sd_workspace_free(&s->draft);
    sd_beam_tree_free(&s->tree);
    sd_arena_free(&s->arena);
    sd_free(s);
}

/* Does a cache lack its source? */
static int lacks_source(const sd_cache* cache) {
    return cache->model->encoder != NULL && cache->encoded == NULL;
}

static sd_status encode(const sd_beam_search* s, sd_cache* cache, const char* name) {
    return sd_encode(cache, s->source, s->options.n_source, s->options.n_threads, name);
}

int sd_beam_search_drafts(const sd_beam_search* s) { return s->tree.draft.model != NULL; }

static sd_status fail_model(void) {
    return sd_fail(SD_ERR_VALUE, "the model is neither the target nor a model that drafts");
}

sd_status sd_beam_search_begin_with(sd_beam_search* s, const sd_cache* known, int* n) {
    if (s->begun) return sd_fail(SD_ERR_STATE, "the prompt is already being read");
    *n = 0;
    int is_target = known->model == s->options.target, is_draft = known->model == s->options.draft;
    if (!is_target && !is_draft) return fail_model();
    int n_source = known->model->encoder ? s->options.n_source : 0;
    if (!sd_encoded_has_source(known->encoded, s->source, n_source)) return SD_OK;
    sd_cache* caches[] = {is_draft && sd_beam_search_drafts(s) ? &s->tree.draft : NULL,
                          is_target ? &s->tree.target : NULL};
    for (int i = 0; i < 2; i++) {
        if (caches[i] == NULL) continue;
        sd_cache_set_source(caches[i], known->encoded);
        *n = sd_cache_begin_with(caches[i], known, s->prompt, s->n_prompt - 1);
    }
    return SD_OK;
}

const sd_cache* sd_beam_search_cache(const sd_beam_search* s, const sd_model* model) {
    if (model == s->options.target) return &s->tree.target;
    if (model == s->options.draft && sd_beam_search_drafts(s)) return &s->tree.draft;
    fail_model();
    return NULL;
}

sd_status sd_beam_search_prefill(sd_beam_search* s, int* done) {
    *done = 0;
    int n = s->n_prompt - 1;
    if (lacks_source(&s->tree.target)) return encode(s, &s->tree.target, s->target.name);
    if (s->tree.drafting && lacks_source(&s->tree.draft)) return encode(s, &s->tree.draft, s->draft.name);
    if (!s->begun) {
        s->n_target_read = s->tree.target.n_committed;
        s->n_draft_read = s->tree.draft.n_committed;
        s->begun = 1;
    }
    if (s->n_target_read < n)
        return sd_forward_slice(&s->target, &s->tree.target, s->prompt, n, &s->n_target_read, SD_LOGITS_NONE);
    if (s->tree.drafting && s->n_draft_read < n)
        return sd_forward_slice(&s->draft, &s->tree.draft, s->prompt, n, &s->n_draft_read, SD_LOGITS_NONE);
    *done = 1;
    s->ready = 1;
    return SD_OK;
}

/* Steps the draft may propose: one fewer than remain, and its tokens must fit its context. */
static int draft_depth(const sd_beam_search* s) {
    if (!s->tree.drafting) return 0;
    int depth = s->options.gamma, left = s->max_steps - s->n_steps - 1;
    int n_left = s->options.draft->config.n_ctx - (s->n_prompt + s->n_steps - 1);
    if (depth > left) depth = left;
    return depth > n_left ? n_left : depth;
}

/* The nodes from `first` on as a branch for one of the caches. */
static sd_branch branch_of(sd_beam_search* s, sd_cache* cache, int first, int n_logits) {
    const sd_beam_tree* t = &s->tree;
    return (sd_branch){.cache = cache,
                       .tokens = t->tokens + first,
                       .parents = t->parents + first,
                       .n_new = t->n_nodes - first,
                       .n_logits = n_logits};
}

static sd_stop_ids stop_of(const sd_beam_search* s) {
    return (sd_stop_ids){s->stop_ids, s->options.n_stop_ids};
}

/* Run the draft's beam search from the current hypotheses, whose nodes start at `first`; its choices become
 * nodes. The last step's choices are not read here. */
static sd_status run_draft(sd_beam_search* s, int first, int depth, sd_beam_record* record) {
    sd_beam_tree* t = &s->tree;
    int n = s->n_beams;
    memcpy(s->drafted, s->beams, (size_t)n * sizeof *s->beams);
    for (int level = first; depth > 0 && level < t->n_nodes; depth--) {
        const sd_branch branch = branch_of(s, &t->draft, t->n_draft_read, t->n_nodes - level);
        double begun = sd_now();
        sd_status status = sd_forward(&s->draft, &branch, 1);
        if (status != SD_OK) return status;
        record->draft_s += sd_now() - begun;
        record->n_draft_calls++;
        t->n_draft_read = t->n_nodes;
        n = sd_beam_step(s->drafted, n, s->draft.logits, s->draft.ld_logits, level,
                         s->options.target->config.n_vocab, stop_of(s), s->options.draft_width, s->better);
        level = t->n_nodes;
        for (int i = 0; i < n; i++)
            if (!s->better[i].ended)
                s->better[i].node =
                    sd_beam_tree_add(t, s->better[i].token, s->drafted[s->better[i].parent].node);
        swap(&s->drafted, &s->better);
    }
    return SD_OK;
}

/* Make one step of the target's search; the nodes from `first` on are evaluated. *known: every continuing
 * hypothesis is one of them. */
static sd_status advance(sd_beam_search* s, int first, int* known) {
    sd_status status = sd_interrupted();
    if (status != SD_OK) return status;
    int width = s->options.width, n_open = 0;
    int n = sd_beam_step(s->beams, s->n_beams, s->target.logits, s->target.ld_logits, first,
                         s->options.target->config.n_vocab, stop_of(s), width, s->next);
    if (n == 0) {
        status = sd_forward_check(&s->target, 0, s->target.max_rows);
        return status != SD_OK ? status : sd_fail(SD_ERR_OVERFLOW, "the target: the logits are not finite");
    }
    *known = 1;
    for (int i = 0; i < n; i++) {
        sd_beam* beam = &s->next[i];
        s->step_tokens[(ptrdiff_t)s->n_steps * width + i] = beam->token;
        s->step_parents[(ptrdiff_t)s->n_steps * width + i] = beam->parent;
        if (beam->ended) continue;
        n_open++;
        beam->parent_node = s->beams[beam->parent].node;
        beam->node = sd_beam_tree_find(&s->tree, first, beam->token, beam->parent_node);
        *known &= beam->node >= 0;
    }
    swap(&s->beams, &s->next);
    s->n_beams = n;
    s->n_steps++;
    s->ended = n_open == 0 || s->n_steps == s->max_steps;
    return SD_OK;
}

static sd_status run_round(sd_beam_search* s, sd_beam_record* record) {
    double begun = sd_now();
    sd_beam_tree* t = &s->tree;
    int first = t->n_nodes, depth = draft_depth(s), known = 1;
    t->drafting = depth > 0; /* drafting that has stopped never resumes */
    for (int i = 0; i < s->n_beams; i++)
        if (!s->beams[i].ended)
            s->beams[i].node = sd_beam_tree_add(t, s->beams[i].token, s->beams[i].parent_node);
    int n_read_again = t->n_nodes - first;
    sd_status status = run_draft(s, first, depth, record);
    if (status != SD_OK) return status;
    record->n_nodes = t->n_nodes - first;
    record->n_drafted = record->n_nodes - n_read_again;

    const sd_branch branch = branch_of(s, &t->target, first, record->n_nodes);
    double drafted = sd_now();
    status = sd_forward(&s->target, &branch, 1);
    if (status != SD_OK) return status;
    record->verify_s = sd_now() - drafted;

    int n_before = s->n_steps;
    while (status == SD_OK && known && !s->ended) status = advance(s, first, &known);
    if (status == SD_OK) status = sd_beam_tree_prune(t, s->beams, s->n_beams);
    record->n_levels = s->n_steps - n_before;
    record->other_s = sd_now() - begun - record->draft_s - record->verify_s;
    return status;
}

sd_status sd_beam_search_round(sd_beam_search* s, sd_beam_record* record, int* ended) {
    if (!s->ready) return sd_fail(SD_ERR_STATE, "the prompt has not been read, or a round has failed");
    *ended = s->ended;
    if (s->ended) return SD_OK;
    sd_beam_record done = {0};
    sd_status status = run_round(s, &done);
    s->ready = status == SD_OK; /* a failed round leaves nodes in the tree */
    if (status == SD_OK) *record = done;
    return status;
}

const sd_beam* sd_beam_search_beams(const sd_beam_search* s, int* n) {
    *n = s->n_beams;
    return s->beams;
}

int sd_beam_search_steps(const sd_beam_search* s) { return s->n_steps; }

int sd_beam_search_tokens(const sd_beam_search* s, int beam, int32_t* tokens) {
    int n = 0, width = s->options.width;
    for (int step = s->n_steps - 1, at = beam; step >= 0; step--) {
        int32_t token = s->step_tokens[(ptrdiff_t)step * width + at];
        if (token >= 0) tokens[n++] = token;
        at = s->step_parents[(ptrdiff_t)step * width + at];
    }
    for (int i = 0; i < n / 2; i++) { /* collected from the last to the first */
        int32_t last = tokens[n - 1 - i];
        tokens[n - 1 - i] = tokens[i];
        tokens[i] = last;
    }
    return n;
}
