#include "adaptive_gamma.h"

#include <string.h>

void sd_adaptive_gamma_reset(sd_adaptive_gamma* a) {
    memset(&a->throughput, 0, sizeof a->throughput);
    sd_drafter_policy_reset(&a->drafter);
}

void sd_adaptive_gamma_start(sd_adaptive_gamma* a, sd_expert_reads expert_reads, int n_extra) {
    sd_throughput_start(&a->throughput, expert_reads);
    a->drafter.n_extra = n_extra;
    sd_drafter_schedule_start(&a->drafter.schedule);
}

int sd_adaptive_gamma_paused(const sd_adaptive_gamma* a) { return a->drafter.schedule.pause_left > 0.0; }

int sd_adaptive_gamma_begin(sd_adaptive_gamma* a, int n_open, int gamma) {
    sd_throughput_begin(&a->throughput, n_open);
    a->drafter.drafting = 0;
    if (sd_adaptive_gamma_paused(a)) return 0; /* whatever drafting costs */
    sd_drafter_policy_plan(&a->drafter, &a->throughput, gamma);
    /* measure rounds without drafting first, for comparison */
    if (!sd_throughput_knows_plain(&a->throughput)) gamma = 0;
    return sd_drafter_policy_begin(&a->drafter, &a->throughput, gamma, n_open);
}

void sd_adaptive_gamma_end(sd_adaptive_gamma* a, const sd_adaptive_gamma_round* r) {
    sd_throughput* t = &a->throughput;
    int n_open = t->n_open, drafting = a->drafter.drafting && r->n_asked > 0;
    sd_throughput_measure(t, r->n_rows, r->draft_s, r->rest_s,
                          drafting ? sd_drafter_policy_expects(&a->drafter, r->n_steps) : 0.0);
    const sd_drafter_round own = {.n_asked = drafting ? n_open : 0,
                                  .n_rows = n_open,
                                  .n_draft_tokens = r->n_draft_tokens,
                                  .n_steps = r->n_steps,
                                  .n_added = r->n_tokens - n_open,
                                  .n_tokens = r->n_tokens,
                                  .draft_s = r->draft_s};
    double draft_s = sd_drafter_policy_end(&a->drafter, t, &own);
    if (drafting) sd_throughput_add(t, r->n_rows, r->n_tokens, draft_s, r->rest_s);
}
