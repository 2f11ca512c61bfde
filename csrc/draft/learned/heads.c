#include "heads.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"
#include "pass.h"
#include "tensor_list.h"

#define MAX_D_MODEL (1 << 20) /* so that the input size of every head fits an int */

/* Take the arrays of head k = 1, 2, …; without memory while the arena is counting. */
static sd_head take_head(sd_arena* arena, const sd_heads_config* c, int k) {
    int d = c->d_model;
    sd_head head = {.blocks = sd_arena_take(arena, (size_t)c->n_blocks, sizeof *head.blocks),
                    .biases = sd_arena_take(arena, (size_t)c->n_blocks, sizeof *head.biases)};
    if (c->see_draft_tokens)
        head.input = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, d, (1 + k) * d, 1);
    for (int b = 0; b < c->n_blocks; b++) {
        sd_matrix block = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, d, d, 1);
        float* bias = sd_arena_take(arena, (size_t)d, sizeof *bias);
        if (arena->base != NULL) head.blocks[b] = block, head.biases[b] = bias;
    }
    if (!c->shared_output)
        head.output = sd_matrix_take(arena, c->format, SD_LAYOUT_PANELS, c->n_draft_vocab, d, 1);
    return head;
}

/* List the tensors of head k = 1, 2, … by their names in the folder of a draft. */
static void list_head(sd_tensor_list* list, const sd_heads_config* c, sd_head* head, int k) {
    if (c->see_draft_tokens) sd_tensor_list_add_matrix(list, &head->input, "heads.%d.input.weight", k - 1);
    for (int b = 0; b < c->n_blocks; b++) {
        sd_tensor_list_add_matrix(list, &head->blocks[b], "heads.%d.blocks.%d.weight", k - 1, b);
        sd_tensor_list_add_vector(list, head->biases[b], c->d_model, "heads.%d.blocks.%d.bias", k - 1, b);
    }
    if (!c->shared_output) sd_tensor_list_add_matrix(list, &head->output, "heads.%d.output.weight", k - 1);
}

static void lay_out_weights(sd_heads* heads, const int32_t* tokens) {
    sd_arena* arena = &heads->arena;
    const sd_heads_config* c = &heads->config;
    heads->tensors = sd_tensor_list_take(arena, c->n_heads * (2 + 2 * c->n_blocks));
    heads->heads = sd_arena_take(arena, (size_t)c->n_heads, sizeof *heads->heads);
    heads->tokens = sd_arena_copy(arena, tokens, c->n_draft_vocab, sizeof *tokens);
    for (int k = 1; k <= c->n_heads; k++) {
        sd_head head = take_head(arena, c, k);
        if (arena->base == NULL) continue;
        heads->heads[k - 1] = head;
        list_head(&heads->tensors, c, &heads->heads[k - 1], k);
    }
}

static sd_status check_config(const sd_heads_config* c, const int32_t* tokens) {
    SD_TRY(sd_check_range("n_heads", c->n_heads, 1, SD_MAX_HEADS));
    SD_TRY(sd_check_range("n_blocks", c->n_blocks, 0, SD_MAX_HEAD_BLOCKS));
    SD_TRY(sd_check_range("d_model", c->d_model, 1, MAX_D_MODEL));
    SD_TRY(sd_check_range("n_draft_vocab", c->n_draft_vocab, 1, c->n_vocab));
    return sd_draft_tokens_check(tokens, c->n_draft_vocab, c->n_vocab);
}

sd_status sd_heads_create(const sd_heads_config* config, const int32_t* tokens, sd_heads** out) {
    SD_TRY(check_config(config, tokens));
    SD_NEW(sd_heads, heads);
    heads->config = *config;
    sd_status status = SD_ARENA_BUILD(&heads->arena, lay_out_weights(heads, tokens));
    if (status != SD_OK) {
        sd_heads_free(heads);
        return status;
    }
    *out = heads;
    return SD_OK;
}

