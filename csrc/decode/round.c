/* A round is Algorithm 1 of Leviathan et al. 2023, for a batch of sequences and trees of draft tokens:
 *
 *   propose   sample draft tokens from the draft
 *   forward   run the target once, on all of them
 *   verify    accept or reject them; sample a recovered token, or a bonus token after the last one
 *   commit    append the accepted tokens and that token to the text
 *
 * Extensions are called at four points: before_draft, after_propose, after_verify, after_commit
 * (round_parts.h). */
#include <string.h>

#include "clock.h"
#include "interrupt.h"
#include "pool.h"
#include "round_parts.h"

/* Sequences that a thread verifies between two checks for an interrupt. */
#define IN_A_LOOP 8

static sd_status propose(sd_session* s) {
    sd_round* r = &s->round;
    sd_status status = r->drafting ? s->drafter->propose(s->drafter, r->proposals, r->n_open) : SD_OK;
    if (status != SD_OK) return status;
    for (int i = 0; i < r->n_open; i++) sd_forced_after_propose(s, i);
    sd_extra_after_propose(s);
    return SD_OK;
}

static sd_status forward(sd_session* s) {
    sd_round_fill_branches(s);
    /* continues a pass that a drafter has begun in the target's cache */
    return sd_forward_finish(&s->workspace, s->round.branches, s->round.n_open);
}

static sd_status verify(sd_session* s, int i, sd_verifier* verifier, int in_team) {
    sd_record* record = &s->round.records[i];
    const sd_verification verification = sd_round_verification(s, i, in_team);
    sd_status status = sd_verifier_run(verifier, &verification, &record->verdict);
    if (status != SD_OK) return status;
    sd_constraint_after_verify(&verification, record);
    return sd_logprobs_fill(&record->logprobs, &record->settings->logprobs, verifier, &verification,
                            &record->verdict);
}

/* Some sequences of a round. */
typedef struct span {
    sd_session* session;
    int first;
} span;

/* Verify sequences that call no user function. One that fails is verified again in its turn, where it may
 * check for an interrupt and name the number that is not finite. */
static void verify_some(void* argument, int thread, int first, int end) {
    const span* of = argument;
    sd_session* s = of->session;
    for (int i = of->first + first; i < of->first + end; i++) {
        const sd_verifier_options* o = &s->round.records[i].settings->verify;
        int pure = o->constraint == NULL && !o->transform.apply && !o->transform.apply_state &&
                   s->round.proposals[i].failure->status == SD_OK;
        s->round.verified[i] = pure && verify(s, i, &s->verifiers[thread], 1) == SD_OK;
    }
}

/* Verify the sequences of a batch by all threads. */
static sd_status verify_together(sd_session* s) {
    int n = s->round.n_open, most = IN_A_LOOP * s->n_verifiers;
    memset(s->round.verified, 0, (size_t)n);
    for (int first = 0; first < n && n > 1 && s->n_verifiers > 1; first += most) {
        span of = {s, first};
        const sd_team team = sd_team_open(s->n_verifiers);
        sd_team_run(&team, n - first < most ? n - first : most, 1, verify_some, &of);
        sd_team_close(&team);
        SD_TRY(sd_interrupted());
    }
    return SD_OK;
}

static sd_status commit(sd_session* s, int i) {
    const sd_record* record = &s->round.records[i];
    sd_sequence* q = &s->sequences[record->sequence];
    const sd_verdict* v = &record->verdict;
    int32_t* rows = s->round.scratch; /* to keep: the root's and those of the accepted path */
    rows[0] = 0;
    for (int k = 0; k < v->n_path; k++) rows[k + 1] = record->node_rows[v->path[k]];
    sd_status status = sd_cache_keep(&s->caches[record->sequence], rows, v->n_path + 1);
    if (status != SD_OK) return status;
    for (int k = 0; k < v->n_path; k++) sd_sequence_append(q, record->tree.tokens[v->path[k]]);
    sd_sequence_append(q, v->token); /* the recovered or bonus token */
    if (s->drafter == NULL || !sd_sequence_is_drafted(q) || q->draft_lazy) return SD_OK;
    return sd_drafter_commit(s->drafter, record->sequence, q->text, q->n_text);
}

/* Verify the draft tokens of a sequence and commit; its own failure ends it alone. */
static sd_status settle(sd_session* s, int i) {
    sd_status status = s->round.proposals[i].failure->status;
    if (status != SD_OK) return sd_round_end_by(s, i, status);
    if ((status = sd_round_observe(s, i)) != SD_OK) return status;
    if (!s->round.verified[i]) status = verify(s, i, &s->verifiers[0], 0);
    if (status == SD_OK) status = commit(s, i);
    return sd_failure_is_own(status) ? sd_round_end_by(s, i, status) : status;
}

sd_status sd_round_run(sd_session* s) {
    sd_round_times times = {.begun = sd_now()};
    sd_status status = propose(s);
    times.drafted = sd_now();
    if (status == SD_OK) status = forward(s);
    times.forwarded = sd_now();
    if (status == SD_OK) status = verify_together(s);
    for (int i = 0; i < s->round.n_open && status == SD_OK; i++) status = settle(s, i);
    if (status == SD_OK) sd_constraint_after_commit(s);
    if (status == SD_OK) status = sd_extra_after_commit(s);
    times.ended = sd_now();
    if (status == SD_OK) sd_round_note(s, &times);
    return status;
}
