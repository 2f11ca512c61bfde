#include "drafter_policy.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* Proposals that `right` and `added` average over. */
#define PROPOSALS 64.0
/* Rounds that the means of draft tokens and steps average over. */
#define ROUNDS 64.0
/* Weight of each rate after a pause, in draft tokens. */
#define LOOK_AGAIN 8.0
/* Most draft tokens beyond the usual number in an exploration. */
#define FURTHER 8
/* Ratio of λ to the rate of plain decoding below which drafting hardly matters. */
#define CLOSE 1.25
/* Seconds of a step of an unknown draft, relative to a token of plain decoding. */
#define DRAFT_PRIOR 0.05
/* Seconds of drafting are clipped to OUTLIER times the expectation, after N_EXPECTED rounds. */
#define OUTLIER 3.0
#define N_EXPECTED 3.0
/* A proposal after a pause may take so many times the expectation without any reading: caches are cold. */
#define COLD 1.5
/* Draft tokens after the next one that may make it pay. */
#define AHEAD 32
/* A trial drafts for one of so many sequences, and for so many at least. */
#define TRIED 8
#define LEAST_TRIED 4

void sd_drafter_policy_reset(sd_drafter_policy* p) {
    memset(p, 0, sizeof *p);
    sd_cost_model_anchor(&p->draft);
    sd_drafter_schedule_reset(&p->schedule);
}

static double draft_seconds(const sd_drafter_policy* p, const sd_throughput* t, int n_steps) {
    if (n_steps == 0) return 0.0;
    if (p->draft.known) return sd_cost_model_seconds(&p->draft, n_steps);
    return t->plain_rate > 0.0 ? DRAFT_PRIOR * n_steps / t->plain_rate : 0.0;
}

/* Extra query tokens after a row where the drafter drafts. */
static int extra_of(const sd_drafter_policy* p) { return p->n_extra > p->n_other ? p->n_extra : p->n_other; }

/* Seconds of the target for trees of n_rows and their extra query tokens, if the drafter drafts. */
static double target_seconds(const sd_drafter_policy* p, const sd_throughput* t, int n_rows) {
    return sd_cost_model_seconds(&t->target, n_rows * (1 + extra_of(p)));
}

/* --------------------------------------------------------------------------------- what a drafter adds */

static int bin_of(double expected) {
    static const double ends[SD_POLICY_EXPECTED - 1] = {0.0, 0.5, 1.0, 2.0, 4.0, 8.0};
    int bin = 0;
    while (bin < SD_POLICY_EXPECTED - 1 && expected > ends[bin]) bin++;
    return bin;
}

/* Share over all bins: the prior of a bin with few cases. */
static double added_anywhere(const sd_drafter_policy* p) {
    sd_mean all = {0.0, 0.0};
    for (int i = 0; i < SD_POLICY_EXPECTED; i++) all.sum += p->added[i].sum, all.n += p->added[i].n;
    return sd_mean_of(all, 1.0, 1.0);
}

double sd_drafter_policy_new_share(const sd_drafter_policy* p, double expected) {
    return sd_mean_of(p->added[bin_of(expected)], added_anywhere(p), 4.0);
}

/* The largest share of a bin. */
static double most_added(const sd_drafter_policy* p) {
    double anywhere = added_anywhere(p), most = 0.0;
    for (int i = 0; i < SD_POLICY_EXPECTED; i++) most = fmax(most, sd_mean_of(p->added[i], anywhere, 4.0));
    return most;
}

double sd_drafter_policy_right(const sd_drafter_policy* p) { return sd_mean_of(p->right, 1.0, 1.0); }

/* ------------------------------------------------------------------------------------------- the price */

/* The mean n of draft tokens or steps, rounded, from 1 to the horizon. */
static int usual(const sd_drafter_policy* p, double n) { return (int)fmin(p->horizon, fmax(1.0, n + 0.5)); }

static double usual_seconds(const sd_drafter_policy* p) {
    int n_draft_tokens = usual(p, p->n_draft_tokens), steps = usual(p, p->steps);
    return p->target_s[n_draft_tokens] - p->target_s[0] + p->draft_s[steps] - p->draft_s[0];
}

