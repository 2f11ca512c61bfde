#include "recurrent.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"
#include "pass.h"
#include "tensor_list.h"

/* Least panels of a product to share among threads: with fewer the caller finishes before the others
 * start. */
#define SHARED_PANELS 64

#define N_CELL_TENSORS 4
#define N_OTHER_TENSORS 3

static sd_status check(const sd_recurrent_shape* s) {
    SD_TRY(sd_check_range("n_vocab", s->n_vocab, 1, 1 << 26));
    SD_TRY(sd_check_range("n_draft_vocab", s->n_draft_vocab, 1, s->n_vocab));
    SD_TRY(sd_check_range("d_embed", s->d_embed, 1, 1 << 16));
    SD_TRY(sd_check_range("d_hidden", s->d_hidden, 1, 1 << 16));
    return sd_check_range("n_layers", s->n_layers, 1, SD_MAX_RECURRENT_LAYERS);
}

static int inputs_of(const sd_recurrent_shape* s, int layer) { return layer == 0 ? s->d_embed : s->d_hidden; }

static void list_tensors(sd_recurrent* r) {
    sd_tensor_list* list = &r->tensors;
    int n_gates = 3 * r->shape.d_hidden;
    sd_tensor_list_add_table(list, &r->embedding, "embedding.weight");
    for (int i = 0; i < r->shape.n_layers; i++) {
        sd_recurrent_cell* cell = &r->cells[i];
        sd_tensor_list_add_matrix(list, &cell->input, "cells.%d.weight_ih", i);
        sd_tensor_list_add_matrix(list, &cell->state, "cells.%d.weight_hh", i);
        sd_tensor_list_add_vector(list, cell->input_bias, n_gates, "cells.%d.bias_ih", i);
        sd_tensor_list_add_vector(list, cell->state_bias, n_gates, "cells.%d.bias_hh", i);
    }
    sd_tensor_list_add_matrix(list, &r->output, "output.weight");
    sd_tensor_list_add_vector(list, r->output_bias, r->shape.n_draft_vocab, "output.bias");
}

static void lay_out_weights(sd_recurrent* r, const int32_t* tokens) {
    const sd_recurrent_shape* s = &r->shape;
    sd_arena* arena = &r->arena;
    int n_gates = 3 * s->d_hidden, n_outputs = s->n_draft_vocab;
    r->tensors = sd_tensor_list_take(arena, N_CELL_TENSORS * s->n_layers + N_OTHER_TENSORS);
    sd_number number = r->format == SD_FORMAT_F32 ? SD_F32 : SD_BF16;
    r->embedding = sd_table_take(arena, number, s->n_vocab, s->d_embed);
    for (int i = 0; i < s->n_layers; i++) {
        sd_recurrent_cell* cell = &r->cells[i];
        cell->input = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_gates, inputs_of(s, i), 1);
        cell->state = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_gates, s->d_hidden, 1);
        cell->input_bias = sd_arena_take(arena, (size_t)n_gates, sizeof(float));
        cell->state_bias = sd_arena_take(arena, (size_t)n_gates, sizeof(float));
    }
    r->output = sd_matrix_take(arena, r->format, SD_LAYOUT_PANELS, n_outputs, s->d_hidden, 1);
    r->output_bias = sd_arena_take(arena, (size_t)n_outputs, sizeof(float));
    r->tokens = sd_arena_copy(arena, tokens, n_outputs, sizeof *tokens);
    if (arena->base != NULL) list_tensors(r);
}

sd_status sd_recurrent_create(const sd_recurrent_shape* shape, sd_format format, const int32_t* tokens,
                              sd_recurrent** out) {
    SD_TRY(check(shape));
    SD_TRY(sd_draft_tokens_check(tokens, shape->n_draft_vocab, shape->n_vocab));
    SD_NEW(sd_recurrent, r);
    r->shape = *shape;
    r->format = format;
    sd_status status = SD_ARENA_BUILD(&r->arena, lay_out_weights(r, tokens));
    if (status != SD_OK) {
        sd_recurrent_free(r);
        return status;
    }
    *out = r;
    return SD_OK;
}

