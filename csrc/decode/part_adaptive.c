/* gamma="auto" in a round. */
#include "round_parts.h"

sd_status sd_adaptive_before_draft(sd_session* s, int n_open, int* gamma) {
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    s->round.planned = 0, s->round.gain = 0.0;
    if (adaptive == NULL || n_open == 0) return SD_OK;
    int drafts = sd_adaptive_gamma_begin(adaptive, n_open, *gamma);
    sd_status status = drafts ? sd_session_catch_up(s, &drafts) : SD_OK;
    if (!drafts) *gamma = 0;
    int paused = sd_adaptive_gamma_paused(adaptive);
    s->round.planned = paused ? -1 : adaptive->drafter.planned;
    s->round.gain = paused ? 1.0 : sd_throughput_gain(&adaptive->throughput);
    return status;
}

int sd_adaptive_asks(const sd_session* s, int i) {
    const sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    return adaptive == NULL || sd_drafter_policy_asks(&adaptive->drafter, &adaptive->throughput, i);
}

void sd_adaptive_after_commit(sd_session* s, double draft_s, double rest_s) {
    sd_adaptive_gamma* adaptive = s->options.adaptive_gamma;
    const sd_round* r = &s->round;
    if (adaptive == NULL) return;
    sd_adaptive_gamma_round round = {.draft_s = draft_s, .rest_s = rest_s};
    for (int i = 0; i < r->n_open; i++) {
        const sd_proposal* p = &r->proposals[i];
        const sd_verdict* v = &r->records[i].verdict;
        if (r->records[i].status != SD_OK) continue;
        int deepest = p->rejected_at, n_forced = r->joints[i].n_forced, n_own = 0;
        for (int node = 1; node < p->tree.n_nodes; node++)
            if (p->depths[node] > deepest) deepest = p->depths[node];
        for (int j = n_forced; j < v->n_path; j++) r->scratch[n_own++] = v->path[j] - n_forced;
        int asked = r->drafting && sd_adaptive_asks(s, i);
        if (asked) sd_drafter_policy_observe(&adaptive->drafter, p, r->scratch, n_own, 0.0, n_own);
        round.n_asked += asked;
        round.n_rows += r->records[i].n_rows;
        round.n_draft_tokens += r->branches[i].n_logits - 1 - n_forced;
        round.n_steps += deepest;
        round.n_tokens += v->n_path + 1;
    }
    sd_adaptive_gamma_end(adaptive, &round);
}
