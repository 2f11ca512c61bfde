#include "verifier.h"

#include <math.h>
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

/* What the caller's function of the tokens makes of probs. */
static sd_status apply_to_tokens(const question* q, int node, double* probs) {
    sd_verifier* v = q->verifier;
    const sd_transform* transform = &q->asked->options->transform;
    const sd_tree* tree = q->asked->tree;
    int n_text = q->asked->n_text, n_tokens = n_text + depth_of(tree, node);
    memcpy(v->tokens, q->asked->text, (size_t)n_text * sizeof *v->tokens);
    for (int i = node, at = n_tokens; i > 0; i = tree->parents[i]) v->tokens[--at] = tree->tokens[i];
    return transform->apply(transform->context, v->tokens, n_tokens, probs, v->n_vocab);
}

/* The same of a function that has a state. */
static sd_status apply_to_state(const question* q, int node, double* probs) {
    const sd_verification* asked = q->asked;
    const sd_transform* transform = &asked->options->transform;
    const sd_state_source* source = &transform->states->source;
    int from;
    source->enter(source->context);
    sd_status status = sd_state_tree_follow(transform->states, asked->text, asked->n_text, &from);
    int state = status == SD_OK
                    ? sd_state_tree_find(transform->states, asked->text, asked->n_text, asked->tree, node)
                    : -1;
    if (state >= 0) status = sd_state_tree_make(transform->states, state);
    if (status == SD_OK && state < 0) status = sd_fail(SD_ERR_STATE, "a tree has too many levels");
    if (status == SD_OK)
        status = transform->apply_state(transform->context, state, probs, q->verifier->n_vocab);
    source->leave(source->context);
    return status;
}

/* Let the caller change the distribution after a node; what the mask forbids keeps no probability. */
static sd_status transform(const question* q, int node, const sd_mask* mask) {
    sd_verifier* v = q->verifier;
    sd_distribution* d = &v->target;
    const sd_verifier_options* o = q->asked->options;
    for (int i = 0; i < v->n_vocab; i++) d->weights[i] = sd_prob(d, i);
    sd_status status =
        o->transform.apply_state ? apply_to_state(q, node, d->weights) : apply_to_tokens(q, node, d->weights);
    if (status != SD_OK) return status;
    for (int i = 0; i < v->n_vocab && mask->words != NULL; i++)
        if (!sd_mask_allows(mask, i)) d->weights[i] = 0.0;
    d->point = -1;
    d->mass = sd_kernels_get()->mass(v->n_vocab, d->weights);
    d->factor = 1.0 / d->mass;
    if (mask->words != NULL && !(d->mass > 0.0 && isfinite(d->factor)))
        return sd_fail(SD_ERR_SETTING, "transform leaves no token that the form of the text allows");
    if (o->sampling->temperature == 0.0) d->point = sd_most_probable(d, v->n_vocab);
    return SD_OK;
}

/* The model's logits are finite; after penalties and bias their maximum is not. */
static sd_status fail_in_settings(const sd_sampling* s, int is_masked, int n_vocab, const float* adjusted) {
    const struct {
        const char* name;
        int used;
    } settings[] = {{"repetition_penalty", s->repetition_penalty != 1.0},
                    {"presence_penalty", s->presence_penalty != 0.0},
                    {"frequency_penalty", s->frequency_penalty != 0.0},
                    {"logit_bias", s->n_biased > 0},
                    {"the form of the text", is_masked}};
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

/* What may follow a node. */
static sd_status find_mask(const sd_verification* asked, int node, sd_mask* mask) {
    sd_constraint* constraint = asked->options->constraint;
    if (constraint == NULL) return SD_OK;
    sd_constraint_mask(constraint, asked->text, asked->n_text, asked->tree, node, mask);
    return sd_constraint_check(constraint);
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
    sd_mask mask = {0};
    if ((status = find_mask(asked, node, &mask)) != SD_OK) return status;
    logits = sd_mask_logits(&mask, v->n_vocab, logits, v->adjustment.logits);
    if (!sd_standardise(sampling, v->n_vocab, logits, v->scratch, &v->target))
        return fail_in_settings(sampling, mask.words != NULL, v->n_vocab, logits);
    const sd_transform* changes = &asked->options->transform;
    return changes->apply || changes->apply_state ? transform(q, node, &mask) : SD_OK;
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