void sd_recurrent_free(sd_recurrent* r) {
    if (r == NULL) return;
    sd_arena_free(&r->arena);
    sd_free(r);
}

/* --------------------------------------------------------------------------------------------- steps */

double sd_recurrent_step_work(const sd_recurrent* r) {
    const sd_recurrent_shape* s = &r->shape;
    double work = 0.0;
    for (int i = 0; i < s->n_layers; i++) work += 3.0 * s->d_hidden * (inputs_of(s, i) + s->d_hidden);
    return work;
}

sd_recurrent_scratch sd_recurrent_scratch_take(sd_arena* arena, const sd_recurrent* r, int max_rows,
                                               int n_threads) {
    const sd_recurrent_shape* s = &r->shape;
    size_t rows = (size_t)max_rows, hidden = (size_t)s->d_hidden;
    size_t widest = (size_t)(s->d_embed > s->d_hidden ? s->d_embed : s->d_hidden);
    ptrdiff_t ld_gates = sd_whole_panels(3 * s->d_hidden), ld_outputs = sd_whole_panels(s->n_draft_vocab);
    return SD_MAKE(sd_recurrent_scratch, .max_rows = max_rows, .n_threads = n_threads, .ld_gates = ld_gates,
                   .ld_outputs = ld_outputs, .rows = sd_arena_take(arena, rows, widest * sizeof(float)),
                   .states = sd_arena_take(arena, rows, hidden * sizeof(float)),
                   .prepared = sd_arena_take(arena, rows, sd_prepared_bytes(widest)),
                   .from_input = sd_arena_take(arena, rows, (size_t)ld_gates * sizeof(float)),
                   .from_state = sd_arena_take(arena, rows, (size_t)ld_gates * sizeof(float)),
                   .outputs = sd_arena_take(arena, rows, (size_t)ld_outputs * sizeof(float)));
}

/* y [n, n_out] = x · matrixᵀ + bias for rows x [n, n_in] of steps [n], without gaps. A row of y that is not
 * finite sets the failure of its step, and becomes 0. */
static void multiply(sd_recurrent_scratch* s, const sd_matrix* matrix, const float* bias, const float* x,
                     const sd_recurrent_step* steps, int n, float* y, ptrdiff_t ldy) {
    int shared = sd_matrix_panels(matrix->n_out) >= SHARED_PANELS;
    sd_pass pass = {.team = sd_team_open(shared ? s->n_threads : 1)};
    sd_pass_multiply_rows(
        &pass, x, matrix->n_in, s->prepared,
        (sd_product){.matrix = matrix, .bias = bias, .n_rows = n, .y = y, .ldy = ldy, .factor = 1.0f});
    sd_team_close(&pass.team);
    for (int i = 0; i < n; i++) {
        if (sd_all_finite(y + i * ldy, matrix->n_out)) continue;
        sd_failure_note(steps[i].failure,
                        sd_fail(SD_ERR_OVERFLOW, "the draft: a recurrent network's product is not finite"));
        memset(y + i * ldy, 0, (size_t)matrix->n_out * sizeof *y);
    }
}

