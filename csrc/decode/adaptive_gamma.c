#include "adaptive_gamma.h"

#include <string.h>

void sd_adaptive_gamma_reset(sd_adaptive_gamma* a) {
    memset(a, 0, sizeof *a);
    sd_drafter_policy_reset(&a->drafter);
}

void sd_adaptive_gamma_start(sd_adaptive_gamma* a, sd_expert_reads expert_reads, int n_extra, int n_slots) {
    sd_adaptive_gamma_enter(a, n_slots);
    sd_throughput_start(&a->throughput, expert_reads);
    a->drafter.n_extra = n_extra;
    sd_drafter_schedule_start(&a->drafter.schedule);
}

static int load_of(int n_open) {
    int load = 0;
    while (load < SD_ADAPTIVE_LOADS - 1 && n_open >= 2 << load) load++;
    return load;
}

static sd_adaptive_load leave(const sd_adaptive_gamma* a) {
    const sd_throughput* t = &a->throughput;
    const sd_drafter_policy* p = &a->drafter;
    return (sd_adaptive_load){p->schedule.n_rounds > 0, t->tokens, t->seconds, t->n_drafted, p->draft,
                              p->n_draft_tokens,        p->steps,  p->schedule};
}

void sd_adaptive_gamma_enter(sd_adaptive_gamma* a, int n_open) {
    sd_throughput* t = &a->throughput;
    sd_drafter_policy* p = &a->drafter;
    int load = load_of(n_open), n_before = t->n_open;
    t->n_open = n_open;
    if (load == a->load) return;
    sd_adaptive_load old = leave(a), new = a->loads[load];
    if (!t->target.known) { /* nothing has been learned */
        a->load = load;
        return;
    }
    if (!new.known) {
        double before_s = sd_cost_model_seconds(&t->target, n_before);
        new.draft = old.draft;
        sd_cost_model_scale(&new.draft, (double)n_open / n_before,
                            sd_cost_model_seconds(&t->target, n_open) / before_s);
        new.n_draft_tokens = old.n_draft_tokens, new.steps = old.steps;
        sd_drafter_schedule_reset(&new.schedule);
        if (p->acceptance.whole.n > 0.0) new.schedule.trial_left = 0; /* expectations decide */
    }
    sd_drafter_schedule_carry(&new.schedule, &old.schedule);
    a->loads[a->load] = old;
    a->load = load;
    t->tokens = new.tokens, t->seconds = new.seconds, t->n_drafted = new.n_drafted;
    p->draft = new.draft, p->n_draft_tokens = new.n_draft_tokens, p->steps = new.steps;
    p->schedule = new.schedule;
}

int sd_adaptive_gamma_paused(const sd_adaptive_gamma* a) { return a->drafter.schedule.pause_left > 0.0; }

int sd_adaptive_gamma_begin(sd_adaptive_gamma* a, int n_open, int gamma) {
    sd_adaptive_gamma_enter(a, n_open);
    sd_throughput_begin(&a->throughput, n_open);
    a->drafter.drafting = a->drafter.planned = 0;
    if (sd_adaptive_gamma_paused(a)) return 0; /* whatever drafting costs */
    sd_drafter_policy_plan(&a->drafter, &a->throughput, gamma);
    /* measure rounds without drafting first, for comparison */
    if (!sd_throughput_knows_plain(&a->throughput)) gamma = 0;
    return sd_drafter_policy_begin(&a->drafter, &a->throughput, gamma, n_open);
}

void sd_adaptive_gamma_end(sd_adaptive_gamma* a, const sd_adaptive_gamma_round* r) {
    sd_throughput* t = &a->throughput;
    int n_open = t->n_open, n_asked = a->drafter.drafting ? r->n_asked : 0, drafting = n_asked > 0;
    sd_throughput_measure(t, r->n_rows, r->draft_s, r->rest_s,
                          drafting ? sd_drafter_policy_expects(&a->drafter, t, n_asked, r->n_steps) : 0.0);
    const sd_drafter_round own = {.n_asked = n_asked,
                                  .n_rows = n_open,
                                  .n_draft_tokens = r->n_draft_tokens,
                                  .n_steps = r->n_steps,
                                  .n_added = r->n_tokens - n_open,
                                  .n_tokens = r->n_tokens,
                                  .draft_s = r->draft_s};
    double draft_s = sd_drafter_policy_end(&a->drafter, t, &own);
    if (drafting) sd_throughput_add(t, r->n_rows, r->n_tokens, draft_s);
}
