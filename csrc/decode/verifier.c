#include "verifier.h"

#include <stdio.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"

void sd_verifier_take(sd_verifier* v, sd_arena* arena, int max_nodes, int n_text) {
    size_t nodes = (size_t)max_nodes, n_vocab = (size_t)v->n_vocab;
    v->nodes = sd_arena_take(arena, 2 * nodes, sizeof *v->nodes);
    v->tokens = sd_arena_take(arena, (size_t)n_text + nodes, sizeof *v->tokens);
    v->uniforms = sd_arena_take(arena, nodes + 1, sizeof *v->uniforms);
    v->scratch = sd_arena_take(arena, 2 * n_vocab, sizeof *v->scratch);
    v->residual = sd_arena_take(arena, 2 * n_vocab, sizeof *v->residual);
    v->noise = sd_arena_take(arena, n_vocab, sizeof *v->noise);
    v->adjustment = sd_adjustment_take(arena, v->n_vocab);
    v->target.weights = sd_arena_take(arena, n_vocab, sizeof *v->target.weights);
}

/* What the callbacks of sd_verify know. */
typedef struct question {
    sd_verifier* verifier;
    const sd_verification* asked;
    sd_status status; /* of the distributions asked for so far */
} question;

static int depth_of(const sd_tree* tree, int node) {
    int depth = 0;
    for (; node > 0; node = tree->parents[node]) depth++;
    return depth;
}

/* Let the caller change the distribution after a node. */
static sd_status transform(const question* q, int node) {
    sd_verifier* v = q->verifier;
    sd_distribution* d = &v->target;
    const sd_tree* tree = q->asked->tree;
    int n_text = q->asked->n_text, n_tokens = n_text + depth_of(tree, node);
    memcpy(v->tokens, q->asked->text, (size_t)n_text * sizeof *v->tokens);
    for (int i = node, at = n_tokens; i > 0; i = tree->parents[i]) v->tokens[--at] = tree->tokens[i];
    for (int i = 0; i < v->n_vocab; i++) d->weights[i] = sd_prob(d, i);
    const sd_verifier_options* o = q->asked->options;
    sd_status status = o->transform.apply(o->transform.context, v->tokens, n_tokens, d->weights, v->n_vocab);
    if (status != SD_OK) return status;
    d->point = -1;
    d->mass = sd_kernels_get()->mass(v->n_vocab, d->weights);
    d->factor = 1.0 / d->mass;
    if (o->sampling->temperature == 0.0) d->point = sd_most_probable(d, v->n_vocab);
    return SD_OK;
}

/* The model's logits are finite; after penalties and bias their maximum is not. */
static sd_status fail_in_settings(const sd_sampling* s, int n_vocab, const float* adjusted) {
    const struct {
        const char* name;
        int used;
    } settings[] = {{"repetition_penalty", s->repetition_penalty != 1.0},
                    {"presence_penalty", s->presence_penalty != 0.0},
                    {"frequency_penalty", s->frequency_penalty != 0.0},
                    {"logit_bias", s->n_biased > 0}};
    char names[SD_MESSAGE_SIZE] = "";
    size_t length = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].used)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                       length > 0 ? " and " : "", settings[i].name);
    int32_t best = sd_kernels_get()->argmax(n_vocab, adjusted);
    if (adjusted[best] < 0.0f) return sd_fail(SD_ERR_SETTING, "%s: no token is left to choose from", names);
    return sd_fail(SD_ERR_SETTING, "%s: the logit of token %d becomes infinite; expected smaller changes",
                   names, (int)best);
}

/* Make the target's distribution after a node. */
static sd_status distribute(const question* q, int node) {
    sd_verifier* v = q->verifier;
    const sd_verification* asked = q->asked;
    int row = asked->node_rows[node];
    sd_status status = sd_forward_check(asked->forward, asked->first_row + row, 1);
    if (status != SD_OK) return status;
    const sd_sampling* sampling = asked->options->sampling;
    const sd_history history = {asked->text, asked->n_text, asked->n_prompt, asked->tree};
    const float* logits = sd_logits_adjust(sampling, v->n_vocab, asked->logits + row * asked->stride,
                                           &history, node, &v->adjustment);
    if (!sd_standardise(sampling, v->n_vocab, logits, v->scratch, &v->target))
        return fail_in_settings(sampling, v->n_vocab, logits);
    return asked->options->transform.apply ? transform(q, node) : SD_OK;
}

sd_status sd_verifier_distribute(sd_verifier* v, const sd_verification* asked, int node,
                                 const sd_distribution** distribution) {
    const question q = {v, asked, SD_OK};
    *distribution = &v->target;
    return distribute(&q, node);
}

static sd_distribution target_after(void* context, int node) {
    question* q = context;
    if (q->status == SD_OK) q->status = sd_interrupted();
    if (q->status == SD_OK) q->status = distribute(q, node);
    if (q->status != SD_OK) q->verifier->target.point = 0; /* any token: the verdict is not used */
    return q->verifier->target;
}

/* Coupled: the noise belongs to the new token's position in the text, so it is the same in every round,
 * tree and run that comes to that position. */
static int32_t token_after(void* context, int node, const sd_distribution* target) {
    const question* q = context;
    sd_verifier* v = q->verifier;
    uint32_t position = (uint32_t)(q->asked->n_text + depth_of(q->asked->tree, node));
    if (target->point < 0) sd_noise(q->asked->stream, position, v->n_vocab, v->noise);
    return sd_race(target, v->n_vocab, v->noise);
}

sd_status sd_verifier_run(sd_verifier* v, const sd_verification* asked, sd_verdict* verdict) {
    int n_nodes = asked->tree->n_nodes;
    uint32_t position = (uint32_t)asked->n_text;
    for (int i = 1; i < n_nodes; i++)
        v->uniforms[i] = sd_uniform(asked->stream, position, SD_DRAW_ACCEPT, (uint32_t)i);
    v->uniforms[n_nodes] = sd_uniform(asked->stream, position, SD_DRAW_SAMPLE, 0);
    question q = {v, asked, SD_OK};
    const sd_question question = {.rule = asked->options->rule,
                                  .lenience = asked->options->lenience,
                                  .tree = asked->tree,
                                  .n_vocab = v->n_vocab,
                                  .target_after = target_after,
                                  .token_after = token_after,
                                  .context = &q,
                                  .uniforms = v->uniforms,
                                  .residual = v->residual,
                                  .nodes = v->nodes};
    sd_verify(&question, verdict);
    return q.status;
}