void sd_recurrent_advance(const sd_recurrent* r, sd_recurrent_scratch* s, const sd_recurrent_step* steps,
                          int n) {
    if (n == 0) return;
    const sd_recurrent_shape* shape = &r->shape;
    size_t d_embed = (size_t)shape->d_embed, d_hidden = (size_t)shape->d_hidden;
    for (int i = 0; i < n; i++) sd_table_row(&r->embedding, steps[i].token, s->rows + (size_t)i * d_embed);
    for (int layer = 0; layer < shape->n_layers; layer++) {
        const sd_recurrent_cell* cell = &r->cells[layer];
        size_t at = (size_t)layer * d_hidden;
        for (int i = 0; i < n; i++)
            memcpy(s->states + (size_t)i * d_hidden, steps[i].from + at, d_hidden * sizeof(float));
        multiply(s, &cell->input, cell->input_bias, s->rows, steps, n, s->from_input, s->ld_gates);
        multiply(s, &cell->state, cell->state_bias, s->states, steps, n, s->from_state, s->ld_gates);
        for (int i = 0; i < n; i++) { /* the state is the next layer's input too */
            float* row = s->rows + (size_t)i * d_hidden;
            memcpy(row, s->states + (size_t)i * d_hidden, d_hidden * sizeof *row);
            sd_kernels_get()->gated_step(shape->d_hidden, s->from_input + i * s->ld_gates,
                                         s->from_state + i * s->ld_gates, row);
            memcpy(steps[i].to + at, row, d_hidden * sizeof *row);
        }
    }
}

void sd_recurrent_predict(const sd_recurrent* r, sd_recurrent_scratch* s, const sd_recurrent_step* steps,
                          int n, float* logits, ptrdiff_t ld_logits) {
    const sd_recurrent_shape* shape = &r->shape;
    size_t d_hidden = (size_t)shape->d_hidden, top = (size_t)(shape->n_layers - 1) * d_hidden;
    for (int i = 0; i < n; i++)
        memcpy(s->states + (size_t)i * d_hidden, steps[i].to + top, d_hidden * sizeof(float));
    const float* y = s->outputs;
    multiply(s, &r->output, r->output_bias, s->states, steps, n, s->outputs, s->ld_outputs);
    for (int i = 0; i < n; i++, y += s->ld_outputs, logits += ld_logits) {
        for (int token = 0; r->tokens != NULL && token < shape->n_vocab; token++) logits[token] = -INFINITY;
        sd_draft_tokens_scatter(r->tokens, shape->n_draft_vocab, y, logits);
    }
}

/* Number of last text positions whose states are kept. */
#define KEPT 128
/* Multiplications of one call that reads prompts: some hundredths of a second. */
#define SLICE 2e8

typedef struct history {
    int32_t* tokens; /* [n_text] the text that has been read */
    int n_read;
    int n_low;     /* states of n_low … n_read tokens are kept */
    float* states; /* [KEPT, n_layers, d_hidden] the state after n tokens has index n % KEPT */
    /* The prompt, until it has been read; borrowed. */
    const int32_t* prompt;
    int n_prompt;
    sd_failure* failure; /* of the sequence alone; borrowed */
    /* Nodes of the proposal that have been predicted, without the root, in reading order. */
    int n_pending;
    int32_t* pending_tokens;  /* [n_nodes] */
    int32_t* pending_parents; /* [n_nodes] earlier entries; -1: the root */
    float* pending_states;    /* [n_nodes, n_layers, d_hidden] */
    int32_t* slots;           /* [n_nodes + 1] pending index of each node of the proposal; -1: the root */
} history;

typedef struct recurrent_predictor {
    sd_predictor base; /* must stay first */
    const sd_recurrent* recurrent;
    int n_sequences, n_nodes, n_text;
    size_t size;        /* numbers of a state */
    history* histories; /* [n_sequences] */
    sd_recurrent_scratch scratch;
    int* cursors;             /* [n_sequences] nodes read of each entry of a batch */
    sd_recurrent_step* steps; /* [n_sequences · n_rows] */
    float* logits;            /* [n_sequences · n_rows, ld_logits] */
} recurrent_predictor;