void sd_drafter_policy_plan(sd_drafter_policy* p, sd_throughput* t, int gamma) {
    int n = t->n_open;
    double path_prob = 1.0, tokens = n;
    p->horizon = gamma < SD_POLICY_HORIZON ? gamma : SD_POLICY_HORIZON;
    sd_acceptance_by_depth(&p->acceptance, p->chance, SD_POLICY_HORIZON);
    p->planned = 0;
    if (t->plain_rate <= 0.0) return;
    double best = t->plain_rate;
    for (int k = 1; k <= p->horizon; k++) {
        path_prob *= p->chance[k];
        tokens += n * path_prob;
        double seconds = target_seconds(p, t, n * (1 + k)) + draft_seconds(p, t, n * k);
        sd_throughput_plan(t, tokens, seconds);
        if (tokens > best * seconds) best = tokens / seconds, p->planned = k;
    }
}

/* Does it pay to draft as before? A tree that is made as a whole is paid for as a whole. */
static int proposals_pay(const sd_drafter_policy* p, double path_prob) {
    if (p->right.n < 4.0 || p->horizon < 1) return 0;
    return path_prob * p->right.sum / p->right.n >= p->rate * usual_seconds(p);
}

int sd_drafter_policy_pays(const sd_drafter_policy* p, double path_prob, int depth, int n_draft_tokens,
                           double known) {
    if (p->rate <= 0.0) return 1; /* nothing is known yet */
    if (n_draft_tokens >= p->explore_most) return 0;
    if (n_draft_tokens < p->explore_to) return 1;
    if (n_draft_tokens == 0 && p->schedule.trial_left > 0) return 1;
    if (n_draft_tokens == 0 && known < 0.0 && proposals_pay(p, path_prob)) return 1;
    int last = p->horizon;
    if (n_draft_tokens >= last || depth >= last) return path_prob >= p->rate * p->row_s;
    double gain = 0.0, chance = path_prob;
    /* By itself or with those that may follow: costs of further rows need not rise. */
    for (int k = 1; n_draft_tokens + k <= last && depth + k <= last && k <= AHEAD; k++) {
        chance *= k == 1 && known >= 0.0 ? known : p->chance[depth + k];
        gain += chance;
        double rows_s = p->target_s[n_draft_tokens + k] - p->target_s[n_draft_tokens];
        double steps_s = p->draft_s[depth + k] - p->draft_s[known >= 0.0 ? depth + 1 : depth];
        if (gain >= p->rate * (rows_s + steps_s)) return 1;
    }
    if (known >= 0.0 || !p->acceptance.looks) return 0;
    /* A step of the draft may also pay because only confident draft tokens get a row. */
    const double* occurs = p->acceptance.confidences[depth > 0];
    double row = p->rate * (p->target_s[n_draft_tokens + 1] - p->target_s[n_draft_tokens]), value = 0.0,
           n = 0.0;
    for (int i = 0; i < SD_ACCEPTANCE_CONFIDENCES; i++) {
        double accepted = sd_acceptance_chance(&p->acceptance, sd_acceptance_confidence(i), depth + 1);
        n += occurs[i];
        value += occurs[i] * fmax(0.0, path_prob * accepted - row);
    }
    return n > 0.0 && value / n >= p->rate * (p->draft_s[depth + 1] - p->draft_s[depth]);
}

double sd_drafter_policy_chance(const sd_drafter_policy* p, int depth) {
    return p->chance[depth < SD_POLICY_HORIZON ? depth : SD_POLICY_HORIZON];
}

double sd_drafter_policy_step_price(const sd_drafter_policy* p) {
    return p == NULL ? 0.0 : p->rate * p->step_s;
}

double sd_drafter_policy_row_price(const sd_drafter_policy* p) {
    if (p == NULL || p->rate <= 0.0 || p->explore_to > 0) return 0.0;
    int n = usual(p, p->n_draft_tokens); /* a mean, for the first row often costs more than the others */
    return n > 0 ? p->rate * fmax(0.0, p->target_s[n] - p->target_s[0]) / n : 0.0;
}

/* ------------------------------------------------------------------------------------- a round's course */

