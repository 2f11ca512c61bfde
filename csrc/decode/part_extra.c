/* Extra query tokens in a round. */
#include "round_parts.h"

sd_status sd_extra_begin(sd_session* s) {
    sd_drafter* owner = NULL;
    sd_status status = s->drafter ? sd_drafter_find_queries(s->drafter, &owner) : SD_OK;
    if (status != SD_OK || owner == NULL) return status;
    int n = owner->extra.n, n_sequences = s->shape.n_sequences, least = n_sequences * (1 + n);
    int d_model = s->options.target->config.d_model, node_budget = s->options.node_budget;
    if (owner->extra.d_model != d_model)
        return sd_fail(SD_ERR_VALUE, "the draft's look-ahead embeddings have %d numbers, expected %d",
                       owner->extra.d_model, d_model);
    if (node_budget > 0 && node_budget < least)
        return sd_fail(
            SD_ERR_SETTING,
            "node_budget is %d, expected at least %d: a row and %d look-ahead embeddings for each of "
            "%d sequences",
            node_budget, least, n, n_sequences);
    s->extra.n = n;
    return SD_OK;
}

void sd_extra_take(sd_session* s) {
    size_t n = (size_t)s->shape.n_sequences, nodes = (size_t)s->max_nodes;
    s->extra.first = sd_arena_take(&s->arena, n, (nodes + 1) * sizeof *s->extra.first);
    s->extra.rows = sd_arena_take(&s->arena, n, (size_t)s->extra.n * sizeof *s->extra.rows);
    s->extra.runs = sd_arena_take(&s->arena, n, sizeof *s->extra.runs);
}

static int32_t* first_of(const sd_session* s, int i) {
    return s->extra.first + (ptrdiff_t)i * (s->max_nodes + 1);
}

void sd_extra_after_propose(sd_session* s) {
    s->extra.active = s->round.drafting && s->extra.n > 0 ? sd_drafter_active_queries(s->drafter) : NULL;
}

const float* sd_extra_append(const sd_session* s, int i, int* n_rows, int32_t* tokens, int32_t* parents) {
    const sd_sequence* q = &s->sequences[s->round.records[i].sequence];
    if (s->extra.active == NULL) return NULL;
    int32_t* first = first_of(s, i);
    int n = *n_rows, n_each = q->drafts ? s->extra.active->extra.n : 0;
    for (int row = 0; row < *n_rows; row++) {
        int n_free = q->max_text - q->n_text - 2; /* the target's own token comes after the draft tokens */
        for (int at = row; parents[at] >= 0; at = parents[at]) n_free--;
        first[row] = n;
        for (int k = 0; k < n_each && k < n_free; k++, n++) {
            tokens[n] = -1 - k;
            parents[n] = k == 0 ? row : n - 1;
        }
    }
    *n_rows = first[*n_rows] = n;
    return s->extra.active->extra.embeddings;
}

sd_status sd_extra_after_commit(sd_session* s) {
    sd_drafter* drafter = s->extra.active;
    sd_workspace* w = &s->workspace;
    int n_runs = 0, n = 0;
    if (drafter == NULL) return SD_OK;
    for (int i = 0; i < s->round.n_open; i++) {
        const sd_record* record = &s->round.records[i];
        const sd_verdict* v = &record->verdict;
        int node = v->n_path > 0 ? v->path[v->n_path - 1] : 0;
        const int32_t* first = first_of(s, i) + record->node_rows[node];
        if (s->sequences[record->sequence].finished) continue;
        sd_extra_run run = {record->sequence, record->first_row + first[0], first[1] - first[0]};
        for (int k = 0; k < run.n; k++) s->extra.rows[n++] = run.row + k;
        s->extra.runs[n_runs++] = run;
    }
    if (n == 0) return SD_OK;
    const float* logits;
    sd_status status = sd_forward_more_logits(w, s->extra.rows, n, &logits);
    for (int i = 0; i < n_runs && status == SD_OK; i++) {
        const sd_extra_run* run = &s->extra.runs[i];
        status = drafter->observe_extra(drafter, run->sequence, s->sequences[run->sequence].n_text, logits,
                                        w->ld_logits, run->n);
        logits += run->n * w->ld_logits;
    }
    return status;
}
