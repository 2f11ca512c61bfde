#include "session.h"

#include <string.h>

#include "clock.h"

typedef struct sequence {
    sd_cache cache; /* of the target; holds text[0 … n_text - 2] */
    int32_t* text;  /* [max_text] prompt and new tokens */
    int n_text, max_text;
    int n_prefilled; /* prompt tokens in the target's cache */
    int draft_ready; /* the drafter has read the prompt */
    int finished;
    sd_stream stream;
} sequence;

struct sd_session {
    sd_session_options options;
    sd_drafter* drafter;    /* owned; NULL: plain decoding */
    sd_workspace workspace; /* of the target */
    sd_arena arena;         /* owns the arrays below */
    int n_sequences, max_nodes;
    int ready;              /* the prompts are in, and no round has failed */
    sequence* sequences;    /* [n_sequences] */
    sd_proposal* proposals; /* [n_sequences] of the unfinished sequences, first n_records */
    sd_branch* branches;    /* [n_sequences] */
    sd_record* records;     /* [n_sequences] */
    int n_records;
    sd_distribution* target; /* [max_nodes] of the sequence being verified */
    int32_t* kept;           /* [max_nodes] the root and the accepted path of a sequence */
    double* uniforms;        /* [max_nodes + 1] */
    double* residual;        /* [n_vocab] */
    int32_t* order;          /* [n_vocab] */
    double draft_s, verify_s, other_s;
};

/* Dense probabilities are needed for sampling only; at temperature 0 all mass is on one token. */
static double* take_probs(sd_session* s, size_t n_rows) {
    size_t n_vocab = (size_t)s->options.target->config.n_vocab;
    return sd_arena_take(&s->arena, n_rows, n_vocab * sizeof(double));
}

static void lay_out(sd_session* s, const int* max_text) {
    sd_arena* arena = &s->arena;
    size_t n = (size_t)s->n_sequences, nodes = (size_t)s->max_nodes;
    size_t n_vocab = (size_t)s->options.target->config.n_vocab;
    s->sequences = sd_arena_take(arena, n, sizeof *s->sequences);
    s->proposals = sd_arena_take(arena, n, sizeof *s->proposals);
    s->branches = sd_arena_take(arena, n, sizeof *s->branches);
    s->records = sd_arena_take(arena, n, sizeof *s->records);
    s->target = sd_arena_take(arena, nodes, sizeof *s->target);
    s->kept = sd_arena_take(arena, nodes, sizeof *s->kept);
    s->uniforms = sd_arena_take(arena, nodes + 1, sizeof *s->uniforms);
    s->residual = take_probs(s, 1);
    s->order = sd_arena_take(arena, n_vocab, sizeof *s->order);
    double* target_probs = take_probs(s, nodes);
    for (size_t i = 0; i < nodes && s->target; i++) s->target[i].probs = target_probs + i * n_vocab;
    for (size_t i = 0; i < n; i++) {
        int32_t* text = sd_arena_take(arena, (size_t)max_text[i], sizeof *text);
        int32_t* tokens = sd_arena_take(arena, nodes, sizeof *tokens);
        int32_t* parents = sd_arena_take(arena, nodes, sizeof *parents);
        sd_distribution* drawn_from = sd_arena_take(arena, nodes, sizeof *drawn_from);
        double* probs = take_probs(s, s->drafter ? nodes : 0);
        int32_t* path = sd_arena_take(arena, nodes, sizeof *path);
        double* betas = sd_arena_take(arena, nodes, sizeof *betas);
        if (arena->base == NULL) continue;
        s->sequences[i].text = text;
        s->sequences[i].max_text = max_text[i];
        s->proposals[i].tree = (sd_tree){.tokens = tokens, .parents = parents, .drawn_from = drawn_from};
        for (size_t j = 0; j < nodes && s->drafter; j++) drawn_from[j].probs = probs + j * n_vocab;
        s->records[i].verdict = (sd_verdict){.path = path, .betas = betas};
    }
}

