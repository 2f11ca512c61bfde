#include "drafter_policy.h"

#include <math.h>
#include <string.h>

/* Proposals that `right` and `added` remember. */
#define PROPOSALS 64.0
/* Rounds that the means of guesses and steps are of. */
#define ROUNDS 64.0
/* A rest takes so many times what a proposal costs: at first, and at most. It doubles with each. */
#define FIRST_REST 32.0
#define LAST_REST 4096.0
/* The cost of a proposal, in tokens of plain decoding, counts as at least and at most so much. */
#define LEAST_COST 0.02
#define MOST_COST 4.0
/* Tokens that a rest has left at most when a session begins. */
#define START_REST 16.0
/* Rounds of a trial, at first and after a rest; rounds in which the drafter has paid do not count. */
#define N_TRIALS 2.0
/* Tokens behind decoding without the drafter at which it rests. */
#define LOSS 12.0
/* Guesses that each rate counts for at most after a rest. */
#define LOOK_AGAIN 8.0
/* Rounds before the first exploration. The gap doubles with each, up to LAST_EXPLORE. */
#define EXPLORE 12.0
#define LAST_EXPLORE 96.0
/* An exploration makes at most so many guesses more than usual. */
#define FURTHER 8
/* Rounds before the drafter is left out first. The gap grows fourfold with each, up to LAST_SKIP, or to
 * CLOSE_SKIP where it is a close thing: λ is at most CLOSE times the rate of plain decoding. */
#define SKIP 16.0
#define LAST_SKIP 384.0
#define CLOSE_SKIP 64.0
#define CLOSE 1.25
/* Rounds of a draft's absence after which its time tells nothing: it has to read what it missed. */
#define AWAY 4.0
/* Seconds of a step of an unknown draft, over those of a token of plain decoding. */
#define DRAFT_PRIOR 0.05
/* Seconds of drafting count as at most so many times what is expected, once so many rounds have been seen. */
#define OUTLIER 3.0
#define N_EXPECTED 3.0
/* Guesses behind the next one that may make it pay. */
#define AHEAD 8

void sd_drafter_policy_reset(sd_drafter_policy* p) {
    memset(p, 0, sizeof *p);
    sd_cost_model_anchor(&p->draft);
    p->rest = FIRST_REST;
    p->trial_left = N_TRIALS;
    p->explore_at = p->explore_gap = EXPLORE;
    p->skip_at = p->skip_gap = SKIP;
}

void sd_drafter_policy_start(sd_drafter_policy* p) {
    if (p->rest_left > START_REST) p->rest_left = START_REST; /* another text may be another matter */
    p->idle = AWAY;
}

static double draft_seconds(const sd_drafter_policy* p, const sd_throughput* t, int n_steps) {
    if (n_steps == 0) return 0.0;
    if (p->draft.known > 0.0) return sd_cost_model_seconds(&p->draft, n_steps);
    return t->plain_rate > 0.0 ? DRAFT_PRIOR * n_steps / t->plain_rate : 0.0;
}

/* --------------------------------------------------------------------------------- what a drafter adds */

static int bin_of(double expected) {
    static const double ends[SD_POLICY_EXPECTED - 1] = {0.0, 0.5, 1.0, 2.0, 4.0, 8.0};
    int bin = 0;
    while (bin < SD_POLICY_EXPECTED - 1 && expected > ends[bin]) bin++;
    return bin;
}

/* The share in all bins together: the prior of a bin that has hardly been seen. */
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

/* The mean n of guesses or steps, rounded, from 1 to the horizon. */
static int usual(const sd_drafter_policy* p, double n) { return (int)fmin(p->horizon, fmax(1.0, n + 0.5)); }

static double usual_seconds(const sd_drafter_policy* p) {
    int guesses = usual(p, p->guesses), steps = usual(p, p->steps);
    return p->target_s[guesses] - p->target_s[0] + p->draft_s[steps] - p->draft_s[0];
}

void sd_drafter_policy_plan(sd_drafter_policy* p, sd_throughput* t, int gamma) {
    int n = (int)t->n_open;
    double path_prob = 1.0, tokens = n;
    p->horizon = gamma < SD_POLICY_HORIZON ? gamma : SD_POLICY_HORIZON;
    sd_acceptance_by_depth(&p->acceptance, p->chance, SD_POLICY_HORIZON);
    p->planned = 0.0;
    if (t->plain_rate <= 0.0) return;
    double best = t->plain_rate;
    for (int k = 1; k <= p->horizon; k++) {
        path_prob *= p->chance[k];
        tokens += n * path_prob;
        double seconds = sd_cost_model_seconds(&t->target, n * (1 + k)) + draft_seconds(p, t, n * k);
        sd_throughput_plan(t, tokens, seconds);
        if (tokens > best * seconds) best = tokens / seconds, p->planned = k;
    }
}