static void lay_out(recurrent_predictor* r, const sd_prediction* of) {
    sd_arena* arena = &r->base.arena;
    size_t n = (size_t)r->n_sequences, nodes = (size_t)r->n_nodes, rows = n * (size_t)of->n_rows;
    size_t state = r->size * sizeof(float);
    r->histories = sd_arena_take(arena, n, sizeof *r->histories);
    r->scratch = sd_recurrent_scratch_take(arena, r->recurrent, (int)rows, of->drafting->n_threads);
    r->cursors = sd_arena_take(arena, n, sizeof *r->cursors);
    r->steps = sd_arena_take(arena, rows, sizeof *r->steps);
    r->base.ld_logits = sd_whole_panels(r->recurrent->shape.n_vocab);
    r->base.logits = r->logits = sd_arena_take(arena, rows, (size_t)r->base.ld_logits * sizeof *r->logits);
    for (size_t i = 0; i < n; i++) {
        const history one = {
            .tokens = sd_arena_take(arena, (size_t)r->n_text, sizeof *one.tokens),
            .states = sd_arena_take(arena, KEPT, state),
            .pending_tokens = sd_arena_take(arena, nodes, sizeof *one.pending_tokens),
            .pending_parents = sd_arena_take(arena, nodes, sizeof *one.pending_parents),
            .pending_states = sd_arena_take(arena, nodes, state),
            .slots = sd_arena_take(arena, nodes + 1, sizeof *one.slots),
        };
        if (arena->base != NULL) r->histories[i] = one;
    }
}

static float* state_of(const recurrent_predictor* r, const history* h, int n) {
    return h->states + (size_t)(n % KEPT) * r->size;
}

/* The state of a pending node, or of the text for -1. */
static float* pending_state(const recurrent_predictor* r, const history* h, int32_t slot) {
    return slot < 0 ? state_of(r, h, h->n_read) : h->pending_states + (size_t)slot * r->size;
}

/* Cut to the first n tokens, or to none if their state is no longer kept. */
static void cut(const recurrent_predictor* r, history* h, int n) {
    h->n_pending = 0;
    if (n > 0 && n >= h->n_low && n <= h->n_read) {
        h->n_read = n;
        return;
    }
    h->n_read = h->n_low = 0;
    memset(state_of(r, h, 0), 0, r->size * sizeof(float));
}

/* Append a token whose state exists. */
static void append(history* h, int32_t token) {
    h->tokens[h->n_read++] = token;
    if (h->n_low <= h->n_read - KEPT) h->n_low = h->n_read - KEPT + 1;
}

/* Number of read tokens that agree with text [n]. */
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

static sd_recurrent_step next_step(const recurrent_predictor* r, const history* h, const int32_t* text) {
    return (sd_recurrent_step){text[h->n_read], state_of(r, h, h->n_read), state_of(r, h, h->n_read + 1),
                               h->failure};
}

/* Read one token of each unread prompt; *n: their number. */
static sd_status read_tokens(recurrent_predictor* r, int* n) {
    *n = 0;
    for (int i = 0; i < r->n_sequences; i++) {
        const history* h = &r->histories[i];
        if (h->n_read < h->n_prompt) r->steps[(*n)++] = next_step(r, h, h->prompt);
    }
    SD_TRY(sd_interrupted());
    sd_recurrent_advance(r->recurrent, &r->scratch, r->steps, *n);
    for (int i = 0; i < r->n_sequences; i++) {
        history* h = &r->histories[i];
        if (h->n_read < h->n_prompt) append(h, h->prompt[h->n_read]);
    }
    return SD_OK;
}

static sd_status read_prompts(sd_predictor* base, int* done) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    double work = sd_recurrent_step_work(r->recurrent);
    int n = 1;
    for (double left = SLICE; left > 0.0 && n > 0; left -= work * n) SD_TRY(read_tokens(r, &n));
    *done = n == 0;
    for (int i = 0; i < r->n_sequences && *done; i++) r->histories[i].n_prompt = 0;
    return SD_OK;
}

/* The first pending child with this token of a pending node (-1: the text); -1: none. */
static int32_t child_of(const history* h, int32_t slot, int32_t token) {
    for (int32_t i = slot + 1; i < h->n_pending; i++)
        if (h->pending_parents[i] == slot && h->pending_tokens[i] == token) return i;
    return -1;
}

