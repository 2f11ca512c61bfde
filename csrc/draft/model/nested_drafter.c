/* A smaller model's chain, made by speculative decoding with a drafter of its own. */
#include "model_drafters.h"

#include <string.h>

#include "clock.h"
#include "interrupt.h"
#include "throughput.h"
#include "token_drafter.h"

/* Inner round of a sequence. */
typedef struct inner {
    /* Of the inner drafter. Its text [n_text + gamma] is owned and includes draft tokens. */
    sd_proposal proposal;
    int32_t* text;
    int32_t* node_rows; /* [inner_gamma + 1] row of each node of the proposal */
    sd_proposal rows;   /* the same with each row once: what the model reads */
    int32_t node;       /* last draft token of the outer proposal */
    int n_rounds;       /* inner rounds of this proposal */
} inner;

typedef struct nested_drafter {
    sd_drafter base;         /* must stay first */
    sd_drafter* drafter;     /* owned */
    sd_predictor* predictor; /* owned: the model */
    sd_token_drafter token_drafter;
    int inner_gamma;
    inner* inners;          /* [n_sequences] by proposal */
    sd_proposal* proposals; /* [n_sequences] of the inner round */
    int* openers;           /* [n_sequences] the outer proposal of each */
    sd_draft_nodes* batch;  /* [n_sequences] */
    int32_t* all;           /* [inner_gamma + 1] 0, 1, 2, … */
    sd_distribution target; /* of the model, after the node being verified */
    double* noise;          /* [n_vocab] */
    double* residual;       /* [2 · n_vocab] */
    double* uniforms;       /* [inner_gamma + 2] */
    int32_t* nodes;         /* [2 · (inner_gamma + 1)] scratch of the rule */
    int32_t* path;          /* [inner_gamma + 1] */
    double* betas;          /* [inner_gamma + 1] */
} nested_drafter;

static void lay_out_inner(nested_drafter* d, const sd_drafting* drafting, inner* in) {
    sd_arena* arena = &d->base.arena;
    size_t nodes = (size_t)d->inner_gamma + 1, n_vocab = (size_t)drafting->n_vocab;
    const inner one = {
        .text = sd_arena_take(arena, (size_t)(drafting->n_text + drafting->gamma), sizeof *one.text),
        .node_rows = sd_arena_take(arena, nodes, sizeof *one.node_rows),
        .proposal.depths = sd_arena_take(arena, nodes, sizeof *one.proposal.depths),
        .proposal.path_prob = sd_arena_take(arena, nodes, sizeof *one.proposal.path_prob),
        .proposal.tree.tokens = sd_arena_take(arena, nodes, sizeof(int32_t)),
        .proposal.tree.parents = sd_arena_take(arena, nodes, sizeof(int32_t)),
        .proposal.tree.drawn_from = sd_arena_take(arena, nodes, sizeof(sd_distribution)),
        .rows.tree.tokens = sd_arena_take(arena, nodes, sizeof(int32_t)),
        .rows.tree.parents = sd_arena_take(arena, nodes, sizeof(int32_t)),
    };
    int dense = !d->drafter->points;
    double* weights = sd_arena_take(arena, dense ? nodes : 0, n_vocab * sizeof *weights);
    if (arena->base == NULL) return;
    *in = one;
    for (size_t i = 0; i < nodes && dense; i++)
        in->proposal.tree.drawn_from[i].weights = weights + i * n_vocab;
}

