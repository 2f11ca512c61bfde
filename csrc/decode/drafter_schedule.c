#include "drafter_schedule.h"

#include <math.h>

/* A pause lasts so many times the cost of a proposal: at first, and at most. It doubles each time. */
#define FIRST_PAUSE 32.0
#define LONGEST_PAUSE 4096.0
/* Bounds of the cost of a proposal. */
#define LEAST_COST 0.02
#define MOST_COST 4.0
/* A pause of so many tokens, or of so many costs of a proposal if that is more, ends when a session begins:
 * the text may differ, and a trial of two rounds loses one of every two hundred tokens. */
#define START_PAUSE 16.0
#define START_COSTS 400.0
/* The drafter may lose one of so many tokens to reading what it has missed. */
#define CATCH_UP 200.0
/* Missed tokens from which the time of reading them can be separated from a proposal's. */
#define MANY_MISSED 8.0
/* Most tokens saved for reading, at which the drafter is tried in any case, and most owed. */
#define MOST_SAVED 40.0
#define MOST_OWED 400.0
/* Most tokens that count as missed: a session may have begun other texts meanwhile. */
#define MOST_MISSED 256.0
/* Factor on the measured cost of reading when a session begins: the measurement may be off. */
#define BELIEVED 0.9
/* Rounds of a trial, at first and after a pause; rounds in which the drafter has paid do not count. */
#define N_TRIALS 2
/* Loss in tokens at which the drafter is paused. */
#define LOSS 12.0
/* Rounds before the first exploration. The gap doubles with each, up to LAST_EXPLORE. */
#define EXPLORE 12
#define LAST_EXPLORE 96
/* Rounds before the drafter is first skipped. The gap grows fourfold each time, up to LAST_SKIP, or to
 * CLOSE_SKIP where drafting hardly matters. */
#define SKIP 16
#define LAST_SKIP 384
#define CLOSE_SKIP 64
/* Rounds without the drafter after which it must catch up. */
#define AWAY 4

void sd_drafter_schedule_reset(sd_drafter_schedule* s) {
    *s = (sd_drafter_schedule){.pause = FIRST_PAUSE,
                               .trial_left = N_TRIALS,
                               .explore_at = EXPLORE,
                               .explore_gap = EXPLORE,
                               .skip_at = SKIP,
                               .skip_gap = SKIP};
}

void sd_drafter_schedule_start(sd_drafter_schedule* s) {
    /* another text may behave differently */
    if (s->paused_for >= fmax(START_PAUSE, START_COSTS * s->cost)) s->pause_left = fmin(s->pause_left, 1.0);
    s->missed = 0.0;
    s->catch_up_cost *= BELIEVED;
    s->idle = AWAY;
}

void sd_drafter_schedule_carry(sd_drafter_schedule* s, const sd_drafter_schedule* from) {
    s->missed = from->missed;
    s->catch_up_cost = from->catch_up_cost;
    s->budget = from->budget;
    s->idle = from->idle;
}

void sd_drafter_schedule_misses(sd_drafter_schedule* s, double n_tokens) {
    s->missed = fmin(s->missed + n_tokens, MOST_MISSED);
    s->idle = s->idle > AWAY ? s->idle : AWAY;
}

int sd_drafter_schedule_away(const sd_drafter_schedule* s) { return s->idle >= AWAY; }

int sd_drafter_schedule_skips(sd_drafter_schedule* s, int is_seen, int is_close) {
    if (s->n_rounds < s->skip_at) return 0;
    if (s->idle == 0 && !is_seen) return 1; /* the next round too: one measurement says little */
    long long most = is_close ? CLOSE_SKIP : LAST_SKIP;
    s->skip_gap = 4 * s->skip_gap < most ? 4 * s->skip_gap : most;
    s->skip_at = s->n_rounds + s->skip_gap;
    return 1;
}

int sd_drafter_schedule_has_lost(const sd_drafter_schedule* s) { return s->loss > LOSS; }

void sd_drafter_schedule_pause(sd_drafter_schedule* s, double cost) {
    s->cost = fmin(MOST_COST, fmax(LEAST_COST, cost));
    s->pause_left = s->pause * s->cost;
    s->paused_for = 0.0;
    s->pause = fmin(2.0 * s->pause, LONGEST_PAUSE);
}

int sd_drafter_schedule_explores(sd_drafter_schedule* s) {
    if (s->n_rounds < s->explore_at) return 0;
    s->explore_gap = 2 * s->explore_gap < LAST_EXPLORE ? 2 * s->explore_gap : LAST_EXPLORE;
    s->explore_at = s->n_rounds + s->explore_gap;
    return 1;
}

int sd_drafter_schedule_waited(sd_drafter_schedule* s, double n_tokens) {
    s->n_rounds++;
    s->idle++;
    s->missed = fmin(s->missed + n_tokens, MOST_MISSED);
    s->budget = fmin(s->budget + n_tokens / CATCH_UP, MOST_SAVED);
    if (s->pause_left <= 0.0) return 0;
    s->pause_left -= n_tokens;
    s->paused_for += n_tokens;
    if (s->pause_left > 0.0) return 0;
    if (s->catch_up_cost * s->missed > s->budget && s->budget < MOST_SAVED) {
        s->pause_left = 1.0; /* reading what was missed still costs too much */
        return 0;
    }
    s->pause_left = s->loss = s->won = 0.0;
    s->trial_left = N_TRIALS;
    if (s->skip_at < s->n_rounds + SKIP) s->skip_at = s->n_rounds + SKIP;
    return 1;
}

void sd_drafter_schedule_drafted(sd_drafter_schedule* s, int of_all, double lost, double caught_up) {
    if (s->missed >= MANY_MISSED) {
        double each = fmin(caught_up / s->missed, 1.0);
        s->catch_up_cost += (each - s->catch_up_cost) * (s->catch_up_cost > 0.0 ? 0.5 : 1.0);
        s->budget = fmax(s->budget - caught_up, -MOST_OWED);
    }
    s->missed = 0.0;
    s->n_rounds++;
    s->idle = 0;
    s->loss = fmax(0.0, s->loss + lost);
    s->won -= lost;
    if (s->won > LOSS) s->pause = FIRST_PAUSE;
    if (s->trial_left > 0 && (!of_all || lost >= 0.0)) s->trial_left--;
}
