#include "drafter_selection.h"

/* Weight of an observation after another one. */
#define MEMORY 0.98
/* Observations that the mean of all bins counts for in each bin. */
#define PRIOR 4.0
/* Rounds in which a drafter is asked before it is judged. */
#define FIRST 5
/* Rounds of a trial. */
#define TRIAL 3
/* Wait before the first trial, in multiples of a proposal's cost. It doubles with each, up to
 * MOST_RETRY_AFTER. */
#define RETRY_AFTER 30.0
#define MOST_RETRY_AFTER 240.0
/* Rounds of a control pause. */
#define PAUSE 2
/* Rounds with a drafter before its first control pause. The gap doubles with each, up to MOST_GAP. */
#define GAP 16
#define MOST_GAP 1024
/* Seconds count as at most so many times the mean. */
#define OUTLIER 4.0

static int bin_of(double expected) {
    static const double ends[SD_SELECTION_BINS - 1] = {0.0, 0.5, 1.0, 2.0, 4.0, 8.0};
    int bin = 0;
    while (bin < SD_SELECTION_BINS - 1 && expected > ends[bin]) bin++;
    return bin;
}

static double added(const sd_drafter_stats* w, double expected) {
    double sum = 0.0, n = 0.0;
    for (int i = 0; i < SD_SELECTION_BINS; i++) sum += w->added[i], n += w->n[i];
    int bin = bin_of(expected);
    double mean = n > 0.0 ? sum / n : 0.0;
    return (w->added[bin] + PRIOR * mean) / (w->n[bin] + PRIOR);
}

/* Seconds of one sequence's proposal, those of its rows in the target included. */
static double cost_of(const sd_selection* c, const sd_drafter_stats* w, int n_rows) {
    double rows_s = sd_cost_model_seconds(&c->target, n_rows + (int)(w->nodes / w->n_spent + 0.5)) -
                    sd_cost_model_seconds(&c->target, n_rows);
    return w->seconds / w->n_spent + (rows_s > 0.0 ? rows_s : 0.0);
}

int sd_selection_asks(const sd_selection* c, sd_drafter_stats* w, double expected, int n_rows, double now) {
    if (w->n_asked < FIRST || w->trial > 0) return 1;
    if (!(c->seconds > 0.0) || !(w->n_spent > 0.0)) return 1;
    double cost = cost_of(c, w, n_rows);
    if (added(w, expected) * c->seconds >= cost * c->tokens) {
        w->skipped_for_control = w->pause > 0;
        w->retry_after = RETRY_AFTER;
        return w->pause == 0;
    }
    if (now - w->asked_at < w->retry_after * cost) return 0;
    w->trial = TRIAL;
    if (w->retry_after < MOST_RETRY_AFTER) w->retry_after *= 2.0;
    return 1;
}

/* A time, but no more than some times the mean of those before: the system may have been elsewhere. */
static double usual(double seconds, double sum, double n) {
    double most = OUTLIER * sum / n;
    return n > 3.0 && seconds > most ? most : seconds;
}

void sd_selection_spend(sd_drafter_stats* w, int n, int n_nodes, double seconds, double now) {
    /* caches are cold at first, and the first round of a trial costs what was missed too */
    if (w->n_asked > 0 && w->trial != TRIAL) {
        w->seconds = MEMORY * w->seconds + usual(seconds / n, w->seconds, w->n_spent);
        w->nodes = MEMORY * w->nodes + (double)n_nodes / n;
        w->n_spent = MEMORY * w->n_spent + 1.0;
    }
    w->asked_at = now;
    w->asked = 1;
    if (w->n_asked == 0) {
        w->gap = GAP;
        w->retry_after = RETRY_AFTER;
    }
    if (w->n_asked < FIRST) w->n_asked++;
    if (w->trial > 0) w->trial--;
}

void sd_selection_learn(sd_drafter_stats* w, double expected, double alone, double added_tokens) {
    int bin = bin_of(expected);
    w->added[bin] = MEMORY * w->added[bin] + added_tokens;
    w->n[bin] = MEMORY * w->n[bin] + 1.0;
    w->alone = MEMORY * w->alone + alone;
    w->n_alone = MEMORY * w->n_alone + 1.0;
}

double sd_selection_alone(const sd_drafter_stats* w) { return (w->alone + 1.0) / (w->n_alone + 1.0); }

void sd_selection_end_round(sd_selection* c, int n_tokens, double seconds, int n_rows, double target_s) {
    c->tokens = MEMORY * c->tokens + n_tokens;
    c->seconds = MEMORY * c->seconds + seconds;
    sd_cost_model_learn(&c->target, n_rows, target_s);
}

void sd_selection_end_round_of(sd_drafter_stats* w) {
    if (w->asked) {
        if (++w->streak >= w->gap) {
            w->streak = 0;
            w->pause = PAUSE;
            w->gap = w->gap < MOST_GAP ? 2 * w->gap : w->gap;
        }
    } else if (w->skipped_for_control) {
        w->pause--;
    }
    w->asked = w->skipped_for_control = 0;
}