void sd_heads_free(sd_heads* heads) {
    if (heads == NULL) return;
    sd_arena_free(&heads->arena);
    sd_free(heads);
}

/* A row for a head to compute: of a node, or of all nodes of its depth. */
typedef struct request {
    const sd_proposal* proposal;
    int32_t node;
} request;

typedef struct heads_predictor {
    sd_predictor base; /* must stay first */
    sd_heads_predictor_options options;
    int n_sequences, n_threads, n_levels;
    int max_requests;  /* of one call */
    request* requests; /* [max_requests] of this call, sorted by head */
    int* first;        /* [n_heads + 1] first request of each head */
    float* x;          /* [max_requests, ld_x] hidden states after the heads' blocks */
    float* update;     /* [max_requests, ld_x] */
    /* [max_requests, (1 + n_heads) · d_model] inputs of heads that see draft tokens; else none */
    float* seen;
    void* prepared; /* max_requests rows of the widest input, prepared */
    /* [max_requests, ld_computed] logits of the draft's tokens of this round so far; for heads that see draft
     * tokens, of this call */
    float* computed;
    int n_computed; /* rows of it in use */
    int32_t* known; /* [n_sequences, n_heads] computed row of each head for a sequence; -1: none */
    int32_t* rows;  /* [n_sequences · rows at once] computed row of each node of this call */
    /* Output matrix that the heads share, if they do: the target's, or its rows of the draft's tokens. */
    sd_matrix output;
    float* output_bias; /* [n_draft_vocab]; NULL: none */
    float* logits;      /* [n_sequences · rows at once, ld_logits] */
    ptrdiff_t ld_x, ld_computed;
} heads_predictor;

static const sd_heads_config* config_of(const heads_predictor* r) { return &r->options.heads->config; }

/* Layer of the hidden state that heads read, as captures name it. */
static int capture_of(const heads_predictor* r) { return r->options.target->config.n_layer + 1; }

static void lay_out(heads_predictor* r, const sd_prediction* of) {
    sd_arena* arena = &r->base.arena;
    const sd_heads_config* c = config_of(r);
    size_t n = (size_t)r->max_requests, n_nodes = (size_t)r->n_sequences * (size_t)of->n_rows;
    size_t n_heads = (size_t)c->n_heads,
           n_seen = c->see_draft_tokens ? (1 + n_heads) * (size_t)c->d_model : 0;
    size_t widest = n_seen > (size_t)c->d_model ? n_seen : (size_t)c->d_model;
    r->requests = sd_arena_take(arena, n, sizeof *r->requests);
    r->first = sd_arena_take(arena, n_heads + 1, sizeof *r->first);
    r->x = sd_arena_take(arena, n, (size_t)r->ld_x * sizeof *r->x);
    r->update = sd_arena_take(arena, n, (size_t)r->ld_x * sizeof *r->update);
    r->seen = sd_arena_take(arena, n, n_seen * sizeof *r->seen);
    r->prepared = sd_arena_take(arena, n, sd_prepared_bytes(widest));
    r->computed = sd_arena_take(arena, n, (size_t)r->ld_computed * sizeof *r->computed);
    r->known = sd_arena_take(arena, (size_t)r->n_sequences, n_heads * sizeof *r->known);
    r->rows = sd_arena_take(arena, n_nodes, sizeof *r->rows);
    r->base.logits = r->logits = sd_arena_take(arena, n_nodes, (size_t)r->base.ld_logits * sizeof *r->logits);
    const sd_model* target = r->options.target;
    r->output = target->head;
    r->output_bias = target->head_bias;
    if (!c->shared_output || r->options.heads->tokens == NULL) return;
    r->output = sd_matrix_take(arena, target->head.panels[0].format, SD_LAYOUT_PANELS, c->n_draft_vocab,
                               c->d_model, 1);
    size_t n_biases = target->head_bias ? (size_t)c->n_draft_vocab : 0;
    float* biases = sd_arena_take(arena, n_biases, sizeof *biases);
    r->output_bias = target->head_bias ? biases : NULL;
}

