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
    v->residual = sd_arena_take(arena, 3 * n_vocab, sizeof *v->residual);
    v->chances = sd_arena_take(arena, nodes, sizeof *v->chances);
    v->noise = sd_arena_take(arena, n_vocab, sizeof *v->noise);
    v->adjustment = sd_adjustment_take(arena, v->n_vocab, n_text + max_nodes);
    v->target.weights = sd_arena_take(arena, n_vocab, sizeof *v->target.weights);
}

static int depth_of(const sd_tree* tree, int node) {
    int depth = 0;
    for (; node > 0; node = tree->parents[node]) depth++;
    return depth;
}

/* Call the transform with the tokens up to a node. */
static sd_status apply_to_tokens(sd_verifier* v, const sd_verification* of, int node) {
    const sd_transform* transform = &of->options->transform;
    int n_tokens = of->n_text + depth_of(of->tree, node);
    memcpy(v->tokens, of->text, (size_t)of->n_text * sizeof *v->tokens);
    for (int i = node, at = n_tokens; i > 0; i = of->tree->parents[i]) v->tokens[--at] = of->tree->tokens[i];
    return transform->apply(transform->context, v->tokens, n_tokens, v->target.weights, v->n_vocab);
}

/* Call the transform of a state. */
static sd_status apply_to_state(sd_verifier* v, const sd_verification* of, int node) {
    const sd_transform* transform = &of->options->transform;
    sd_state_tree* states = transform->states;
    int from, state = -1;
    states->source.enter(states->source.context);
    sd_status status = sd_state_tree_follow(states, of->text, of->n_text, &from);
    if (status == SD_OK) state = sd_state_tree_find(states, of->text, of->n_text, of->tree, node);
    if (state >= 0) status = sd_state_tree_make(states, state);
    if (status == SD_OK && state < 0) status = sd_fail(SD_ERR_STATE, "a tree has too many levels");
    if (status == SD_OK)
        status = transform->apply_state(transform->context, state, v->target.weights, v->n_vocab);
    states->source.leave(states->source.context);
    return status;
}

/* Apply the transform to the distribution after a node; tokens that the mask forbids keep no probability. */
static sd_status transform(sd_verifier* v, const sd_verification* of, int node, const sd_mask* mask) {
    sd_distribution* d = &v->target;
    for (int i = 0; i < v->n_vocab; i++) d->weights[i] = sd_prob(d, i);
    sd_status status =
        of->options->transform.apply_state ? apply_to_state(v, of, node) : apply_to_tokens(v, of, node);
    if (status != SD_OK) return status;
    for (int i = 0; i < v->n_vocab && mask->words != NULL; i++)
        if (!sd_mask_allows(mask, i)) d->weights[i] = 0.0;
    d->point = -1;
    d->mass = sd_kernels_get()->mass(v->n_vocab, d->weights);
    d->factor = 1.0 / d->mass;
    if (mask->words != NULL && !(d->mass > 0.0 && isfinite(d->factor)))
        return sd_fail(SD_ERR_SETTING, "transform leaves no token that the constraint allows");
    if (of->options->sampling->temperature == 0.0) d->point = sd_most_probable(d, v->n_vocab);
    return SD_OK;
}

/* Fail because of settings: the model's logits are finite, but after penalties and bias their maximum is
 * not. */
static sd_status fail_in_settings(const sd_sampling* s, int is_masked, int n_vocab, const float* adjusted) {
    char names[SD_MESSAGE_SIZE] = "";
    size_t length = 0;
    for (int i = 0; i <= SD_N_SAMPLING_FIELDS; i++) {
        const sd_sampling_field* field = &sd_sampling_fields[i];
        int is_last = i == SD_N_SAMPLING_FIELDS;
        if (is_last ? !is_masked : !field->changes_logits || !sd_sampling_uses(s, field)) continue;
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length > 0 ? " and " : "",
                                   is_last ? "the constraint" : field->name);
    }
    int32_t best = sd_kernels_get()->argmax(n_vocab, adjusted);
    if (adjusted[best] < 0.0f) return sd_fail(SD_ERR_SETTING, "%s: no token is left to choose from", names);
    return sd_fail(SD_ERR_SETTING, "%s: the logit of token %d becomes infinite; expected smaller changes",
                   names, (int)best);
}

/* Find the tokens that may follow a node. */
static sd_status find_mask(const sd_verification* of, int node, sd_mask* mask) {
    sd_constraint* constraint = of->options->constraint;
    if (constraint == NULL) return SD_OK;
    sd_constraint_mask(constraint, of->text, of->n_text, of->tree, node, 0, mask);
    return sd_constraint_check(constraint);
}

sd_status sd_verifier_distribute(sd_verifier* v, const sd_verification* of, int node,
                                 const sd_distribution** distribution) {
    *distribution = &v->target;
    int row = of->node_rows[node];
    sd_status status = SD_OK;
    if (!sd_forward_row_is_finite(of->forward, of->branch, row))
        return of->in_team ? SD_ERR_OVERFLOW : sd_forward_check(of->forward, of->first_row + row, 1);
    const sd_sampling* sampling = of->options->sampling;
    const sd_history history = {of->text, of->n_text, of->n_prompt, of->tree};
    const float* logits =
        sd_logits_adjust(sampling, v->n_vocab, of->logits + row * of->stride, &history, node, &v->adjustment);
    sd_mask mask = {0};
    if ((status = find_mask(of, node, &mask)) != SD_OK) return status;
    logits = sd_mask_logits(&mask, v->n_vocab, logits, v->adjustment.logits);
    if (!sd_standardize(sampling, v->n_vocab, logits, v->scratch, &v->target))
        return fail_in_settings(sampling, mask.words != NULL, v->n_vocab, logits);
    const sd_transform* changes = &of->options->transform;
    return changes->apply || changes->apply_state ? transform(v, of, node, &mask) : SD_OK;
}

/* Context of the callbacks of sd_verify. */
typedef struct walk {
    sd_verifier* verifier;
    const sd_verification* of;
} walk;

static sd_status target_after(void* context, int node, sd_distribution* target) {
    const walk* w = context;
    const sd_distribution* found;
    sd_status status = w->of->in_team ? SD_OK : sd_interrupted();
    if (status == SD_OK) status = sd_verifier_distribute(w->verifier, w->of, node, &found);
    if (status == SD_OK) *target = *found;
    return status;
}

static int32_t token_after(void* context, int node, const sd_distribution* target) {
    const walk* w = context;
    uint32_t position = (uint32_t)(w->of->n_text + depth_of(w->of->tree, node));
    return sd_coupled_token(target, w->of->stream, position, w->verifier->n_vocab, w->verifier->noise);
}

sd_status sd_verifier_run(sd_verifier* v, const sd_verification* of, sd_verdict* verdict) {
    sd_verify_uniforms(of->stream, (uint32_t)of->n_text, of->tree->n_nodes, v->uniforms);
    walk w = {v, of};
    const sd_verify_input input = {.rule = of->options->rule,
                                   .lenience = of->options->lenience,
                                   .tree = of->tree,
                                   .n_vocab = v->n_vocab,
                                   .target_after = target_after,
                                   .token_after = token_after,
                                   .context = &w,
                                   .uniforms = v->uniforms,
                                   .residual = v->residual,
                                   .chances = v->chances,
                                   .nodes = v->nodes};
    return sd_verify(&input, verdict);
}
