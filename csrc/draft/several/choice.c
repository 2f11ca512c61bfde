#include "choice.h"

#define MEMORY 0.98  /* what is left of an observation after another one */
#define PRIOR 4.0    /* so many observations count in a bin as those of all bins do on average */
#define FIRST 5      /* rounds in which a drafter is asked before it is judged */
#define TRIAL 3      /* rounds of a trial */
#define LEISURE 30.0 /* a trial comes when so many times of what it takes have gone by; then twice as many, */
#define MOST_LEISURE 240.0
#define PAUSE 2 /* rounds of a pause */
#define GAP 16  /* rounds with a drafter until its first pause; then twice as many, and so on */
#define MOST_GAP 1024
#define OUTLIER 4.0 /* times the mean */

static int bin_of(double expected) {
    static const double ends[SD_CHOICE_BINS - 1] = {0.0, 0.5, 1.0, 2.0, 4.0, 8.0};
    int bin = 0;
    while (bin < SD_CHOICE_BINS - 1 && expected > ends[bin]) bin++;
    return bin;
}

static double added(const sd_worth* w, double expected) {
    double sum = 0.0, n = 0.0;
    for (int i = 0; i < SD_CHOICE_BINS; i++) sum += w->added[i], n += w->n[i];
    int bin = bin_of(expected);
    double mean = n > 0.0 ? sum / n : 0.0;
    return (w->added[bin] + PRIOR * mean) / (w->n[bin] + PRIOR);
}

/* Seconds of one sequence's proposal, those of its rows in the target included. */
static double cost_of(const sd_choice* c, const sd_worth* w, int n_rows) {
    double rows_s = sd_cost_model_seconds(&c->target, n_rows + (int)(w->nodes / w->n_spent + 0.5)) -
                    sd_cost_model_seconds(&c->target, n_rows);
    return w->seconds / w->n_spent + (rows_s > 0.0 ? rows_s : 0.0);
}

int sd_choice_asks(const sd_choice* c, sd_worth* w, double expected, int n_rows, double now) {
    if (w->n_asked < FIRST || w->trial > 0) return 1;
    if (!(c->seconds > 0.0) || !(w->n_spent > 0.0)) return 1;
    double cost = cost_of(c, w, n_rows);
    if (added(w, expected) * c->seconds >= cost * c->tokens) {
        w->spared = w->pause > 0;
        w->leisure = LEISURE;
        return w->pause == 0;
    }
    if (now - w->asked_at < w->leisure * cost) return 0;
    w->trial = TRIAL;
    if (w->leisure < MOST_LEISURE) w->leisure *= 2.0;
    return 1;
}

/* A time, but no more than some times the mean of those before: the system may have been elsewhere. */
static double usual(double seconds, double sum, double n) {
    double most = OUTLIER * sum / n;
    return n > 3.0 && seconds > most ? most : seconds;
}

void sd_choice_spend(sd_worth* w, int n, int n_nodes, double seconds, double now) {
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
        w->leisure = LEISURE;
    }
    if (w->n_asked < FIRST) w->n_asked++;
    if (w->trial > 0) w->trial--;
}

void sd_choice_learn(sd_worth* w, double expected, double alone, double added_tokens) {
    int bin = bin_of(expected);
    w->added[bin] = MEMORY * w->added[bin] + added_tokens;
    w->n[bin] = MEMORY * w->n[bin] + 1.0;
    w->alone = MEMORY * w->alone + alone;
    w->n_alone = MEMORY * w->n_alone + 1.0;
}

double sd_choice_alone(const sd_worth* w) { return (w->alone + 1.0) / (w->n_alone + 1.0); }

void sd_choice_end_round(sd_choice* c, int n_tokens, double seconds, int n_rows, double target_s) {
    c->tokens = MEMORY * c->tokens + n_tokens;
    c->seconds = MEMORY * c->seconds + seconds;
    sd_cost_model_learn(&c->target, n_rows, target_s);
}

void sd_choice_end_round_of(sd_worth* w) {
    if (w->asked) {
        if (++w->streak >= w->gap) {
            w->streak = 0;
            w->pause = PAUSE;
            w->gap = w->gap < MOST_GAP ? 2 * w->gap : w->gap;
        }
    } else if (w->spared) {
        w->pause--;
    }
    w->asked = w->spared = 0;
}