static void lay_out(nested_drafter* d, const sd_drafting* drafting) {
    sd_arena* arena = &d->base.arena;
    size_t n = (size_t)drafting->n_sequences, nodes = (size_t)d->inner_gamma + 1;
    int n_vocab = drafting->n_vocab;
    d->token_drafter = sd_token_drafter_take(arena, drafting);
    d->inners = sd_arena_take(arena, n, sizeof *d->inners);
    d->proposals = sd_arena_take(arena, n, sizeof *d->proposals);
    d->openers = sd_arena_take(arena, n, sizeof *d->openers);
    d->batch = sd_arena_take(arena, n, sizeof *d->batch);
    d->all = sd_arena_take(arena, nodes, sizeof *d->all);
    d->target.weights = sd_arena_take(arena, (size_t)n_vocab, sizeof(double));
    d->noise = sd_arena_take(arena, (size_t)n_vocab, sizeof(double));
    d->residual = sd_arena_take(arena, 2 * (size_t)n_vocab, sizeof(double));
    d->uniforms = sd_arena_take(arena, nodes + 1, sizeof(double));
    d->nodes = sd_arena_take(arena, 2 * nodes, sizeof *d->nodes);
    d->path = sd_arena_take(arena, nodes, sizeof *d->path);
    d->betas = sd_arena_take(arena, nodes, sizeof *d->betas);
    for (size_t i = 0; i < n; i++) lay_out_inner(d, drafting, d->inners + i);
    for (size_t i = 0; arena->base != NULL && i < nodes; i++) d->all[i] = (int32_t)i;
}

static sd_status reserve(sd_drafter* base) {
    nested_drafter* d = (nested_drafter*)base;
    SD_TRY(sd_predictor_reserve(d->predictor));
    return sd_drafter_reserve(d->drafter);
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    nested_drafter* d = (nested_drafter*)base;
    sd_settings settings = *prompt->settings;
    sd_prompt inner = *prompt;
    if (sd_settings_drafted(&settings)) settings.drafters = SD_EVERY_DRAFTER;
    inner.settings = &settings;
    sd_predictor_begin(d->predictor, sequence, prompt);
    return sd_drafter_begin(d->drafter, sequence, &inner);
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    nested_drafter* d = (nested_drafter*)base;
    SD_TRY(sd_predictor_read(d->predictor, done));
    return *done ? sd_drafter_read(d->drafter, done) : SD_OK;
}

/* The rule that verifies the inner drafter's tokens. */
static sd_rule inner_rule(sd_rule outer) {
    return outer == SD_RULE_COUPLED ? SD_RULE_COUPLED : SD_RULE_REJECTION;
}

/* Open an inner proposal with the remaining capacity of the outer one minus 1, for the token that the model
 * itself adds. Under the coupled rule all levels use the same noise; otherwise no random number is used
 * twice. */
static sd_proposal open_inner(const nested_drafter* d, const sd_proposal* p, inner* in) {
    int left = p->depth - p->depths[in->node], budget = p->budget + 1 - p->tree.n_nodes;
    if (budget < left) left = budget;
    sd_proposal q = in->proposal;
    q.sequence = p->sequence;
    q.text = in->text;
    q.n_text = p->n_text + p->depths[in->node];
    q.n_prompt = p->n_prompt;
    q.constraint = p->constraint;
    q.sampling = p->sampling;
    q.rule = inner_rule(p->rule);
    q.drafters = SD_EVERY_DRAFTER;
    q.depth = left - 1;
    q.budget = q.depth > 0 ? d->inner_gamma : 0;
    q.stream = p->rule == SD_RULE_COUPLED
                   ? p->stream
                   : sd_stream_inner(p->stream, (uint32_t)p->n_text, (uint32_t)in->n_rounds++);
    q.failure = p->failure;
    q.cache = NULL; /* the model's cache lacks the last token if every draft token was accepted */
    q.tree.n_nodes = 1;
    q.tree.tokens[0] = in->text[q.n_text - 1];
    q.tree.parents[0] = -1;
    q.depths[0] = 0;
    q.path_prob[0] = 1.0;
    return q;
}

/* Fill in what the model reads: the rows of the inner tree. */
static void fill_rows(inner* in) {
    const sd_tree* tree = &in->proposal.tree;
    sd_tree rows = in->rows.tree;
    rows.n_nodes = sd_tree_number_rows(tree, in->node_rows);
    sd_tree_merge(tree, in->node_rows, rows.tokens, rows.parents);
    in->rows = in->proposal;
    in->rows.tree = rows;
}

typedef struct verification {
    nested_drafter* drafter;
    const sd_proposal* outer;
    const inner* inner;
    const float* logits; /* of the first row */
} verification;

