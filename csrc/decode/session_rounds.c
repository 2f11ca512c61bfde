#include <stdio.h>

#include "clock.h"
#include "session_state.h"
#include "tree_rows.h"

sd_status sd_session_refuse(sd_session* s) {
    sd_status status = s->untold;
    s->untold = SD_OK;
    if (status != SD_OK) return sd_fail(status, "%s", s->message);
    return sd_fail(SD_ERR_STATE, s->failed ? "a round has failed" : "the prompts have not been read");
}

/* Does a sequence take rounds? One that has failed has its last one, in which nothing is computed for it. */
static int is_open(const sd_sequence* q) { return q->ready && !q->finished; }

/* Is a sequence in a round with these gammas? Those with a negative one sit it out. */
static int takes_part(const sd_session* s, int i, const int32_t* gammas) {
    return is_open(&s->sequences[i]) && (gammas == NULL || gammas[i] >= 0);
}

/* What the form of a text says of it before a round: which tokens must come, *n_forced at most `most`,
 * written behind the text. What fails is said when the round is verified. */
static void look_ahead(sd_sequence* q, int most, int* n_forced) {
    sd_constraint* c = q->settings.verify.constraint;
    *n_forced = 0;
    if (c == NULL) return;
    if (c->states.n_text == 0) sd_constraint_follow(c, q->text, q->n_text);
    *n_forced = sd_constraint_forced(c, q->text, q->n_text, most);
}

/* How many of the forced tokens, and of `budget` guesses of the drafter, a round has. A drafter that is not
 * shown the forced tokens drafts from the text's end: what it guesses first are these. */
static void plan(const sd_session* s, int budget, sd_joint* joint) {
    joint->n_shown = s->extends ? joint->n_forced : 0;
    if (!s->extends && joint->n_forced < budget) joint->n_forced = 0;
}

/* How far a sequence may guess in a round that allows `gamma` guesses. */
static int budget_of(const sd_sequence* q, int gamma, int depth) {
    if (depth < 1 || !sd_sequence_is_drafted(q)) return 0;
    return q->settings.gamma < gamma ? q->settings.gamma : gamma;
}

/* How many forced tokens and guesses a sequence would have in a round that allows `gamma` guesses. */
static void open_joint(const sd_session* s, sd_sequence* q, int gamma, sd_proposal* p, sd_joint* joint) {
    p->depth = q->max_text - q->n_text - 1;
    int most = p->depth < s->max_forced ? p->depth : s->max_forced;
    look_ahead(q, most, &joint->n_forced);
    int budget = budget_of(q, gamma, p->depth);
    plan(s, budget, joint);
    if (joint->n_forced > 0)
        budget = budget_of(q, joint->n_shown > 0 ? gamma : 0, p->depth - joint->n_forced);
    p->budget = joint->n_forced + budget;
}

/* The drafter's part of the tree, when it is known how many rows there may be: its nodes go where the round's
 * tree is kept. */
static void open_proposal(const sd_session* s, int i) {
    sd_proposal* p = &s->proposals[i];
    const sd_sequence* q = &s->sequences[p->sequence];
    sd_joint* joint = &s->joints[i];
    const sd_tree* whole = &s->records[s->n_records + i].tree;
    if (joint->n_forced > p->budget) joint->n_forced = p->budget;
    if (joint->n_shown > joint->n_forced) joint->n_shown = joint->n_forced;
    int n = joint->n_forced;
    size_t n_vocab = (size_t)s->options.target->config.n_vocab;
    p->budget -= n;
    p->n_text = q->n_text + joint->n_shown;
    p->depth = q->max_text - p->n_text - 1;
    if (p->origins != NULL)
        for (int j = 1; j <= n; j++) p->origins[j] = -1;
    if (p->origins != NULL) p->origins += n;
    p->tree = (sd_tree){1, whole->tokens + n, joint->parents, joint->drawn_from + n};
    for (int j = 1; j <= p->budget && joint->weights != NULL; j++)
        p->tree.drawn_from[j].weights = joint->weights + (size_t)j * n_vocab;
    p->tree.tokens[0] = p->text[p->n_text - 1];
    p->tree.parents[0] = -1;
    p->depths[0] = 0;
    p->path_prob[0] = 1.0;
}