static void gather_output(heads_predictor* r) {
    const int32_t* tokens = r->options.heads->tokens;
    const sd_model* target = r->options.target;
    if (!config_of(r)->shared_output || tokens == NULL) return;
    sd_matrix_gather(&target->head, tokens, &r->output);
    for (int i = 0; r->output_bias && i < r->output.n_out; i++)
        r->output_bias[i] = target->head_bias[tokens[i]];
}

static int32_t* known_of(const heads_predictor* r, const sd_proposal* p) {
    return r->known + (ptrdiff_t)p->sequence * config_of(r)->n_heads;
}

static void forget(heads_predictor* r, const sd_proposal* p) {
    for (int k = 0; k < config_of(r)->n_heads; k++) known_of(r, p)[k] = -1;
}

static sd_status follow(sd_predictor* base, sd_proposal* p) {
    heads_predictor* r = (heads_predictor*)base;
    const sd_cache* cache = p->cache;
    int limit = p->n_text > 1 ? config_of(r)->n_heads : 0;
    if (p->depth > limit) p->depth = limit;
    forget(r, p);
    if (p->budget == 0 || p->depth == 0) return SD_OK;
    SD_FAIL_IF(cache == NULL || sd_model_base(cache->model) != sd_model_base(r->options.target) ||
                   cache->n_committed != p->n_text - 1 ||
                   sd_captures_find(&cache->captures, capture_of(r)) < 0,
               SD_ERR_STATE, "heads read the target's hidden states, expected no other draft between them");
    return SD_OK;
}

/* Most draft tokens in a row that a proposal may take. */
static int deepest(const heads_predictor* r, const sd_proposal* p) {
    int n = p->depth < p->budget ? p->depth : p->budget;
    return n < r->n_levels ? n : r->n_levels;
}

/* Does the j-th node need head k's row? A shared output is computed for all heads at once, so that its
 * weights are read once. */
static int wants(const heads_predictor* r, const sd_draft_nodes* of, int j, int k) {
    const sd_proposal* p = of->proposal;
    int32_t node = of->nodes[j];
    if (p->depths[node] == k) return 1;
    return node == 0 && config_of(r)->shared_output && !config_of(r)->see_draft_tokens && k < deepest(r, p);
}

static void request_row(heads_predictor* r, const sd_draft_nodes* of, int j, int k, int32_t* row) {
    const sd_proposal* p = of->proposal;
    int32_t node = of->nodes[j], *known = &known_of(r, p)[k], found = *known;
    if (found < 0 || config_of(r)->see_draft_tokens) {
        found = r->n_computed++;
        r->requests[r->first[k + 1]++] = (request){p, node};
        *known = found;
    }
    if (p->depths[node] == k) *row = found;
}

/* Collect the rows that the heads compute for nodes, in the order of the heads, and the row of each node. */
static void collect(heads_predictor* r, const sd_draft_nodes* batch, int n) {
    /* the roots of a round come together: drop what earlier rounds have computed */
    if (batch[0].nodes[0] == 0 || config_of(r)->see_draft_tokens) {
        r->n_computed = 0;
        for (int i = 0; i < r->n_sequences * config_of(r)->n_heads; i++) r->known[i] = -1;
    }
    r->first[0] = 0;
    for (int k = 0; k < config_of(r)->n_heads; k++) {
        int32_t* row = r->rows;
        r->first[k + 1] = r->first[k];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < batch[i].n_nodes; j++, row++)
                if (wants(r, &batch[i], j, k)) request_row(r, &batch[i], j, k, row);
    }
}

static const float* hidden_of(const heads_predictor* r, const sd_proposal* p) {
    return sd_cache_captured(p->cache, p->n_text - 2, capture_of(r));
}