static sd_status check(const sd_session_options* o, const sd_prompt* prompts, int n) {
    const sd_config* c = &o->target->config;
    if (n < 1) return sd_fail(SD_ERR_VALUE, "there are no prompts");
    sd_status status = sd_gamma_check(o->gamma);
    if (status != SD_OK) return status;
    if (o->max_new_tokens < 1)
        return sd_fail(SD_ERR_VALUE, "max_new_tokens is %d, expected at least 1", o->max_new_tokens);
    for (int i = 0; i < n; i++) {
        if (prompts[i].n < 1 || prompts[i].n >= c->n_ctx)
            return sd_fail(SD_ERR_CONTEXT, "prompt %d has %d tokens, expected 1 to %d (the context is %d)", i,
                           prompts[i].n, c->n_ctx - 1, c->n_ctx);
        for (int j = 0; j < prompts[i].n; j++) {
            if (prompts[i].tokens[j] < 0 || prompts[i].tokens[j] >= c->n_vocab)
                return sd_fail(SD_ERR_VALUE, "prompt %d: token %d is %d, expected 0 to %d", i, j,
                               (int)prompts[i].tokens[j], c->n_vocab - 1);
        }
    }
    return sd_sampling_check(&o->sampling);
}

sd_status sd_session_create(const sd_session_options* options, const sd_prompt* prompts, int n,
                            sd_drafter* drafter, sd_session** out) {
    sd_session* s = NULL;
    int* max_text = NULL;
    sd_status status = check(options, prompts, n);
    if (status != SD_OK) goto fail;
    status = SD_ERR_MEMORY;
    if ((s = sd_alloc(sizeof *s)) == NULL) goto fail;
    s->drafter = drafter; /* from here on it is freed with the session */
    if ((max_text = sd_alloc((size_t)n * sizeof *max_text)) == NULL) goto fail;
    s->options = *options;
    s->n_sequences = n;
    s->max_nodes = drafter ? options->gamma + 1 : 1;
    int n_ctx = options->target->config.n_ctx, longest = 0;
    for (int i = 0; i < n; i++) {
        long wanted = (long)prompts[i].n + options->max_new_tokens;
        max_text[i] = wanted < n_ctx ? (int)wanted : n_ctx;
        longest = max_text[i] > longest ? max_text[i] : longest;
    }
    lay_out(s, max_text);
    if ((status = sd_arena_commit(&s->arena)) != SD_OK) goto fail;
    lay_out(s, max_text);
    for (int i = 0; i < n; i++) {
        sequence* q = &s->sequences[i];
        memcpy(q->text, prompts[i].tokens, (size_t)prompts[i].n * sizeof *q->text);
        q->n_text = prompts[i].n;
        q->stream = prompts[i].stream;
        q->draft_ready = drafter == NULL;
        if ((status = sd_cache_create(&q->cache, options->target, q->max_text + s->max_nodes)) != SD_OK)
            goto fail;
    }
    int rows = n * s->max_nodes;
    status =
        sd_workspace_create(&s->workspace, options->target, options->n_threads,
                            rows > SD_PROMPT_SLICE ? rows : SD_PROMPT_SLICE, rows, longest + s->max_nodes);
    if (status != SD_OK) goto fail;
    sd_free(max_text);
    *out = s;
    return SD_OK;
fail:
    sd_free(max_text);
    if (s != NULL)
        sd_session_free(s);
    else if (drafter != NULL)
        drafter->free(drafter);
    return status;
}

void sd_session_free(sd_session* s) {
    if (s == NULL) return;
    if (s->drafter) s->drafter->free(s->drafter);
    for (int i = 0; s->arena.base && i < s->n_sequences; i++) sd_cache_free(&s->sequences[i].cache);
    sd_workspace_free(&s->workspace);
    sd_arena_free(&s->arena);
    sd_free(s);
}

sd_status sd_session_prefill(sd_session* s, int* done) {
    *done = 0;
    for (int i = 0; i < s->n_sequences; i++) {
        sequence* q = &s->sequences[i];
        /* the last token of the prompt is the root of the first round */
        if (q->n_prefilled < q->n_text - 1)
            return sd_prefill_slice(&s->workspace, &q->cache, q->text, q->n_text - 1, &q->n_prefilled, 0);
        if (!q->draft_ready) return s->drafter->begin(s->drafter, i, q->text, q->n_text, &q->draft_ready);
    }
    *done = 1;
    s->ready = 1;
    return SD_OK;
}

/* Collect the unfinished sequences and say how far each may guess: a round adds at most one token
 * more than it guesses, and the text must not pass its length. */
static void open_round(sd_session* s) {
    s->n_records = 0;
    for (int i = 0; i < s->n_sequences; i++) {
        const sequence* q = &s->sequences[i];
        if (q->finished) continue;
        sd_proposal* p = &s->proposals[s->n_records];
        int room = q->max_text - q->n_text - 1;
        p->sequence = i;
        p->text = q->text;
        p->n_text = q->n_text;
        p->stream = q->stream;
        p->budget = s->max_nodes - 1 < room ? s->max_nodes - 1 : room;
        p->tree.n_nodes = 1;
        p->tree.tokens[0] = q->text[q->n_text - 1];
        p->tree.parents[0] = -1;
        s->n_records++;
    }
}