/* Does gamma="auto" draft in a round of n_open sequences? If not, *gamma becomes 0. Where the drafter has
 * much to read before it may draft, that is read in slices between rounds that do not draft. */
static sd_status choose_gamma(sd_session* s, int n_open, int* gamma) {
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    if (adaptive == NULL || n_open == 0) return SD_OK;
    int drafts = sd_adaptive_gamma_begin(adaptive, n_open, *gamma);
    sd_status status = drafts ? sd_session_wake(s, &drafts) : SD_OK;
    if (!drafts) *gamma = 0;
    return status;
}

/* End the sequences that have failed since their last round, each with a record. */
static void end_failed(sd_session* s) {
    for (int i = 0; i < s->n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!is_open(q) || q->failure.status == SD_OK) continue;
        sd_record* record = &s->records[s->n_records++];
        record->sequence = i;
        record->settings = &q->settings;
        record->status = q->failure.status;
        record->message = q->failure.message;
        record->tree.n_nodes = 1;
        record->tree.tokens[0] = q->text[q->n_text - 1];
        record->tree.parents[0] = -1;
        record->node_rows[0] = 0;
        record->complete = record->first_row = record->n_rows = 0;
        record->logits_row = 0;
        record->verdict.n_path = record->verdict.n_betas = 0;
        record->experts = record->draft_s = record->verify_s = record->other_s = 0.0;
        q->finished = 1;
    }
}

/* Collect the sequences that take rounds and say how far each may guess: a round adds at most one token
 * more than it guesses in a row, and the text must not pass its length. */
static sd_status open_round(sd_session* s, const int32_t* gammas) {
    int n_open = 0, gamma = s->drafter ? s->options.gamma : 0;
    for (int i = 0; i < s->n_sequences; i++) n_open += takes_part(s, i, gammas);
    s->n_open = 0;
    sd_status status = choose_gamma(s, n_open, &gamma);
    if (status != SD_OK) return status;
    end_failed(s);
    n_open = 0;
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    for (int i = 0; i < s->n_sequences; i++) {
        sd_sequence* q = &s->sequences[i];
        if (!takes_part(s, i, gammas)) continue;
        int wanted = gammas && gammas[i] < gamma ? gammas[i] : gamma;
        sd_proposal* p = &s->proposals[s->n_open];
        sd_record* record = &s->records[s->n_records + s->n_open];
        p->sequence = i;
        p->text = q->text;
        p->n_text = q->n_text;
        p->n_prompt = q->n_prompt;
        p->sampling = q->settings.draft_sampling;
        p->rule = q->settings.verify.rule;
        p->drafters = q->settings.drafters;
        p->stream = q->stream;
        p->constraint = q->settings.verify.constraint;
        open_joint(s, q, wanted, p, &s->joints[s->n_open]);
        p->policy = adaptive ? &adaptive->drafter : NULL;
        p->rejected_at = p->origin = 0;
        p->failure = &q->failure;
        p->origins = q->settings.n_prediction > 0 ? record->origins : NULL;
        p->cache = &s->caches[i];
        n_open = ++s->n_open;
    }
    int n_nodes = s->options.node_budget / (1 + s->riding.n);
    if (n_nodes > 0) sd_proposals_share(s->proposals, n_open, n_nodes, &s->turn);
    s->drafting = 0;
    for (int i = 0; i < n_open; i++) {
        sd_sequence* q = &s->sequences[s->proposals[i].sequence];
        open_proposal(s, i);
        q->drafts = s->proposals[i].budget > 0;
        s->drafting |= q->drafts;
    }
    return SD_OK;
}