static void fill_seconds(sd_drafter_policy* p, const sd_throughput* t, int n_rows) {
    int n = p->n_asked, n_all = n_rows * (1 + extra_of(p));
    for (int k = 0; k <= p->horizon; k++) {
        p->target_s[k] = target_seconds(p, t, n_rows + n * k) / n;
        p->draft_s[k] = draft_seconds(p, t, n * k) / n;
    }
    /* the first draft tokens pay for this drafter's extra query tokens */
    if (p->n_extra > p->n_other)
        p->target_s[0] = sd_cost_model_seconds(&t->target, n_rows * (1 + p->n_other)) / n;
    p->row_s = (1 + extra_of(p)) * sd_cost_model_step(&t->target, n_all);
    p->step_s = sd_cost_model_step(&p->draft, n_rows);
}

/* Passes of the target measured (recently) for k draft tokens of every sequence. */
static double seen_with(const sd_drafter_policy* p, const sd_throughput* t, int n_rows, int k) {
    int n_all = (n_rows + t->n_open * k) * (1 + extra_of(p));
    return sd_cost_model_seen(&t->target, n_all, n_all);
}

/* Choose the draft tokens to explore: one less than usual if that has no (recent) time, else one more, or the
 * least number above it without a time. */
static void explore(sd_drafter_policy* p, const sd_throughput* t, int n_rows) {
    int less = (int)(p->n_draft_tokens - 0.5), first = (int)(p->n_draft_tokens + 1.5);
    if (less > 0 && less <= p->horizon && seen_with(p, t, n_rows, less) <= 3.0) {
        p->explore_most = less;
        return;
    }
    p->explore_to = first;
    for (int k = first + FURTHER - 1; k >= first; k--)
        if (k <= p->horizon && seen_with(p, t, n_rows, k) <= 3.0) p->explore_to = k;
}

/* Cost of a proposal, in tokens of plain decoding. */
static double cost_of_proposal(const sd_drafter_policy* p, const sd_throughput* t) {
    return fmax(usual_seconds(p), sd_mean_of(p->empty_s, 0.0, 1.0)) * t->plain_rate;
}

/* Sequences of a trial. */
static int share_of(int n_open) {
    int n = (n_open + TRIED - 1) / TRIED;
    if (n < LEAST_TRIED) n = LEAST_TRIED;
    return n < n_open ? n : n_open;
}

int sd_drafter_policy_begin(sd_drafter_policy* p, const sd_throughput* t, int gamma, int n_rows) {
    sd_drafter_schedule* schedule = &p->schedule;
    double n_seen = sd_cost_model_seen(&t->target, n_rows, n_rows); /* rounds without the drafter */
    p->drafting = p->explore_to = 0;
    p->explore_most = INT_MAX;
    p->n_asked = schedule->trial_left > 0 ? share_of(t->n_open) : t->n_open;
    p->rate = sd_throughput_rate(t);
    if (p->rate > 0.0) fill_seconds(p, t, n_rows);
    if (gamma == 0 || schedule->pause_left > 0.0) return 0;
    if (sd_drafter_schedule_skips(schedule, n_seen > 0.0, p->rate < CLOSE * t->plain_rate)) return 0;
    if (schedule->trial_left == 0) {
        /* by expectation and by measurement */
        if (!sd_drafter_policy_pays(p, most_added(p), 0, 0, -1.0) || sd_drafter_schedule_has_lost(schedule)) {
            /* measure rounds without the drafter before a long pause */
            if (n_seen >= 2.0) sd_drafter_schedule_pause(schedule, cost_of_proposal(p, t));
            return 0;
        }
        if (sd_drafter_schedule_explores(schedule)) explore(p, t, n_rows);
    }
    p->drafting = 1;
    return 1;
}

int sd_drafter_policy_asks(const sd_drafter_policy* p, const sd_throughput* t, int i) {
    return p->n_asked == t->n_open || (i + p->schedule.n_rounds) % t->n_open < p->n_asked;
}

void sd_drafter_policy_observe(sd_drafter_policy* p, const sd_proposal* proposal, const int32_t* path,
                               int n_path, double expected, int n_added) {
    sd_acceptance_observe(&p->acceptance, proposal, path, n_path);
    sd_mean_add(&p->right, n_path, 1.0, PROPOSALS);
    if (n_path > 0) sd_mean_add(&p->added[bin_of(expected)], n_added, n_path, PROPOSALS);
}

/* Does the round draft for all sequences? Else it is a trial. */
static int drafts_for_all(const sd_drafter_policy* p, const sd_throughput* t) {
    return p->n_asked == t->n_open;
}