static sd_status target_after(void* context, int node, sd_distribution* target) {
    const verification* v = context;
    nested_drafter* d = v->drafter;
    const float* logits = v->logits + v->inner->node_rows[node] * d->predictor->ld_logits;
    sd_draft_token_distribute(&d->token_drafter, &v->inner->proposal, node, logits, &d->target);
    *target = d->target;
    return SD_OK;
}

static int32_t token_after(void* context, int node, const sd_distribution* target) {
    const verification* v = context;
    const sd_proposal* q = &v->inner->proposal;
    return sd_coupled_token(target, q->stream, (uint32_t)(q->n_text + q->depths[node]),
                            v->drafter->token_drafter.n_vocab, v->drafter->noise);
}

/* Append a draft token: a draw from the model's distribution after a node of the inner tree. Whether the
 * first token of an inner round pays was decided before the round; the others have been drafted already. */
static int propose_token(verification* v, sd_proposal* p, inner* in, int inner_node, int32_t token) {
    if (inner_node > 0 && (!sd_proposal_may_add(p, in->node) || !sd_proposal_goes_on(p, in->node))) return 0;
    sd_distribution* from = &p->tree.drawn_from[p->tree.n_nodes];
    sd_distribution found;
    target_after(v, inner_node, &found);
    double* weights = from->weights;
    if (found.point < 0)
        memcpy(weights, found.weights, (size_t)v->drafter->token_drafter.n_vocab * sizeof *weights);
    *from = found;
    from->weights = weights;
    in->text[p->n_text + p->depths[in->node]] = token;
    in->node = sd_proposal_add(p, in->node, token, sd_prob(from, token));
    return 1;
}

/* Verify an inner tree against the model; the accepted path and the token after it become draft tokens. Each
 * is taken or not depending on those before it only, so each is a plain draw. */
static void verify(nested_drafter* d, sd_proposal* p, inner* in, const float* logits) {
    const sd_proposal* q = &in->proposal;
    sd_verify_uniforms(q->stream, (uint32_t)q->n_text, q->tree.n_nodes, d->uniforms);
    verification v = {d, p, in, logits};
    sd_verdict verdict = {.path = d->path, .betas = d->betas};
    const sd_verify_input input =
        SD_MAKE(sd_verify_input, .rule = q->rule, .lenience = 1.0, .tree = &q->tree,
                .n_vocab = d->token_drafter.n_vocab, .target_after = target_after, .token_after = token_after,
                .context = &v, .uniforms = d->uniforms, .residual = d->residual, .nodes = d->nodes);
    sd_verify(&input, &verdict); /* cannot fail: target_after does not */
    int node = 0;
    for (int i = 0; i < verdict.n_path; i++) {
        if (!propose_token(&v, p, in, node, q->tree.tokens[verdict.path[i]])) return;
        node = verdict.path[i];
    }
    propose_token(&v, p, in, node, verdict.token);
}