/* Fill the input of a head that sees draft tokens: the hidden state, then the embeddings of the tokens from
 * the root to the node. */
static void fill_seen(const heads_predictor* r, const request* q, float* seen) {
    size_t d = (size_t)config_of(r)->d_model;
    const sd_tree* tree = &q->proposal->tree;
    memcpy(seen, hidden_of(r, q->proposal), d * sizeof *seen);
    for (int32_t node = q->node; node >= 0; node = tree->parents[node])
        sd_table_row(&r->options.target->token_embedding, tree->tokens[node],
                     seen + (size_t)(1 + q->proposal->depths[node]) * d);
}

/* Run head k on rows [first, end) of x: its input, then its blocks. */
static void run_head(heads_predictor* r, sd_pass* pass, int k, int first, int end) {
    const sd_kernels* kernels = sd_kernels_get();
    const sd_heads_config* c = config_of(r);
    const sd_head* head = &r->options.heads->heads[k];
    float *x = r->x + first * r->ld_x, *update = r->update + first * r->ld_x;
    int n_rows = end - first, d = c->d_model;
    ptrdiff_t ld_seen = (ptrdiff_t)(2 + k) * d;
    for (int i = 0; i < n_rows; i++) {
        if (c->see_draft_tokens)
            fill_seen(r, &r->requests[first + i], r->seen + i * ld_seen);
        else
            memcpy(x + i * r->ld_x, hidden_of(r, r->requests[first + i].proposal), (size_t)d * sizeof *x);
    }
    if (c->see_draft_tokens)
        sd_pass_multiply_rows(
            pass, r->seen, ld_seen, r->prepared,
            (sd_product){.matrix = &head->input, .n_rows = n_rows, .y = x, .ldy = r->ld_x, .factor = 1.0f});
    for (int b = 0; b < c->n_blocks; b++) {
        sd_pass_multiply_rows(pass, x, r->ld_x, r->prepared,
                              SD_MAKE(sd_product, .matrix = &head->blocks[b], .bias = head->biases[b],
                                      .n_rows = n_rows, .y = update, .ldy = r->ld_x, .factor = 1.0f));
        for (int i = 0; i < n_rows; i++) kernels->silu(d, update + i * r->ld_x, update + i * r->ld_x);
        kernels->add(n_rows, d, x, r->ld_x, update, r->ld_x);
    }
}

static void run_output(heads_predictor* r, sd_pass* pass, int first, int end, int n_before,
                       sd_product output) {
    output.n_rows = end - first;
    output.y = r->computed + (n_before + first) * r->ld_computed;
    output.ldy = r->ld_computed;
    sd_pass_multiply_rows(pass, r->x + first * r->ld_x, r->ld_x, r->prepared, output);
}

/* Compute the requested rows, after the n_before existing ones. */
static void compute(heads_predictor* r, int n_before) {
    const sd_heads_config* c = config_of(r);
    const sd_model* target = r->options.target;
    sd_pass pass = {.team = sd_team_open(r->n_threads)};
    for (int k = 0; k < c->n_heads; k++) {
        int first = r->first[k], end = r->first[k + 1];
        if (first == end) continue;
        run_head(r, &pass, k, first, end);
        if (!c->shared_output)
            run_output(r, &pass, first, end, n_before,
                       (sd_product){.matrix = &r->options.heads->heads[k].output, .factor = 1.0f});
    }
    if (c->shared_output)
        run_output(r, &pass, 0, r->first[c->n_heads], n_before,
                   SD_MAKE(sd_product, .matrix = &r->output, .bias = r->output_bias,
                           .factor = target->config.logit_scale, .softcap = target->config.logit_softcap));
    sd_team_close(&pass.team);
}

/* Record a failure of each sequence with rows, after the first n_before, that are not finite; their logits
 * become 0. */
