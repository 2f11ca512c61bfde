/* A round is Algorithm 1 of Leviathan et al. 2023, for a batch of sequences and trees of draft tokens:
 *
 *   propose   sample draft tokens from the draft
 *   forward   run the target once, on all of them
 *   verify    determine which are accepted; sample one more token from the target's adjusted distribution
 *   commit    append the accepted tokens and that one to the text
 *
 * Extensions join at four seams: before_draft, after_propose, after_verify, after_commit (round_parts.h). */
#include "clock.h"
#include "round_parts.h"
#include "tree_rows.h"

static sd_status propose(sd_session* s) {
    sd_round* r = &s->round;
    sd_status status = r->drafting ? s->drafter->propose(s->drafter, r->proposals, r->n_open) : SD_OK;
    if (status != SD_OK) return status;
    for (int i = 0; i < r->n_open; i++) sd_forced_after_propose(s, i);
    sd_extra_after_propose(s);
    return SD_OK;
}

/* The rows of a tree, as new nodes of the forward. */
static void fill_branch(const sd_session* s, int i) {
    const sd_round* r = &s->round;
    sd_record* record = &r->records[i];
    sd_cache* cache = r->proposals[i].cache;
    int32_t* tokens = r->row_tokens + (ptrdiff_t)i * s->max_rows;
    int32_t* parents = r->row_parents + (ptrdiff_t)i * s->max_rows;
    int n = sd_tree_rows_fill(&record->tree, cache, record->node_rows, tokens, parents, r->kept);
    record->n_rows = n;
    const float* extra = sd_extra_append(s, i, &record->n_rows, tokens, parents);
    r->branches[i] = (sd_branch){.cache = cache,
                                 .tokens = tokens,
                                 .parents = parents,
                                 .n_new = record->n_rows,
                                 .n_logits = n,
                                 .n_extra = record->n_rows - n,
                                 .extra = extra};
}

static sd_status forward(sd_session* s) {
    sd_round* r = &s->round;
    sd_workspace* w = &s->workspace;
    ptrdiff_t logits_row = 0;
    for (int i = 0, row = 0; i < r->n_open; i++) {
        r->records[i].first_row = row;
        r->records[i].logits_row = logits_row;
        fill_branch(s, i);
        row += r->records[i].n_rows;
        logits_row += r->branches[i].n_logits;
    }
    long n_mixtures = w->n_mixtures, n_touched = w->n_touched;
    sd_status status = sd_forward_finish(w, r->branches, r->n_open); /* a drafter may have begun */
    n_mixtures = w->n_mixtures - n_mixtures, n_touched = w->n_touched - n_touched;
    for (int i = 0; i < r->n_open; i++)
        r->records[i].experts = n_mixtures > 0 ? (double)n_touched / (double)n_mixtures : 0.0;
    return status;
}

static sd_status verify(sd_session* s, int i) {
    sd_record* record = &s->round.records[i];
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
    sd_constraint_after_verify(&verification, record);
    return sd_logprobs_fill(&record->logprobs, &q->settings.logprobs, &s->verifier, &verification,
                            &record->verdict);
}

static sd_status commit(sd_session* s, int i) {
    const sd_record* record = &s->round.records[i];
    sd_sequence* q = &s->sequences[record->sequence];
    const sd_verdict* v = &record->verdict;
    int32_t* kept = s->round.kept;
    kept[0] = 0; /* the root */
    for (int k = 0; k < v->n_path; k++) kept[k + 1] = record->node_rows[v->path[k]];
    sd_status status = sd_cache_keep(&s->caches[record->sequence], kept, v->n_path + 1);
    if (status != SD_OK) return status;
    for (int k = 0; k < v->n_path; k++) sd_sequence_append(q, record->tree.tokens[v->path[k]]);
    sd_sequence_append(q, v->token);
    if (s->drafter == NULL || !sd_sequence_is_drafted(q) || q->draft_lazy) return SD_OK;
    return sd_drafter_commit(s->drafter, record->sequence, q->text, q->n_text);
}

/* Show the drafter the target's logits after its draft tokens. */
static sd_status observe(sd_session* s, int i) {
    if (!s->round.drafting || s->drafter->observe == NULL) return SD_OK;
    const sd_workspace* w = &s->workspace;
    const sd_record* record = &s->round.records[i];
    return s->drafter->observe(s->drafter, &s->round.proposals[i],
                               record->node_rows + s->round.joints[i].n_shown,
                               w->logits + record->logits_row * w->ld_logits, w->ld_logits);
}

/* Is a failure confined to one sequence: its settings, its numbers, a function of the caller's? */
static int is_own(sd_status status) {
    return status == SD_ERR_CALLBACK || status == SD_ERR_SETTING || status == SD_ERR_OVERFLOW;
}

/* End a sequence that has failed; its text stays as it was, and the others go on. */
static sd_status end_by(sd_session* s, sd_record* record, sd_status status) {
    sd_sequence* q = &s->sequences[record->sequence];
    sd_failure_note(&q->failure, status);
    record->status = q->failure.status;
    record->message = q->failure.message;
    record->verdict.n_path = record->verdict.n_betas = 0;
    q->finished = 1;
    return sd_cache_keep(&s->caches[record->sequence], NULL, 0);
}

static sd_status verify_and_commit(sd_session* s, int i) {
    sd_record* record = &s->round.records[i];
    sd_status status = s->round.proposals[i].failure->status;
    if (status != SD_OK) return end_by(s, record, status);
    if ((status = observe(s, i)) != SD_OK) return status;
    status = verify(s, i);
    if (status == SD_OK) status = commit(s, i);
    return is_own(status) ? end_by(s, record, status) : status;
}

sd_status sd_round_run(sd_session* s) {
    const sd_round* r = &s->round;
    double begun = sd_now(), caught_up_s = r->drafting ? s->catch_up_s : 0.0;
    s->catch_up_s -= caught_up_s;
    sd_status status = propose(s);
    if (status != SD_OK) return status;
    double drafted = sd_now();
    if ((status = forward(s)) != SD_OK) return status;
    double verified = sd_now();
    for (int i = 0; i < r->n_open && status == SD_OK; i++) status = verify_and_commit(s, i);
    if (status == SD_OK) sd_constraint_after_commit(s);
    if (status == SD_OK) status = sd_extra_after_commit(s);
    if (status != SD_OK) return status;
    double ended = sd_now(), proposing_s = drafted - begun + caught_up_s;
    double draft_s = r->drafting ? proposing_s - s->drafter->other_s : 0.0;
    sd_adaptive_after_commit(s, proposing_s, ended - drafted);
    for (int i = 0; i < r->n_open; i++) {
        r->records[i].draft_s = draft_s;
        r->records[i].verify_s = verified - drafted;
        r->records[i].other_s = ended - verified + proposing_s - draft_s;
    }
    s->n_records += r->n_open;
    return SD_OK;
}
