#include "recurrent_predictor.h"

#include <string.h>

#include "interrupt.h"

/* Lengths of the text whose states are kept. */
#define KEPT 128
/* Multiplications of one call that reads prompts: some hundredths of a second. */
#define SLICE 2e8

/* What is known of one sequence. */
typedef struct history {
    int32_t* tokens; /* [n_text] of the text that has been read */
    int n_read;
    int n_low;     /* states of n_low … n_read tokens are there */
    float* states; /* [KEPT, n_layers, d_hidden] the state of n tokens is number n % KEPT */
    /* The prompt, until it has been read; borrowed. */
    const int32_t* prompt;
    int n_prompt;
    sd_failure* failure; /* of the sequence alone; borrowed */
    /* Nodes of the proposal that have been asked for, without the root, in the order of their reading. */
    int n_pending;
    int32_t* pending_tokens;  /* [n_nodes] */
    int32_t* pending_parents; /* [n_nodes] earlier ones; -1: the root */
    float* pending_states;    /* [n_nodes, n_layers, d_hidden] */
    int32_t* places; /* [n_nodes + 1] of the proposal's nodes: which of these they are; -1: the root */
} history;

typedef struct recurrent_predictor {
    sd_predictor base; /* must stay first */
    const sd_recurrent* recurrent;
    int n_sequences, n_nodes, n_text;
    size_t size;        /* numbers of a state */
    sd_arena arena;     /* owns the arrays below */
    history* histories; /* [n_sequences] */
    sd_recurrent_scratch scratch;
    int* cursors;             /* [n_sequences] of the entries of a batch: nodes that have been read */
    sd_recurrent_step* steps; /* [n_sequences · n_rows] */
    float* logits;            /* [n_sequences · n_rows, ld_logits] */
} recurrent_predictor;

static void lay_out(recurrent_predictor* r, const sd_prediction* of) {
    sd_arena* arena = &r->arena;
    size_t n = (size_t)r->n_sequences, nodes = (size_t)r->n_nodes, rows = n * (size_t)of->n_rows;
    size_t state = r->size * sizeof(float);
    r->histories = sd_arena_take(arena, n, sizeof *r->histories);
    r->scratch = sd_recurrent_scratch_take(arena, r->recurrent, (int)rows, of->drafting->n_threads);
    r->cursors = sd_arena_take(arena, n, sizeof *r->cursors);
    r->steps = sd_arena_take(arena, rows, sizeof *r->steps);
    r->base.ld_logits = sd_whole_panels(r->recurrent->shape.n_vocab);
    r->logits = sd_arena_take(arena, rows, (size_t)r->base.ld_logits * sizeof *r->logits);
    for (size_t i = 0; i < n; i++) {
        const history one = {
            .tokens = sd_arena_take(arena, (size_t)r->n_text, sizeof *one.tokens),
            .states = sd_arena_take(arena, KEPT, state),
            .pending_tokens = sd_arena_take(arena, nodes, sizeof *one.pending_tokens),
            .pending_parents = sd_arena_take(arena, nodes, sizeof *one.pending_parents),
            .pending_states = sd_arena_take(arena, nodes, state),
            .places = sd_arena_take(arena, nodes + 1, sizeof *one.places),
        };
        if (arena->base != NULL) r->histories[i] = one;
    }
}

/* The state of the first n tokens. */
static float* state_of(const recurrent_predictor* r, const history* h, int n) {
    return h->states + (size_t)(n % KEPT) * r->size;
}

/* The state of a pending node, or of the text for -1. */
static float* pending_state(const recurrent_predictor* r, const history* h, int32_t place) {
    return place < 0 ? state_of(r, h, h->n_read) : h->pending_states + (size_t)place * r->size;
}

/* Go back to the first n tokens, or to none where their state is no longer there. */
static void cut(const recurrent_predictor* r, history* h, int n) {
    h->n_pending = 0;
    if (n > 0 && n >= h->n_low && n <= h->n_read) {
        h->n_read = n;
        return;
    }
    h->n_read = h->n_low = 0;
    memset(state_of(r, h, 0), 0, r->size * sizeof(float));
}

