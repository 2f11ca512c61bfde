/* Extra query tokens in a round. */
#include "round_parts.h"

void sd_extra_after_propose(sd_session* s) {
    s->extra.active = s->round.drafting && s->extra.n > 0 ? sd_drafter_active_queries(s->drafter) : NULL;
}

sd_status sd_extra_after_commit(sd_session* s) {
    if (s->extra.active == NULL) return SD_OK;
    int n = 0;
    for (int i = 0; i < s->round.n_open; i++) {
        const sd_record* record = &s->round.records[i];
        const sd_sequence* q = &s->sequences[record->sequence];
        const sd_verdict* v = &record->verdict;
        int node = v->n_path > 0 ? v->path[v->n_path - 1] : 0;
        if (q->finished) continue;
        sd_extra_run* run = &s->extra.runs[n++];
        *run = sd_extra_rows_after(&s->extra, i, record->node_rows[node], record->first_row);
        run->sequence = record->sequence;
        run->n_text = q->n_text;
    }
    return sd_extra_rows_observe(&s->extra, &s->workspace, n);
}
