/* Constraints in a round: forced tokens before the draft's tokens, and the end of complete texts. */
#include "round_parts.h"

/* Write the tokens that the constraint forces next, at most `most`, after the text; returns how many.
 * Failures are reported when the round is verified. */
static int force(sd_sequence* q, int most) {
    sd_constraint* c = q->settings.verify.constraint;
    if (c == NULL) return 0;
    if (c->states.n_text == 0) sd_constraint_follow(c, q->text, q->n_text);
    return sd_constraint_forced(c, q->text, q->n_text, most);
}

/* Most draft tokens of a sequence in a round that allows `gamma`. */
static int budget_of(const sd_sequence* q, int gamma, int depth) {
    if (depth < 1 || !sd_sequence_is_drafted(q)) return 0;
    return q->settings.gamma < gamma ? q->settings.gamma : gamma;
}

void sd_forced_before_draft(const sd_session* s, int i, int gamma) {
    sd_proposal* p = &s->round.proposals[i];
    sd_joint* joint = &s->round.joints[i];
    sd_sequence* q = &s->sequences[p->sequence];
    p->depth = q->max_text - q->n_text - 1;
    int budget = budget_of(q, gamma, p->depth);
    int n = force(q, p->depth < s->shape.max_forced ? p->depth : s->shape.max_forced);
    /* A drafter that cannot read the forced tokens drafts from the text's end: its first draft tokens are
     * these. */
    if (!s->reads_text && n < budget) n = 0;
    joint->n_forced = n;
    joint->n_shown = s->reads_text ? n : 0;
    if (n > 0) budget = budget_of(q, joint->n_shown > 0 ? gamma : 0, p->depth - n);
    p->budget = n + budget;
}

void sd_forced_open_tree(const sd_session* s, int i) {
    sd_proposal* p = &s->round.proposals[i];
    const sd_sequence* q = &s->sequences[p->sequence];
    sd_joint* joint = &s->round.joints[i];
    const sd_tree* whole = &s->round.records[i].tree;
    if (joint->n_forced > p->budget) joint->n_forced = p->budget;
    if (joint->n_shown > joint->n_forced) joint->n_shown = joint->n_forced;
    int n = joint->n_forced;
    p->budget -= n;
    p->n_text = q->n_text + joint->n_shown;
    p->depth = q->max_text - p->n_text - 1;
    if (p->origins != NULL) {
        for (int j = 1; j <= n; j++) p->origins[j] = -1;
        p->origins += n;
    }
    p->tree = (sd_tree){1, whole->tokens + n, joint->parents, joint->drawn_from + n};
    for (int j = 1; j <= p->budget && joint->weights != NULL; j++)
        p->tree.drawn_from[j].weights = joint->weights + (size_t)j * (size_t)s->shape.n_vocab;
    p->tree.tokens[0] = p->text[p->n_text - 1];
    p->tree.parents[0] = -1;
    p->depths[0] = 0;
    p->path_prob[0] = 1.0;
}

void sd_forced_after_propose(const sd_session* s, int i) {
    const sd_proposal* p = &s->round.proposals[i];
    const sd_joint* joint = &s->round.joints[i];
    const int32_t* text = s->sequences[p->sequence].text + s->sequences[p->sequence].n_text;
    sd_tree* tree = &s->round.records[i].tree;
    int n = joint->n_forced, n_own = p->tree.n_nodes;
    tree->n_nodes = n + n_own;
    tree->drawn_from = joint->drawn_from;
    tree->tokens[0] = text[-1];
    tree->parents[0] = -1;
    for (int j = 1; j <= n; j++) {
        tree->tokens[j] = text[j - 1];
        tree->parents[j] = j - 1;
        tree->drawn_from[j].point = text[j - 1];
    }
    for (int j = 1; j < n_own; j++) tree->parents[n + j] = n + joint->parents[j];
}

void sd_constraint_after_verify(const sd_verification* verification, sd_record* record) {
    sd_verdict* v = &record->verdict;
    const sd_tree* tree = verification->tree;
    sd_constraint* constraint = verification->options->constraint;
    for (int i = 0; constraint != NULL && i < v->n_path && !record->complete; i++) {
        sd_mask mask;
        if (sd_constraint_mask(constraint, verification->text, verification->n_text, tree, v->path[i], 0,
                               &mask))
            continue;
        record->complete = 1;
        v->token = tree->tokens[v->path[i]];
        v->n_path = i;
        if (v->n_betas > i + 1) v->n_betas = i + 1;
    }
}

void sd_constraint_after_commit(sd_session* s) {
    const sd_state_source* source = NULL; /* all sequences' states share one lock: take it once */
    for (int i = 0; i < s->round.n_open; i++) {
        sd_record* record = &s->round.records[i];
        sd_sequence* q = &s->sequences[record->sequence];
        sd_constraint* c = q->settings.verify.constraint;
        q->finished |= record->complete;
        if (c == NULL || q->finished) continue;
        if (source == NULL) {
            source = &c->source.states;
            source->enter(source->context);
        }
        if (sd_constraint_follow(c, q->text, q->n_text) == SD_OK && c->complete)
            q->finished = record->complete = 1;
    }
    if (source != NULL) source->leave(source->context);
}