static void settle_failures(const heads_predictor* r, int n_before) {
    const sd_heads_config* c = config_of(r);
    for (int k = 0; k < c->n_heads; k++)
        for (int i = r->first[k]; i < r->first[k + 1]; i++) {
            float* computed = r->computed + (n_before + i) * r->ld_computed;
            if (sd_all_finite(r->x + i * r->ld_x, c->d_model) && sd_all_finite(computed, c->n_draft_vocab))
                continue;
            const sd_proposal* p = r->requests[i].proposal;
            sd_failure_note(p->failure, sd_fail(SD_ERR_OVERFLOW,
                                                "the draft: the logits of head %d are not finite after "
                                                "position %d",
                                                k + 1, p->n_text - 1 + k));
            memset(computed, 0, (size_t)c->n_draft_vocab * sizeof *computed);
        }
}

static void deliver(heads_predictor* r, int n) {
    const sd_heads* heads = r->options.heads;
    int n_draft = heads->config.n_draft_vocab;
    for (int i = 0; i < n; i++) {
        const float* from = r->computed + r->rows[i] * r->ld_computed;
        sd_draft_tokens_scatter(heads->tokens, n_draft, from, r->logits + i * r->base.ld_logits);
    }
}

static sd_status predict(sd_predictor* base, const sd_draft_nodes* batch, int n) {
    heads_predictor* r = (heads_predictor*)base;
    SD_TRY(sd_interrupted());
    collect(r, batch, n);
    int n_requests = r->first[config_of(r)->n_heads], n_before = r->n_computed - n_requests, n_nodes = 0;
    if (n_requests > 0) {
        compute(r, n_before);
        settle_failures(r, n_before);
    }
    for (int i = 0; i < n; i++) n_nodes += batch[i].n_nodes;
    deliver(r, n_nodes);
    return SD_OK;
}

static sd_status check(const sd_heads_predictor_options* o, const sd_prediction* of) {
    const sd_heads_config* c = &o->heads->config;
    const sd_config* t = &o->target->config;
    SD_FAIL_IF(
        c->d_model != t->d_model || c->n_vocab != t->n_vocab || of->drafting->n_vocab != t->n_vocab,
        SD_ERR_VALUE,
        "the heads are for a target of d_model %d and n_vocab %d, expected those of this target, %d and %d",
        c->d_model, c->n_vocab, t->d_model, t->n_vocab);
    return SD_OK;
}

sd_status sd_heads_predictor_make(const void* given, const sd_prediction* of, sd_predictor** out) {
    const sd_heads_predictor_options* options = given;
    SD_TRY(check(options, of));
    SD_TRY(sd_pool_reserve(of->drafting->n_threads));
    SD_NEW(heads_predictor, r);
    const sd_heads_config* c = &options->heads->config;
    int n_vocab = sd_whole_panels(of->drafting->n_vocab);
    *r = SD_MAKE(
        heads_predictor,
        .base = {.follow = follow, .predict = predict, .free = sd_predictor_release, .ld_logits = n_vocab},
        .options = *options, .n_sequences = of->drafting->n_sequences, .n_threads = of->drafting->n_threads,
        .n_levels = of->n_levels,
        .max_requests = of->drafting->n_sequences * (c->see_draft_tokens ? of->n_rows : c->n_heads),
        .ld_x = sd_whole_panels(c->d_model), .ld_computed = sd_whole_panels(c->n_draft_vocab));
    sd_status status = sd_captures_add(&r->base.captures, capture_of(r), &options->target->config);
    if (status == SD_OK) status = SD_ARENA_BUILD(&r->base.arena, lay_out(r, of));
    if (status == SD_OK) gather_output(r);
    ptrdiff_t n_logits = (ptrdiff_t)r->n_sequences * of->n_rows * r->base.ld_logits;
    for (ptrdiff_t i = 0; status == SD_OK && options->heads->tokens != NULL && i < n_logits; i++)
        r->logits[i] = -INFINITY;
    return sd_predictor_made(&r->base, status, out);
}
