#include "choice.h"

#define MEMORY 0.98 /* what is left of an observation after another one */
#define PRIOR 4.0   /* so many observations count in a bin as those of all bins do on average */
#define FIRST 4     /* rounds in which a drafter is asked before it is judged */
#define TRIAL 3     /* rounds of a trial: the first may have to read what was missed */
#define PAUSE 3     /* rounds of a pause */
#define GAP 16      /* rounds with a drafter until its first pause; then twice as many, and so on */
#define MOST_GAP 1024
#define ROUND_MEMORY 0.9 /* as MEMORY, of whole rounds */
#define OUTLIER 4.0      /* times the mean */
#define LEISURE 150 /* seconds without a drafter, for each second that it takes in a round, before a trial */

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

/* Seconds that another row of the target costs: the slope of a line through the last rounds. */
static double row_s(const sd_choice* c) {
    double spread = c->w * c->xx - c->x * c->x;
    if (!(spread > 1e-9 * c->w * c->xx)) return 0.0;
    double slope = (c->w * c->xy - c->x * c->y) / spread;
    return slope > 0.0 ? slope : 0.0;
}

/* Of what one sequence's proposal takes. */
static double cost_of(const sd_choice* c, const sd_worth* w) {
    double own = (w->seconds + w->nodes * row_s(c)) / w->n_spent;
    if (!(w->n_with > 0.0) || !(w->n_without > 0.0)) return own;
    double longer = (w->with_s / w->n_with - w->without_s / w->n_without) / w->n_sequences;
    return longer > own ? longer : own;
}

int sd_choice_asks(const sd_choice* c, sd_worth* w, double expected, double now) {
    if (w->n_asked < FIRST || w->trial > 0) return 1;
    if (!(c->seconds > 0.0) || !(w->n_spent > 0.0)) return 1;
    double cost = cost_of(c, w);
    if (added(w, expected) * c->seconds >= cost * c->tokens) {
        w->spared = w->pause > 0;
        return w->pause == 0;
    }
    if (now - w->asked_at < LEISURE * cost) return 0;
    w->trial = TRIAL;
    return 1;
}

/* A time, but no more than some times the mean of those before: the system may have been elsewhere. */
static double usual(double seconds, double sum, double n) {
    double most = OUTLIER * sum / n;
    return n > 3.0 && seconds > most ? most : seconds;
}

void sd_choice_spend(sd_worth* w, int n, int n_nodes, double seconds, double now) {
    /* the first round of a trial costs what was missed too */
    if (w->trial != TRIAL || w->n_spent == 0.0) {
        w->seconds = MEMORY * w->seconds + usual(seconds / n, w->seconds, w->n_spent);
        w->nodes = MEMORY * w->nodes + (double)n_nodes / n;
        w->n_spent = MEMORY * w->n_spent + 1.0;
    }
    w->asked_at = now;
    w->asked = 1;
    w->n_sequences = n;
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
    target_s = usual(target_s, c->y, c->w);
    c->tokens = MEMORY * c->tokens + n_tokens;
    c->seconds = MEMORY * c->seconds + seconds;
    c->w = MEMORY * c->w + 1.0;
    c->x = MEMORY * c->x + n_rows;
    c->y = MEMORY * c->y + target_s;
    c->xx = MEMORY * c->xx + (double)n_rows * n_rows;
    c->xy = MEMORY * c->xy + n_rows * target_s;
}

void sd_choice_end_round_of(sd_worth* w, double seconds) {
    if (w->asked) {
        w->with_s = ROUND_MEMORY * w->with_s + usual(seconds, w->with_s, w->n_with);
        w->n_with = ROUND_MEMORY * w->n_with + 1.0;
        if (w->gap == 0) w->gap = GAP;
        if (++w->streak >= w->gap) {
            w->streak = 0;
            w->pause = PAUSE;
            w->gap = w->gap < MOST_GAP ? 2 * w->gap : w->gap;
        }
    } else if (w->spared) {
        if (w->pause < PAUSE) { /* the first still comes after a round with it */
            w->without_s = ROUND_MEMORY * w->without_s + usual(seconds, w->without_s, w->n_without);
            w->n_without = ROUND_MEMORY * w->n_without + 1.0;
        }
        w->pause--;
    }
    w->asked = w->spared = 0;
}
