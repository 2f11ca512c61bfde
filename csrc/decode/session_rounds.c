/* Rounds of a session: which sequences take part in each, and how much they may draft. */
#include "clock.h"
#include "round_parts.h"

/* Does a sequence take part in a round with these gammas? A negative one leaves it out. */
static int takes_part(const sd_session* s, int i, const int32_t* gammas) {
    return sd_sequence_is_open(&s->sequences[i]) && (gammas == NULL || gammas[i] >= 0);
}

/* Append the record of a sequence that ends by its failure, without any computation. */
static void end_failed(sd_session* s, int i) {
    sd_sequence* q = &s->sequences[i];
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
    record->experts = record->draft_s = record->verify_s = record->other_s = record->gain = 0.0;
    record->planned = 0;
    q->finished = 1;
}

/* Add a sequence to the round. */
static void join(sd_session* s, int sequence, int gamma) {
    sd_round* r = &s->round;
    int i = r->n_open++;
    sd_sequence* q = &s->sequences[sequence];
    sd_record* record = &r->records[i];
    sd_proposal* p = &r->proposals[i];
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    record->sequence = p->sequence = sequence;
    record->settings = &q->settings;
    record->status = SD_OK;
    record->complete = 0;
    p->text = q->text;
    p->n_text = q->n_text;
    p->n_prompt = q->n_prompt;
    p->sampling = q->settings.draft_sampling;
    p->rule = q->settings.verify.rule;
    p->drafters = q->settings.drafters;
    p->stream = q->stream;
    p->constraint = q->settings.verify.constraint;
    p->policy = adaptive ? &adaptive->drafter : NULL;
    p->rejected_at = p->origin = 0;
    p->failure = &q->failure;
    p->origins = q->settings.n_prediction > 0 ? record->origins : NULL;
    p->cache = &s->caches[sequence];
    sd_forced_before_draft(s, i, gamma);
}

/* Collect the sequences of a round and set how much each may draft: a round adds at most one token more than
 * it drafts in a row, and the text must not exceed its length. */
static sd_status open_round(sd_session* s, const int32_t* gammas) {
    sd_round* r = &s->round;
    int n_open = 0, gamma = s->drafter ? s->options.gamma : 0, n = s->shape.n_sequences;
    for (int i = 0; i < n; i++) n_open += takes_part(s, i, gammas);
    r->n_open = r->drafting = 0;
    sd_status status = sd_adaptive_before_draft(s, n_open, &gamma);
    if (status != SD_OK) return status;
    for (int i = 0; i < n; i++)
        if (sd_sequence_is_open(&s->sequences[i]) && s->sequences[i].failure.status != SD_OK)
            end_failed(s, i);
    r->records = s->records + s->n_records;
    for (int i = 0; i < n; i++)
        if (takes_part(s, i, gammas)) {
            int most = gamma > 0 && sd_adaptive_asks(s, r->n_open) ? gamma : 0;
            join(s, i, gammas && gammas[i] < most ? gammas[i] : most);
        }
    int n_nodes = s->options.node_budget / (1 + s->extra.n);
    if (n_nodes > 0) sd_proposals_share(r->proposals, r->n_open, n_nodes, &r->turn);
    for (int i = 0; i < r->n_open; i++) {
        sd_forced_open_tree(s, i);
        sd_sequence* q = &s->sequences[r->proposals[i].sequence];
        q->drafts = r->proposals[i].budget > 0;
        r->drafting |= q->drafts;
    }
    return SD_OK;
}

/* Has a sequence ended in the records from `first` on? */
static int one_ended(const sd_session* s, int first) {
    for (int i = first; i < s->n_records; i++)
        if (s->sequences[s->records[i].sequence].finished) return 1;
    return 0;
}

sd_status sd_session_rounds(sd_session* s, double seconds, int until_end, const int32_t* gammas) {
    int n_left = 0, n_open = 0, first = 0; /* first record of the round */
    for (int i = 0; i < s->shape.n_sequences; i++) {
        n_open += sd_sequence_is_open(&s->sequences[i]);
        n_left += !s->sequences[i].ready;
    }
    if (s->failed || (n_open == 0 && n_left > 0)) return sd_session_refuse(s);
    double begun = sd_now();
    sd_status status = SD_OK;
    s->n_records = 0;
    do {
        first = s->n_records;
        status = open_round(s, gammas);
        if (status != SD_OK || s->round.n_open == 0) break;
        status = sd_round_run(s);
    } while (status == SD_OK && s->n_records + s->shape.n_sequences <= s->max_records &&
             sd_now() - begun < seconds && !(until_end && one_ended(s, first)));
    s->failed = status != SD_OK;
    int at_once = status == SD_ERR_CALLBACK || status == SD_ERR_INTERRUPTED;
    if (status == SD_OK || at_once || s->n_records == 0) return status;
    sd_failure_note(&s->deferred, status); /* this call returns the records of the earlier rounds */
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