/* The text has another token, whose state is there. */
static void append(history* h, int32_t token) {
    h->tokens[h->n_read++] = token;
    if (h->n_low <= h->n_read - KEPT) h->n_low = h->n_read - KEPT + 1;
}

/* How many tokens that have been read are the first of text [n]. */
static int agreement(const history* h, const int32_t* text, int n) {
    int at = 0;
    while (at < h->n_read && at < n && h->tokens[at] == text[at]) at++;
    return at;
}

static void begin(sd_predictor* base, int sequence, const sd_prompt* prompt) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    history* h = &r->histories[sequence];
    h->prompt = prompt->tokens;
    h->n_prompt = prompt->n;
    h->failure = prompt->failure;
    cut(r, h, agreement(h, prompt->tokens, prompt->n));
}

/* The step that reads the next token of a text. */
static sd_recurrent_step next_step(const recurrent_predictor* r, const history* h, const int32_t* text) {
    return (sd_recurrent_step){text[h->n_read], state_of(r, h, h->n_read), state_of(r, h, h->n_read + 1),
                               h->failure};
}

/* One token of each prompt that has not been read. Returns how many these are in *n. */
static sd_status read_tokens(recurrent_predictor* r, int* n) {
    *n = 0;
    for (int i = 0; i < r->n_sequences; i++) {
        const history* h = &r->histories[i];
        if (h->n_read < h->n_prompt) r->steps[(*n)++] = next_step(r, h, h->prompt);
    }
    sd_status status = sd_interrupted();
    if (status == SD_OK) sd_recurrent_advance(r->recurrent, &r->scratch, r->steps, *n);
    for (int i = 0; i < r->n_sequences && status == SD_OK; i++) {
        history* h = &r->histories[i];
        if (h->n_read < h->n_prompt) append(h, h->prompt[h->n_read]);
    }
    return status;
}

static sd_status read_prompts(sd_predictor* base, int* done) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    double work = sd_recurrent_step_work(r->recurrent);
    int n = 1;
    for (double left = SLICE; left > 0.0 && n > 0; left -= work * n) {
        sd_status status = read_tokens(r, &n);
        if (status != SD_OK) return status;
    }
    *done = n == 0;
    for (int i = 0; i < r->n_sequences && *done; i++) r->histories[i].n_prompt = 0;
    return SD_OK;
}

/* The first pending child of a pending node, -1 for the text, with this token; -1 if there is none. */
static int32_t child_of(const history* h, int32_t place, int32_t token) {
    for (int32_t i = place + 1; i < h->n_pending; i++)
        if (h->pending_parents[i] == place && h->pending_tokens[i] == token) return i;
    return -1;
}

/* Nodes that became text are text; what is still to be read is read later, for all sequences together. */
static sd_status follow(sd_predictor* base, sd_proposal* p) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    history* h = &r->histories[p->sequence];
    int n = agreement(h, p->text, p->n_text);
    if (n < h->n_read) cut(r, h, n);
    for (int32_t place = -1; h->n_read < p->n_text; append(h, p->text[h->n_read])) {
        if ((place = child_of(h, place, p->text[h->n_read])) < 0) break;
        memcpy(state_of(r, h, h->n_read + 1), pending_state(r, h, place), r->size * sizeof(float));
    }
    h->n_pending = 0;
    return SD_OK;
}

/* Read one token more of each text of the batch that has not been read to its end; *n: how many these are. */
static sd_status catch_up(recurrent_predictor* r, const sd_draft_nodes* batch, int n_batch, int* n) {
    *n = 0;
    for (int i = 0; i < n_batch; i++) {
        const sd_proposal* p = batch[i].proposal;
        const history* h = &r->histories[p->sequence];
        if (h->n_read < p->n_text) r->steps[(*n)++] = next_step(r, h, p->text);
    }
    sd_status status = sd_interrupted();
    if (status == SD_OK) sd_recurrent_advance(r->recurrent, &r->scratch, r->steps, *n);
    for (int i = 0; i < n_batch && status == SD_OK; i++) {
        const sd_proposal* p = batch[i].proposal;
        history* h = &r->histories[p->sequence];
        if (h->n_read < p->n_text) append(h, p->text[h->n_read]);
    }
    return status;
}