static sd_status run_target(sd_session* s) {
    ptrdiff_t row = 0;
    for (int i = 0; i < s->n_records; i++) {
        const sd_proposal* p = &s->proposals[i];
        s->branches[i] = (sd_branch){.cache = &s->sequences[p->sequence].cache,
                                     .tokens = p->tree.tokens,
                                     .parents = p->tree.parents,
                                     .n_new = p->tree.n_nodes,
                                     .n_logits = p->tree.n_nodes};
        s->records[i].sequence = p->sequence;
        s->records[i].tree = p->tree;
        s->records[i].logits_row = row;
        row += p->tree.n_nodes;
    }
    return sd_forward(&s->workspace, s->branches, s->n_records);
}

static void verify(sd_session* s, sd_record* record) {
    int n_vocab = s->options.target->config.n_vocab, n_nodes = record->tree.n_nodes;
    const sequence* q = &s->sequences[record->sequence];
    uint32_t position = (uint32_t)q->n_text;
    for (int i = 0; i < n_nodes; i++) {
        const float* logits = s->workspace.logits + (record->logits_row + i) * s->workspace.ld_logits;
        sd_standardise(&s->options.sampling, n_vocab, logits, s->order, &s->target[i]);
        s->uniforms[i] = sd_uniform(q->stream, position, SD_DRAW_ACCEPT, (uint32_t)i);
    }
    s->uniforms[n_nodes] = sd_uniform(q->stream, position, SD_DRAW_SAMPLE, 0);
    sd_verify_rejection(&record->tree, s->target, n_vocab, s->uniforms, s->residual, &record->verdict);
}

/* Keep the accepted path in both caches and append the new tokens. */
static sd_status commit(sd_session* s, const sd_record* record) {
    sequence* q = &s->sequences[record->sequence];
    const sd_verdict* v = &record->verdict;
    s->kept[0] = 0; /* the root */
    memcpy(s->kept + 1, v->path, (size_t)v->n_path * sizeof *s->kept);
    sd_status status = sd_cache_keep(&q->cache, s->kept, v->n_path + 1);
    if (status == SD_OK && s->drafter)
        status = s->drafter->commit(s->drafter, record->sequence, v->path, v->n_path);
    if (status != SD_OK) return status;
    for (int i = 0; i < v->n_path; i++) q->text[q->n_text++] = record->tree.tokens[v->path[i]];
    q->text[q->n_text++] = v->token;
    q->finished = q->n_text >= q->max_text;
    return SD_OK;
}

sd_status sd_session_round(sd_session* s) {
    if (!s->ready) return sd_fail(SD_ERR_STATE, "the prompts have not been read, or a round has failed");
    double begun = sd_now();
    open_round(s);
    s->draft_s = s->verify_s = s->other_s = 0.0;
    if (s->n_records == 0) return SD_OK;
    s->ready = 0; /* until the round is through: a failed one leaves nodes behind */
    sd_status status = SD_OK;
    if (s->drafter) status = s->drafter->propose(s->drafter, s->proposals, s->n_records);
    if (status != SD_OK) return status;
    double drafted = sd_now();
    status = run_target(s);
    if (status != SD_OK) return status;
    double verified = sd_now();
    for (int i = 0; i < s->n_records && status == SD_OK; i++) {
        verify(s, &s->records[i]);
        status = commit(s, &s->records[i]);
    }
    s->draft_s = s->drafter ? drafted - begun : 0.0;
    s->verify_s = verified - drafted;
    s->other_s = sd_now() - begun - s->draft_s - s->verify_s;
    s->ready = status == SD_OK;
    return status;
}

const sd_record* sd_session_records(const sd_session* s, int* n) {
    *n = s->n_records;
    return s->records;
}

const float* sd_session_logits(const sd_session* s, ptrdiff_t* stride) {
    *stride = s->workspace.ld_logits;
    return s->workspace.logits;
}

void sd_session_times(const sd_session* s, double* draft_s, double* verify_s, double* other_s) {
    *draft_s = s->draft_s;
    *verify_s = s->verify_s;
    *other_s = s->other_s;
}

sd_status sd_session_finish(sd_session* s, int sequence) {
    if (sequence < 0 || sequence >= s->n_sequences)
        return sd_fail(SD_ERR_VALUE, "sequence is %d, expected 0 to %d", sequence, s->n_sequences - 1);
    s->sequences[sequence].finished = 1;
    return SD_OK;
}