/* Does it pay to draft as was done so far? A tree that is made as a whole is paid for as a whole. */
static int proposals_pay(const sd_drafter_policy* p, double path_prob) {
    if (p->right.n < 4.0 || p->horizon < 1.0) return 0;
    return path_prob * p->right.sum / p->right.n >= p->rate * usual_seconds(p);
}

int sd_drafter_policy_pays(const sd_drafter_policy* p, double path_prob, int depth, int n_guesses,
                           double known) {
    if (p->rate <= 0.0) return 1; /* nothing is known yet */
    if (n_guesses < p->explore_to) return 1;
    if (n_guesses == 0 && p->trial_left > 0.0) return 1;
    if (n_guesses == 0 && known < 0.0 && proposals_pay(p, path_prob)) return 1;
    int last = (int)p->horizon;
    if (n_guesses >= last || depth >= last) return path_prob >= p->rate * p->row_s;
    double gain = 0.0, chance = path_prob;
    /* By itself or with those that may follow: another row is not always dearer than the one before. */
    for (int k = 1; n_guesses + k <= last && depth + k <= last && k <= AHEAD; k++) {
        chance *= k == 1 && known >= 0.0 ? known : p->chance[depth + k];
        gain += chance;
        double rows_s = p->target_s[n_guesses + k] - p->target_s[n_guesses];
        double steps_s = p->draft_s[depth + k] - p->draft_s[known >= 0.0 ? depth + 1 : depth];
        if (gain >= p->rate * (rows_s + steps_s)) return 1;
    }
    if (known >= 0.0 || p->acceptance.looks == 0.0) return 0;
    /* A step of the draft may also pay by the confidences at which its guess is then worth a row. */
    const double* occurs = p->acceptance.confidences[depth > 0];
    double row = p->rate * (p->target_s[n_guesses + 1] - p->target_s[n_guesses]), value = 0.0, n = 0.0;
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

/* ------------------------------------------------------------------------------------- a round's course */

static void fill_seconds(sd_drafter_policy* p, const sd_throughput* t, int n_rows) {
    int others = (int)(p->planned * (t->n_open - 1.0));
    for (int k = 0; k <= p->horizon; k++) {
        p->target_s[k] = sd_cost_model_seconds(&t->target, n_rows + others + k);
        p->draft_s[k] = draft_seconds(p, t, others + k);
    }
    p->row_s = t->target.slope;
    p->step_s = p->draft.slope;
}

/* Guesses to explore: one more than usual, or the least number above it whose time is not known (lately). */
static int unknown(const sd_drafter_policy* p, const sd_throughput* t, int n_rows) {
    int first = (int)(p->guesses + 1.5), n = (int)t->n_open;
    for (int k = first; k < first + FURTHER && k <= p->horizon; k++)
        if (sd_cost_model_seen(&t->target, n_rows + n * k, n_rows + n * k) <= 3.0) return k;
    return first;
}

static void begin_rest(sd_drafter_policy* p, const sd_throughput* t) {
    double cost = fmax(usual_seconds(p), sd_mean_of(p->vain, 0.0, 1.0)) * t->plain_rate;
    p->rest_left = p->rest * fmin(MOST_COST, fmax(LEAST_COST, cost));
    p->rest = fmin(2.0 * p->rest, LAST_REST);
}

int sd_drafter_policy_begin(sd_drafter_policy* p, const sd_throughput* t, int gamma, int n_rows) {
    p->drafting = p->explore_to = 0.0;
    p->rate = sd_throughput_rate(t);
    if (p->rate > 0.0) fill_seconds(p, t, n_rows);
    if (gamma == 0) return 0;
    if (p->rest_left > 0.0) return 0;
    if (p->n_rounds >= p->skip_at) {
        int close = p->rate < CLOSE * t->plain_rate;
        if (p->idle > 0.0 || sd_cost_model_seen(&t->target, n_rows, n_rows) > 0.0) {
            p->skip_gap = fmin(4.0 * p->skip_gap, close ? CLOSE_SKIP : LAST_SKIP);
            p->skip_at = p->n_rounds + p->skip_gap;
        } /* else in the next round too: one run says little */
        return 0;
    }
    if (p->trial_left == 0.0) {
        /* as it is expected and as it has been measured */
        if (!sd_drafter_policy_pays(p, most_added(p), 0, 0, -1.0) || p->loss > LOSS) {
            /* rounds without the drafter are measured before it rests for long */
            if (sd_cost_model_seen(&t->target, n_rows, n_rows) >= 2.0) begin_rest(p, t);
            return 0;
        }
        if (p->n_rounds >= p->explore_at) {
            p->explore_to = unknown(p, t, n_rows);
            p->explore_gap = fmin(2.0 * p->explore_gap, LAST_EXPLORE);
            p->explore_at = p->n_rounds + p->explore_gap;
        }
    }
    p->drafting = 1.0;
    return 1;
}

void sd_drafter_policy_observe(sd_drafter_policy* p, const sd_proposal* proposal, const int32_t* path,
                               int n_path, double expected, int n_added) {
    sd_acceptance_observe(&p->acceptance, proposal, path, n_path);
    sd_mean_add(&p->right, n_path, 1.0, PROPOSALS);
    if (n_path > 0) sd_mean_add(&p->added[bin_of(expected)], n_added, n_path, PROPOSALS);
}

double sd_drafter_policy_expects(const sd_drafter_policy* p, int n_steps) {
    if (n_steps == 0) return p->vain.n < N_EXPECTED ? -1.0 : p->vain.sum / p->vain.n;
    if (p->idle >= AWAY || sd_cost_model_seen(&p->draft, n_steps, n_steps) < N_EXPECTED) return -1.0;
    return sd_cost_model_seconds(&p->draft, n_steps);
}

/* After a rest: look again, with little trust in what was. */
static void begin_trial(sd_drafter_policy* p) {
    p->rest_left = 0.0;
    p->trial_left = N_TRIALS;
    p->skip_at = fmax(p->skip_at, p->n_rounds + SKIP);
    p->loss = p->won = 0.0;
    sd_acceptance_weaken(&p->acceptance, LOOK_AGAIN);
    sd_mean_weaken(&p->right, 1.0);
    for (int i = 0; i < SD_POLICY_EXPECTED; i++) sd_mean_weaken(&p->added[i], LOOK_AGAIN);
}

/* Learn what drafting took, of a machine of usual speed. Returns the seconds that count. */
static double learn_seconds(sd_drafter_policy* p, const sd_throughput* t, int n_steps, double draft_s) {
    if (n_steps > 0) {
        if (p->idle < AWAY) sd_cost_model_learn(&p->draft, n_steps, draft_s);
        return fmin(draft_s, OUTLIER * draft_seconds(p, t, n_steps));
    }
    if (p->vain.n >= N_EXPECTED) draft_s = fmin(draft_s, OUTLIER * p->vain.sum / p->vain.n);
    sd_mean_add(&p->vain, draft_s, 1.0, ROUNDS);
    return draft_s;
}

double sd_drafter_policy_end(sd_drafter_policy* p, const sd_throughput* t, const sd_drafter_round* r) {
    p->n_rounds++;
    if (r->n_asked == 0) {
        p->idle++;
        if (p->rest_left > 0.0 && (p->rest_left -= r->n_tokens / t->n_open) <= 0.0) begin_trial(p);
        return 0.0;
    }
    double draft_s = learn_seconds(p, t, r->n_steps, r->draft_s / t->slowness);
    double rows_s = sd_cost_model_seconds(&t->target, r->n_rows + r->n_guesses) -
                    sd_cost_model_seconds(&t->target, r->n_rows);
    /* rows that seem to cost less than none were measured badly */
    double lost = (t->plain_rate * (draft_s + fmax(0.0, rows_s)) - r->n_added) / t->n_open;
    p->loss = fmax(0.0, p->loss + lost);
    p->won -= lost;
    if (p->won > LOSS) p->rest = FIRST_REST;
    double share = 1.0 / fmin(ROUNDS, p->n_rounds);
    p->guesses += ((double)r->n_guesses / r->n_asked - p->guesses) * share;
    p->steps += ((double)r->n_steps / r->n_asked - p->steps) * share;
    if (p->trial_left > 0.0 && lost >= 0.0) p->trial_left--;
    p->idle = 0.0;
    return draft_s;
}