/* Read those next nodes of each entry of the batch whose parents have been read before; *n: how many these
 * are. */
static void read_nodes(recurrent_predictor* r, const sd_draft_nodes* batch, int n_batch, int* n) {
    *n = 0;
    for (int i = 0; i < n_batch; i++) {
        const sd_tree* tree = &batch[i].proposal->tree;
        history* h = &r->histories[batch[i].proposal->sequence];
        int n_before = h->n_pending;
        for (; r->cursors[i] < batch[i].n_nodes; r->cursors[i]++) {
            int32_t node = batch[i].nodes[r->cursors[i]], place = h->n_pending;
            if (node == 0) {
                h->places[0] = -1;
                continue;
            }
            int32_t parent = h->places[tree->parents[node]];
            if (parent >= n_before) break;
            h->pending_tokens[place] = tree->tokens[node];
            h->pending_parents[place] = parent;
            h->places[node] = place;
            h->n_pending++;
            r->steps[(*n)++] = (sd_recurrent_step){tree->tokens[node], pending_state(r, h, parent),
                                                   pending_state(r, h, place), h->failure};
        }
    }
    sd_recurrent_advance(r->recurrent, &r->scratch, r->steps, *n);
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    sd_status status = SD_OK;
    for (int n_steps = 1; n_steps > 0 && status == SD_OK;) status = catch_up(r, batch, n, &n_steps);
    if (status != SD_OK) return status;
    for (int i = 0; i < n; i++) r->cursors[i] = 0;
    for (int n_steps = 1; n_steps > 0;) read_nodes(r, batch, n, &n_steps);
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        const history* h = &r->histories[batch[i].proposal->sequence];
        for (int j = 0; j < batch[i].n_nodes; j++)
            r->steps[n_rows++] = (sd_recurrent_step){.to = pending_state(r, h, h->places[batch[i].nodes[j]]),
                                                     .failure = h->failure};
    }
    sd_recurrent_predict(r->recurrent, &r->scratch, r->steps, n_rows, r->logits, base->ld_logits);
    return SD_OK;
}

static void share(sd_predictor* base, const sd_proposal* p, int32_t duplicate, int32_t node) {
    int32_t* places = ((recurrent_predictor*)base)->histories[p->sequence].places;
    places[duplicate] = places[node];
}

static void release(sd_predictor* base) {
    sd_arena_free(&((recurrent_predictor*)base)->arena);
    sd_free(base);
}

sd_status sd_recurrent_predictor_make(const void* options, const sd_prediction* of, sd_predictor** out) {
    const sd_recurrent* recurrent = options;
    int n_vocab = of->drafting->n_vocab;
    if (recurrent->shape.n_vocab != n_vocab)
        return sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                       recurrent->shape.n_vocab, n_vocab);
    sd_status status = sd_pool_reserve(of->drafting->n_threads);
    if (status != SD_OK) return status;
    recurrent_predictor* r = sd_alloc(sizeof *r);
    if (r == NULL) return SD_ERR_MEMORY;
    *r = (recurrent_predictor){.base = {.begin = begin,
                                        .read = read_prompts,
                                        .follow = follow,
                                        .predict = predict,
                                        .share = share,
                                        .free = release},
                               .recurrent = recurrent,
                               .n_sequences = of->drafting->n_sequences,
                               .n_nodes = of->n_nodes,
                               .n_text = of->n_text,
                               .size = sd_recurrent_state_size(recurrent)};
    status = SD_ARENA_BUILD(&r->arena, lay_out(r, of));
    if (status != SD_OK) {
        release(&r->base);
        return status;
    }
    r->base.logits = r->logits;
    *out = &r->base;
    return SD_OK;
}