/* Append the states of accepted nodes to the text; the rest is read later, for all sequences together. */
static sd_status follow(sd_predictor* base, sd_proposal* p) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    history* h = &r->histories[p->sequence];
    int n = agreement(h, p->text, p->n_text);
    if (n < h->n_read) cut(r, h, n);
    for (int32_t slot = -1; h->n_read < p->n_text; append(h, p->text[h->n_read])) {
        if ((slot = child_of(h, slot, p->text[h->n_read])) < 0) break;
        memcpy(state_of(r, h, h->n_read + 1), pending_state(r, h, slot), r->size * sizeof(float));
    }
    h->n_pending = 0;
    return SD_OK;
}

/* Read one more token of each text of the batch that is not read to its end; *n: their number. */
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

/* Read the next nodes of each entry of the batch whose parents have been read; *n: their number. */
static void read_nodes(recurrent_predictor* r, const sd_draft_nodes* batch, int n_batch, int* n) {
    *n = 0;
    for (int i = 0; i < n_batch; i++) {
        const sd_tree* tree = &batch[i].proposal->tree;
        history* h = &r->histories[batch[i].proposal->sequence];
        int n_before = h->n_pending;
        for (; r->cursors[i] < batch[i].n_nodes; r->cursors[i]++) {
            int32_t node = batch[i].nodes[r->cursors[i]], slot = h->n_pending;
            if (node == 0) {
                h->slots[0] = -1;
                continue;
            }
            int32_t parent = h->slots[tree->parents[node]];
            if (parent >= n_before) break;
            h->pending_tokens[slot] = tree->tokens[node];
            h->pending_parents[slot] = parent;
            h->slots[node] = slot;
            h->n_pending++;
            r->steps[(*n)++] = (sd_recurrent_step){tree->tokens[node], pending_state(r, h, parent),
                                                   pending_state(r, h, slot), h->failure};
        }
    }
    sd_recurrent_advance(r->recurrent, &r->scratch, r->steps, *n);
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    recurrent_predictor* r = (recurrent_predictor*)base;
    for (int n_steps = 1; n_steps > 0;) SD_TRY(catch_up(r, batch, n, &n_steps));
    for (int i = 0; i < n; i++) r->cursors[i] = 0;
    for (int n_steps = 1; n_steps > 0;) read_nodes(r, batch, n, &n_steps);
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        const history* h = &r->histories[batch[i].proposal->sequence];
        for (int j = 0; j < batch[i].n_nodes; j++)
            r->steps[n_rows++] = (sd_recurrent_step){.to = pending_state(r, h, h->slots[batch[i].nodes[j]]),
                                                     .failure = h->failure};
    }
    sd_recurrent_predict(r->recurrent, &r->scratch, r->steps, n_rows, r->logits, base->ld_logits);
    return SD_OK;
}

static void share(sd_predictor* base, const sd_proposal* p, int32_t duplicate, int32_t node) {
    int32_t* slots = ((recurrent_predictor*)base)->histories[p->sequence].slots;
    slots[duplicate] = slots[node];
}

sd_status sd_recurrent_predictor_make(const void* options, const sd_prediction* of, sd_predictor** out) {
    const sd_recurrent* recurrent = options;
    int n_vocab = of->drafting->n_vocab;
    if (recurrent->shape.n_vocab != n_vocab)
        return sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                       recurrent->shape.n_vocab, n_vocab);
    SD_TRY(sd_pool_reserve(of->drafting->n_threads));
    SD_NEW(recurrent_predictor, r);
    *r = SD_MAKE(recurrent_predictor,
                 .base = SD_MAKE(sd_predictor, .begin = begin, .read = read_prompts, .follow = follow,
                                 .predict = predict, .share = share, .free = sd_predictor_release),
                 .recurrent = recurrent, .n_sequences = of->drafting->n_sequences, .n_nodes = of->n_nodes,
                 .n_text = of->n_text, .size = sd_recurrent_state_size(recurrent));
    return sd_predictor_made(&r->base, SD_ARENA_BUILD(&r->base.arena, lay_out(r, of)), out);
}
