#include "acceptance.h"

#include <math.h>

/* Number of cases that a rate averages over: recent rate; overall rate and by depth; by confidence. */
#define FEW 12.0
#define MANY 128.0
#define LONG 256.0
/* Standard deviations between the rates of the last FEW and MANY draft tokens at which the text counts as
 * changed. */
#define CHANGED 3.0
/* Weight of each rate after such a change, in draft tokens. */
#define UNCERTAIN 16.0
/* Acceptance rate before anything is known, and its weight in draft tokens. */
#define PRIOR_RATE 0.7
#define PRIOR_WEIGHT 2.0

/* Upper ends of all confidence bins but the last. Good drafts mostly have confidences near 1. */
static const double ENDS[SD_ACCEPTANCE_CONFIDENCES - 1] = {0.05, 0.1, 0.2, 0.3,  0.4,  0.5,  0.6,
                                                           0.7,  0.8, 0.9, 0.95, 0.98, 0.995};

static int bin_of(double confidence) {
    int i = 0;
    while (i < SD_ACCEPTANCE_CONFIDENCES - 1 && confidence >= ENDS[i]) i++;
    return i;
}

double sd_acceptance_confidence(int i) {
    return 0.5 * ((i > 0 ? ENDS[i - 1] : 0.0) + (i < SD_ACCEPTANCE_CONFIDENCES - 1 ? ENDS[i] : 1.0));
}

static int depth_bin(int depth) { return (depth < SD_ACCEPTANCE_DEPTHS ? depth : SD_ACCEPTANCE_DEPTHS) - 1; }

void sd_acceptance_weaken(sd_acceptance* a, double n) {
    sd_mean_weaken(&a->whole, n);
    for (int i = 0; i < SD_ACCEPTANCE_DEPTHS; i++) sd_mean_weaken(&a->by_depth[i], n);
    for (int i = 0; i < SD_ACCEPTANCE_CONFIDENCES; i++) {
        sd_mean_weaken(&a->by_confidence[i], n);
        for (int j = 0; j < SD_ACCEPTANCE_DEPTHS; j++) sd_mean_weaken(&a->by_both[i][j], n);
    }
}

static double whole(const sd_acceptance* a) { return sd_mean_of(a->whole, PRIOR_RATE, PRIOR_WEIGHT); }

double sd_acceptance_chance(const sd_acceptance* a, double confidence, int depth) {
    int i = bin_of(confidence);
    double prior = 0.5 * (fmin(1.0, fmax(0.0, confidence)) + whole(a));
    prior = sd_mean_of(a->by_confidence[i], prior, 4.0);
    return sd_mean_of(a->by_both[i][depth_bin(depth)], prior, 16.0);
}

/* A depth with few cases is estimated by the one before it. */
void sd_acceptance_by_depth(const sd_acceptance* a, double* chance, int n) {
    double last = whole(a);
    chance[0] = 1.0;
    for (int depth = 1; depth <= n; depth++) {
        if (depth <= SD_ACCEPTANCE_DEPTHS) last = sd_mean_of(a->by_depth[depth - 1], last, 6.0);
        chance[depth] = last;
    }
}

/* Long averages are exact, short ones are current: when the last few draft tokens contradict the many before
 * them, the old ones count less. */
static void notice_change(sd_acceptance* a) {
    double before = sd_mean_of(a->whole, PRIOR_RATE, 1.0), now = sd_mean_of(a->lately, before, 1.0);
    double deviation = sqrt(before * (1.0 - before) * 0.5 * (1.0 / FEW + 1.0 / MANY));
    /* one draft token more or less is never a change */
    if (a->lately.n > 0.6 * FEW && fabs(now - before) > CHANGED * deviation + 1.0 / FEW)
        sd_acceptance_weaken(a, UNCERTAIN);
}

/* Learn from the first draft token at a depth. */
static void observe_first(sd_acceptance* a, double confidence, int depth, double yes) {
    sd_mean_add(&a->lately, yes, 1.0, FEW);
    sd_mean_add(&a->whole, yes, 1.0, MANY);
    sd_mean_add(&a->by_depth[depth_bin(depth)], yes, 1.0, MANY);
    double* occurs = a->confidences[depth > 1];
    for (int i = 0; i < SD_ACCEPTANCE_CONFIDENCES; i++) occurs[i] *= 1.0 - 1.0 / LONG;
    occurs[bin_of(confidence)] += 1.0;
}

void sd_acceptance_observe(sd_acceptance* a, const sd_proposal* proposal, const int32_t* path, int n_path) {
    int deepest = 0; /* the children of accepted nodes come in the order of their depths */
    for (int node = 1; node < proposal->tree.n_nodes; node++) {
        int parent = proposal->tree.parents[node], depth = proposal->depths[node];
        if (depth > 1 && (n_path < depth - 1 || path[depth - 2] != parent)) continue;
        double yes = n_path >= depth && path[depth - 1] == node, confidence = proposal->confidences[node];
        if (depth > deepest) observe_first(a, confidence, deepest = depth, yes);
        sd_mean_add(&a->by_confidence[bin_of(confidence)], yes, 1.0, LONG);
        sd_mean_add(&a->by_both[bin_of(confidence)][depth_bin(depth)], yes, 1.0, LONG);
    }
    /* Whether a withheld draft token was right is unknown: it counts with the rate of its confidence. */
    int depth = proposal->rejected_at;
    if (depth > 0) a->looks = 1;
    if (depth > 0 && n_path == depth - 1)
        observe_first(a, proposal->rejected_confidence, depth,
                      sd_acceptance_chance(a, proposal->rejected_confidence, depth));
    notice_change(a);
}