/* The tree of a round, of what has been proposed, where the record keeps it. */
static void join(const sd_session* s, int i, sd_tree* tree) {
    const sd_proposal* p = &s->proposals[i];
    const sd_joint* joint = &s->joints[i];
    const int32_t* text = s->sequences[p->sequence].text + s->sequences[p->sequence].n_text;
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

/* The drafter with riders in a round that has them, else NULL. */
static sd_drafter* find_rider(const sd_session* s) {
    return s->drafting && s->riding.n > 0 ? sd_drafter_riding(s->drafter) : NULL;
}

/* The rows of a tree, as nodes of the forward, and their riders. Nothing rides for a text that may not guess,
 * whatever others do: what it guesses next must not depend on them. */
static void fill_branch(sd_session* s, int i, const sd_riders* riders, sd_record* record) {
    static const sd_riders none = {0};
    sd_cache* cache = s->proposals[i].cache;
    const sd_sequence* q = &s->sequences[record->sequence];
    if (!q->drafts) riders = &none;
    int32_t *tokens = s->row_tokens + (ptrdiff_t)i * s->max_rows,
            *parents = s->row_parents + (ptrdiff_t)i * s->max_rows;
    int n = sd_tree_rows_fill(&record->tree, cache, record->node_rows, tokens, parents, s->kept);
    record->n_rows = sd_riding_append(&s->riding, i, riders, n, q->max_text - q->n_text - 1, tokens, parents);
    s->branches[i] = (sd_branch){.cache = cache,
                                 .tokens = tokens,
                                 .parents = parents,
                                 .n_new = record->n_rows,
                                 .n_logits = n,
                                 .n_riders = record->n_rows - n,
                                 .riders = riders->embeddings};
}

static sd_status run_target(sd_session* s, sd_record* records) {
    const sd_drafter* rider = find_rider(s);
    const sd_riders none = {0}, *riders = rider ? &rider->riders : &none;
    ptrdiff_t logits_row = 0;
    for (int i = 0, row = 0; i < s->n_open; i++) {
        records[i].sequence = s->proposals[i].sequence;
        records[i].settings = &s->sequences[records[i].sequence].settings;
        records[i].status = SD_OK;
        records[i].complete = 0;
        join(s, i, &records[i].tree);
        records[i].first_row = row;
        records[i].logits_row = logits_row;
        fill_branch(s, i, riders, &records[i]);
        row += records[i].n_rows;
        logits_row += s->branches[i].n_logits;
    }
    const sd_workspace* w = &s->workspace;
    long n_mixtures = w->n_mixtures, n_touched = w->n_touched;
    sd_status status =
        sd_forward_finish(&s->workspace, s->branches, s->n_open); /* a drafter may have begun */
    n_mixtures = w->n_mixtures - n_mixtures, n_touched = w->n_touched - n_touched;
    for (int i = 0; i < s->n_open; i++)
        records[i].experts = n_mixtures > 0 ? (double)n_touched / (double)n_mixtures : 0.0;
    return status;
}

/* Show the drafter what the target says of its guesses. */
static sd_status observe(sd_session* s, int i, const sd_record* record) {
    if (!s->drafting || s->drafter->observe == NULL) return SD_OK;
    const sd_workspace* w = &s->workspace;
    return s->drafter->observe(s->drafter, &s->proposals[i], record->node_rows + s->joints[i].n_shown,
                               w->logits + record->logits_row * w->ld_logits, w->ld_logits);
}

/* A text that is complete behind an accepted guess ends with it: that guess is the verdict's last token. */
static void end_with_form(const sd_verification* asked, sd_record* record) {
    sd_verdict* v = &record->verdict;
    sd_constraint* constraint = asked->options->constraint;
    for (int i = 0; constraint != NULL && i < v->n_path && !record->complete; i++) {
        sd_mask mask;
        if (sd_constraint_mask(constraint, asked->text, asked->n_text, asked->tree, v->path[i], &mask))
            continue;
        record->complete = 1;
        v->token = asked->tree->tokens[v->path[i]];
        v->n_path = i;
        if (v->n_betas > i + 1) v->n_betas = i + 1;
    }
}

static sd_status verify(sd_session* s, sd_record* record) {
    const sd_sequence* q = &s->sequences[record->sequence];
    const sd_workspace* w = &s->workspace;
    const sd_verification verification = {.options = &q->settings.verify,
                                          .text = q->text,
                                          .n_text = q->n_text,
                                          .n_prompt = q->n_prompt,
                                          .stream = q->stream,
                                          .tree = &record->tree,
                                          .node_rows = record->node_rows,
                                          .logits = w->logits + record->logits_row * w->ld_logits,
                                          .stride = w->ld_logits,
                                          .forward = &s->workspace,
                                          .first_row = record->first_row};
    sd_status status = sd_verifier_run(&s->verifier, &verification, &record->verdict);
    if (status != SD_OK) return status;
    end_with_form(&verification, record);
    return sd_token_laws_fill(&record->laws, &q->settings.laws, &s->verifier, &verification,
                              &record->verdict);
}

/* Has what is the sequence's own failed: its settings, its text, or what the caller's draft does for it? */
static int is_own(sd_status status) {
    return status == SD_ERR_CALLBACK || status == SD_ERR_SETTING || status == SD_ERR_OVERFLOW;
}

/* End a sequence that has failed; its text stays what it was, and so do the others. */
static sd_status end_by(sd_session* s, sd_record* record, sd_status status) {
    sd_sequence* q = &s->sequences[record->sequence];
    sd_failure_note(&q->failure, status);
    record->status = q->failure.status;
    record->message = q->failure.message;
    record->verdict.n_path = record->verdict.n_betas = 0;
    q->finished = 1;
    return sd_cache_keep(&s->caches[record->sequence], NULL, 0);
}

/* Keep the accepted path in the target's cache, append the new tokens and tell the drafter. */
static sd_status commit(sd_session* s, const sd_record* record) {
    sd_sequence* q = &s->sequences[record->sequence];
    const sd_verdict* v = &record->verdict;
    s->kept[0] = 0; /* the root */
    for (int i = 0; i < v->n_path; i++) s->kept[i + 1] = record->node_rows[v->path[i]];
    sd_status status = sd_cache_keep(&s->caches[record->sequence], s->kept, v->n_path + 1);
    if (status != SD_OK) return status;
    for (int i = 0; i < v->n_path; i++) sd_sequence_append(q, record->tree.tokens[v->path[i]]);
    sd_sequence_append(q, v->token);
    if (s->drafter == NULL || !sd_sequence_is_drafted(q) || q->draft_late) return SD_OK;
    return sd_drafter_commit(s->drafter, record->sequence, q->text, q->n_text);
}

/* The rest of a round of one sequence, when the target has been run; one that fails by its own ends. */
static sd_status settle(sd_session* s, int i, sd_record* record) {
    sd_status status = s->proposals[i].failure->status;
    if (status != SD_OK) return end_by(s, record, status);
    if ((status = observe(s, i, record)) != SD_OK) return status;
    status = verify(s, record);
    if (status == SD_OK) status = commit(s, record);
    return is_own(status) ? end_by(s, record, status) : status;
}

/* Find out what may follow the new texts that go on; one that is complete ends. */
static void follow_forms(sd_session* s, sd_record* records) {
    const sd_state_source* source = NULL;
    for (int i = 0; i < s->n_open; i++) {
        sd_sequence* q = &s->sequences[records[i].sequence];
        sd_constraint* c = q->settings.verify.constraint;
        q->finished |= records[i].complete;
        if (c == NULL || q->finished) continue;
        if (source == NULL) {
            source = &c->source.states;
            source->enter(source->context);
        }
        if (sd_constraint_follow(c, q->text, q->n_text) == SD_OK && c->complete)
            q->finished = records[i].complete = 1;
    }
    if (source != NULL) source->leave(source->context);
}

/* Tell the drafter with riders what the target says after those behind the last accepted node of each text
 * that goes on. */
static sd_status ride(sd_session* s, const sd_record* records) {
    sd_drafter* rider = find_rider(s);
    int n = 0;
    for (int i = 0; i < s->n_open && rider != NULL; i++) {
        const sd_sequence* q = &s->sequences[records[i].sequence];
        const sd_verdict* v = &records[i].verdict;
        int node = v->n_path > 0 ? v->path[v->n_path - 1] : 0;
        if (q->finished) continue;
        s->rides[n] = sd_riding_behind(&s->riding, i, records[i].node_rows[node], records[i].first_row);
        s->rides[n].sequence = records[i].sequence;
        s->rides[n++].n_text = q->n_text;
    }
    return sd_riding_tell(&s->riding, rider, &s->workspace, s->rides, n);
}

/* What the round was like: seconds of proposing and of all else. */
static void tell_adaptive_gamma(sd_session* s, const sd_record* records, double draft_s, double rest_s) {
    sd_adaptive_gamma_round round = {
        .n_asked = s->drafting ? s->n_open : 0, .draft_s = draft_s, .rest_s = rest_s};
    for (int i = 0; i < s->n_open; i++) {
        const sd_proposal* p = &s->proposals[i];
        const sd_verdict* v = &records[i].verdict;
        if (records[i].status != SD_OK) continue;
        int deepest = p->rejected_at;
        for (int node = 1; node < p->tree.n_nodes; node++)
            if (p->depths[node] > deepest) deepest = p->depths[node];
        const sd_joint* joint = &s->joints[i];
        int n_own = 0;
        for (int j = joint->n_forced; j < v->n_path; j++) s->kept[n_own++] = v->path[j] - joint->n_forced;
        if (s->drafting) sd_adaptive_gamma_observe(s->options.adaptive_gamma, p, s->kept, n_own);
        round.n_rows += records[i].n_rows;
        round.n_guesses += s->branches[i].n_logits - 1 - joint->n_forced;
        round.n_steps += deepest;
        round.n_tokens += v->n_path + 1;
    }
    sd_adaptive_gamma_end(s->options.adaptive_gamma, &round);
}

/* One round of the open sequences. */
static sd_status run_round(sd_session* s) {
    double begun = sd_now();
    if (s->drafting) begun -= s->waking_s, s->waking_s = 0.0;
    sd_record* records = s->records + s->n_records;
    sd_status status = SD_OK;
    if (s->drafting) status = s->drafter->propose(s->drafter, s->proposals, s->n_open);
    if (status != SD_OK) return status;
    double drafted = sd_now();
    status = run_target(s, records);
    if (status != SD_OK) return status;
    double verified = sd_now();
    for (int i = 0; i < s->n_open && status == SD_OK; i++) status = settle(s, i, &records[i]);
    if (status == SD_OK) follow_forms(s, records);
    if (status == SD_OK) status = ride(s, records);
    double draft_s = s->drafting ? drafted - begun - s->drafter->other_s : 0.0;
    double verify_s = verified - drafted, ended = sd_now(), other_s = ended - begun - draft_s - verify_s;
    if (s->options.adaptive_gamma && status == SD_OK)
        tell_adaptive_gamma(s, records, drafted - begun, ended - drafted);
    for (int i = 0; i < s->n_open; i++)
        records[i].draft_s = draft_s, records[i].verify_s = verify_s, records[i].other_s = other_s;
    if (status == SD_OK) s->n_records += s->n_open;
    return status;
}

/* Has a sequence ended, by the records from `first` on? */
static int one_ended(const sd_session* s, int first) {
    for (int i = first; i < s->n_records; i++)
        if (s->sequences[s->records[i].sequence].finished) return 1;
    return 0;
}

sd_status sd_session_rounds(sd_session* s, double seconds, int until_end, const int32_t* gammas) {
    int n_left = 0, n_open = 0, first = 0; /* record of the round */
    for (int i = 0; i < s->n_sequences; i++) {
        n_open += is_open(&s->sequences[i]);
        n_left += !s->sequences[i].ready;
    }
    if (s->failed || (n_open == 0 && n_left > 0)) return sd_session_refuse(s);
    double begun = sd_now();
    sd_status status = SD_OK;
    s->n_records = 0;
    do {
        first = s->n_records;
        status = open_round(s, gammas);
        if (status != SD_OK || s->n_open == 0) break;
        status = run_round(s);
    } while (status == SD_OK && s->n_records + s->n_sequences <= s->max_records &&
             sd_now() - begun < seconds && !(until_end && one_ended(s, first)));
    s->failed = status != SD_OK;
    int at_once = status == SD_ERR_CALLBACK || status == SD_ERR_INTERRUPTED;
    if (status == SD_OK || at_once || s->n_records == 0) return status;
    s->untold = status; /* this call returns the records of the earlier rounds */
    snprintf(s->message, sizeof s->message, "%s", sd_message());
    return SD_OK;
}

const sd_record* sd_session_records(const sd_session* s, int* n) {
    *n = s->n_records;
    return s->records;
}

const float* sd_session_logits(const sd_session* s, ptrdiff_t* stride) {
    *stride = s->workspace.ld_logits;
    return s->workspace.logits;
}