/* Run an inner round for every sequence that takes another draft token; *n_open: their number. */
static sd_status inner_round(nested_drafter* d, sd_proposal* proposals, int n, int* n_open) {
    *n_open = 0;
    for (int i = 0; i < n; i++) {
        inner* in = &d->inners[i];
        if (!sd_proposal_may_draft(&proposals[i], in->node)) continue;
        d->openers[*n_open] = i;
        sd_proposal* q = &d->proposals[(*n_open)++];
        *q = open_inner(d, &proposals[i], in);
        sd_proposal text = *q; /* the model reads the root, whatever is drafted after it */
        text.budget = text.depth = 1;
        SD_TRY(d->predictor->follow(d->predictor, &text));
    }
    if (*n_open == 0) return SD_OK;
    SD_TRY(d->drafter->propose(d->drafter, d->proposals, *n_open));
    d->base.other_s += d->drafter->other_s;
    int n_sound = 0;
    for (int i = 0; i < *n_open; i++) {
        inner* in = &d->inners[d->openers[i]];
        if (d->proposals[i].failure->status != SD_OK) continue;
        in->proposal = d->proposals[i];
        fill_rows(in);
        d->openers[n_sound] = d->openers[i];
        d->batch[n_sound++] = (sd_draft_nodes){&in->rows, d->all, in->rows.tree.n_nodes};
    }
    if (n_sound == 0) return SD_OK;
    SD_TRY(d->predictor->predict(d->predictor, d->batch, n_sound));
    double begun = sd_now();
    ptrdiff_t stride = d->predictor->ld_logits;
    const float* logits = d->predictor->logits;
    for (int i = 0; i < n_sound; i++) {
        inner* in = &d->inners[d->openers[i]];
        if (d->drafter->observe != NULL)
            SD_TRY(d->drafter->observe(d->drafter, &in->proposal, in->node_rows, logits, stride));
        sd_proposal* p = &proposals[d->openers[i]];
        int n_nodes = p->tree.n_nodes;
        verify(d, p, in, logits);
        SD_TRY(sd_interrupted());
        if (p->tree.n_nodes == n_nodes)
            return sd_fail(SD_ERR_STATE, "an inner round has added no draft token");
        logits += in->rows.tree.n_nodes * stride;
    }
    d->base.other_s += sd_now() - begun;
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    nested_drafter* d = (nested_drafter*)base;
    base->other_s = 0.0;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        inner* in = &d->inners[i];
        SD_TRY(d->predictor->follow(d->predictor, p));
        memcpy(in->text, p->text, (size_t)p->n_text * sizeof *in->text);
        in->node = in->n_rounds = 0;
    }
    for (int n_open = 1; n_open > 0;) SD_TRY(inner_round(d, proposals, n, &n_open));
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    return sd_drafter_commit(((nested_drafter*)base)->drafter, sequence, tokens, n_tokens);
}

static void release(sd_drafter* base) {
    nested_drafter* d = (nested_drafter*)base;
    d->drafter->free(d->drafter);
    sd_predictor_free(d->predictor);
    sd_drafter_release(base);
}

sd_drafting sd_nested_inner(const sd_drafting* outer, const sd_model* model, int inner_gamma) {
    sd_drafting inner = *outer;
    inner.gamma = inner_gamma;
    inner.expert_reads = sd_expert_reads_of(&model->config);
    inner.n_text =
        outer->n_text + outer->gamma; /* the inner drafter also reads draft tokens of the outer one */
    return inner;
}

/* Check that a drafter needs only tokens and logits of its target. */
static sd_status check_inner(sd_drafter* inner, const sd_config* target) {
    sd_captures captures = {0};
    sd_drafter* with_extra = NULL;
    SD_TRY(sd_drafter_add_captures(inner, target, &captures));
    SD_FAIL_IF(captures.n > 0, SD_ERR_SETTING,
               "the draft of a draft reads hidden states of its target, expected one that does not: a draft "
               "keeps none");
    SD_TRY(sd_drafter_find_queries(inner, &with_extra));
    SD_FAIL_IF(with_extra != NULL, SD_ERR_SETTING,
               "the draft of a draft has look-ahead embeddings, expected one without: they need the "
               "forward passes of the session's target");
    return SD_OK;
}

sd_status sd_nested_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                   const sd_nested_options* nested, sd_drafter** drafter) {
    nested_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) {
        nested->inner->free(nested->inner);
        return SD_ERR_MEMORY;
    }
    d->base =
        SD_MAKE(sd_drafter, .tree_type = SD_TREE_CHAINS, .points = !drafting->draws, .reserve = reserve,
                .begin = begin, .read = read_prompts, .propose = propose, .commit = commit, .free = release);
    d->drafter = nested->inner;
    d->inner_gamma = nested->inner_gamma;
    sd_status status = SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafting));
    const sd_prediction prediction = {drafting, drafting->n_text + drafting->gamma, d->inner_gamma,
                                      d->inner_gamma + 1, drafting->gamma};
    if (status == SD_OK) status = check_inner(nested->inner, &options->model->config);
    if (status == SD_OK) status = sd_model_predictor_make(options, &prediction, &d->predictor);
    if (status == SD_OK) sd_drafter_predicts(&d->base, d->predictor);
    return sd_drafter_made(&d->base, status, drafter);
}