/* Time of a trial with n_asked sequences relative to drafting for all: like the target's time. */
static double trial_share(const sd_drafter_policy* p, const sd_throughput* t, int n_asked) {
    if (drafts_for_all(p, t)) return 1.0;
    return sd_cost_model_seconds(&t->target, n_asked) / sd_cost_model_seconds(&t->target, t->n_open);
}

/* Steps of a round if all sequences took as many as those of a trial. */
static int steps_of_all(const sd_drafter_policy* p, const sd_throughput* t, int n_asked, int n_steps) {
    return drafts_for_all(p, t) ? n_steps : (int)((long long)n_steps * t->n_open / n_asked);
}

/* Expected seconds of n_steps for n_asked sequences. */
static double asked_seconds(const sd_drafter_policy* p, const sd_throughput* t, int n_asked, int n_steps) {
    return trial_share(p, t, n_asked) * draft_seconds(p, t, steps_of_all(p, t, n_asked, n_steps));
}

double sd_drafter_policy_expects(const sd_drafter_policy* p, const sd_throughput* t, int n_asked,
                                 int n_steps) {
    if (n_steps == 0) return p->empty_s.n < N_EXPECTED ? -1.0 : p->empty_s.sum / p->empty_s.n;
    int n = steps_of_all(p, t, n_asked, n_steps);
    if (sd_drafter_schedule_away(&p->schedule) || sd_cost_model_seen(&p->draft, n, n) < N_EXPECTED)
        return -1.0;
    return asked_seconds(p, t, n_asked, n_steps);
}

/* After a pause: trust earlier rates little. */
static void forget(sd_drafter_policy* p) {
    sd_acceptance_weaken(&p->acceptance, LOOK_AGAIN);
    sd_mean_weaken(&p->right, 1.0);
    for (int i = 0; i < SD_POLICY_EXPECTED; i++) sd_mean_weaken(&p->added[i], LOOK_AGAIN);
}

/* Learn the seconds of drafting at the machine's usual speed. Returns the seconds that count. Of a trial it
 * learns only a draft that is not known yet: a draft's pass with fewer rows, like the target's. */
static double learn_seconds(sd_drafter_policy* p, const sd_throughput* t, int n_asked, int n_steps,
                            double draft_s) {
    if (n_steps > 0) {
        if (!sd_drafter_schedule_away(&p->schedule) && (drafts_for_all(p, t) || !p->draft.known))
            sd_cost_model_learn(&p->draft, steps_of_all(p, t, n_asked, n_steps),
                                draft_s / trial_share(p, t, n_asked));
        return fmin(draft_s, OUTLIER * asked_seconds(p, t, n_asked, n_steps));
    }
    if (p->empty_s.n >= N_EXPECTED) draft_s = fmin(draft_s, OUTLIER * p->empty_s.sum / p->empty_s.n);
    sd_mean_add(&p->empty_s, draft_s, 1.0, ROUNDS);
    return draft_s;
}

double sd_drafter_policy_end(sd_drafter_policy* p, const sd_throughput* t, const sd_drafter_round* r) {
    if (r->n_asked == 0) {
        if (sd_drafter_schedule_waited(&p->schedule, (double)r->n_tokens / t->n_open)) forget(p);
        return 0.0;
    }
    double all_s = r->draft_s / t->slowness, draft_s = learn_seconds(p, t, r->n_asked, r->n_steps, all_s);
    double missed_s = sd_drafter_schedule_away(&p->schedule) && r->n_steps > 0 && p->draft.known
                          ? fmax(0.0, all_s - COLD * asked_seconds(p, t, r->n_asked, r->n_steps))
                          : 0.0;
    double rows_s = target_seconds(p, t, r->n_rows + r->n_draft_tokens) -
                    sd_cost_model_seconds(&t->target, r->n_rows * (1 + p->n_other));
    /* rows that seem to cost less than none were measured badly */
    double lost = (t->plain_rate * (draft_s + fmax(0.0, rows_s)) - r->n_added) / t->n_open;
    sd_drafter_schedule_drafted(&p->schedule, drafts_for_all(p, t), lost,
                                t->plain_rate * missed_s / t->n_open);
    double share = 1.0 / fmin(ROUNDS, (double)p->schedule.n_rounds);
    p->n_draft_tokens += ((double)r->n_draft_tokens / r->n_asked - p->n_draft_tokens) * share;
    p->steps += ((double)r->n_steps / r->n_asked - p->steps) * share;
    return draft_s;
}
