#include "cost_model.h"

#include <assert.h>
#include <math.h>

#define FIRST 3.0   /* first passes, of which the faster ones count: caches are cold and threads asleep */
#define MEMORY 64.0 /* passes that a mean averages over */
#define NEW 1.5     /* most that a first pass may exceed the line */
/* Passes after which a count that is not tried again loses weight: bad luck may have kept it from being
 * tried. */
#define STALE 100.0
#define LINE 4.0         /* weight of the line, in passes */
#define WEIGHT 16.0      /* most weight of a count in the line, so that frequent counts do not decide alone */
#define CLIP 1.3         /* most that a pass may deviate from the mean, as a ratio */
#define PRIOR_SLOPE 0.05 /* of a time with count 0, for one more, without other data */
#define PRIOR_WEIGHT 8.0

static int bin_of(int count) {
    assert(count >= 0);
    if (count < 32) return count;
    int bin = 32, low = 32;
    while (count >= 2 * low && bin + 4 < SD_COST_MODEL_BINS) low *= 2, bin += 4;
    int quarter = (count - low) / (low / 4);
    return bin + (quarter < 3 ? quarter : 3);
}

/* The abscissa of the line: the count plus, in units of PRIOR_SLOPE, the experts that so many rows read if
 * each chooses independently. */
static double work_of(const sd_cost_model* c, double count) {
    const sd_expert_reads* r = &c->expert_reads;
    if (r->share <= 0.0) return count;
    double experts = r->fresh < 1.0 ? (1.0 - pow(r->fresh, count)) / (1.0 - r->fresh) : count;
    return count + r->share / PRIOR_SLOPE * experts;
}

static double on_line(const sd_cost_model* c, double count) {
    return c->start + c->slope * work_of(c, count);
}

/* The slope through one bin without other data: in proportion to the count if (0, 0) is fixed, else
 * PRIOR_SLOPE. */
static double prior_slope(const sd_cost_model* c, int i) {
    if (c->n[0] > 0.0 && c->mean[0] == 0.0) return c->mean[i] / c->at[i];
    return PRIOR_SLOPE * c->mean[i] / (1.0 + PRIOR_SLOPE * work_of(c, c->at[i]));
}

/* Fit a least-squares line through the bins, with a prior slope where only one bin has data. */
static void fit(sd_cost_model* c) {
    double w = 0.0, x = 0.0, y = 0.0, slope = 0.0;
    for (int i = 0; i < SD_COST_MODEL_BINS; i++) {
        if (c->n[i] == 0.0) continue;
        double weight = fmin(c->n[i], WEIGHT);
        if (slope == 0.0 && c->mean[i] > 0.0) slope = prior_slope(c, i);
        w += weight, x += weight * work_of(c, c->at[i]), y += weight * c->mean[i];
    }
    double xx = PRIOR_WEIGHT, xy = PRIOR_WEIGHT * slope;
    for (int i = 0; i < SD_COST_MODEL_BINS; i++) {
        double weight = fmin(c->n[i], WEIGHT), dx = work_of(c, c->at[i]) - x / w;
        xx += weight * dx * dx, xy += weight * dx * (c->mean[i] - y / w);
    }
    c->slope = fmax(0.0, xy / xx);
    c->start = (y - c->slope * x) / w;
}

void sd_cost_model_reads(sd_cost_model* c, sd_expert_reads expert_reads) {
    c->expert_reads = expert_reads;
    if (c->known > 0.0) fit(c);
}

void sd_cost_model_anchor(sd_cost_model* c) { c->n[0] = FIRST; }

void sd_cost_model_scale(sd_cost_model* c, double counts, double seconds) {
    const sd_cost_model old = *c;
    *c = (sd_cost_model){.known = old.known,
                         .start = seconds * old.start,
                         .slope = seconds / counts * old.slope,
                         .expert_reads = old.expert_reads};
    sd_cost_model_anchor(c);
}

void sd_cost_model_learn(sd_cost_model* c, int count, double seconds) {
    int i = bin_of(count);
    c->known = 1;
    if (c->n[i] < FIRST) {
        double line = on_line(c, count);
        if (c->n[i] == 0.0) { /* do not believe a first pass that is much slower than the line */
            c->mean[i] = line > 0.0 ? fmin(seconds, NEW * line) : seconds;
        } else { /* of two that differ much the slower one was an accident */
            double low = fmin(c->mean[i], seconds), more = fabs(c->mean[i] - seconds);
            if (more < (CLIP - 1.0) * low)
                c->mean[i] += (seconds - c->mean[i]) / (c->n[i] + 1.0);
            else
                c->mean[i] = low + 0.25 * fmin(more, 0.5 * low);
        }
        c->n[i]++;
        c->at[i] += (count - c->at[i]) / c->n[i];
    } else if (c->mean[i] > 0.0) {
        double ratio = fmin(CLIP, fmax(1.0 / CLIP, seconds / c->mean[i]));
        c->n[i] = fmin(c->n[i] + 1.0, MEMORY);
        c->mean[i] *= 1.0 + (ratio - 1.0) / c->n[i];
        c->at[i] += (count - c->at[i]) / c->n[i];
    }
    /* A first pass may have been slow by accident: fewer rows or steps take no longer than more of them. */
    for (int j = 0; j < i; j++)
        if (c->n[j] < FIRST) c->mean[j] = fmin(c->mean[j], c->mean[i]);
    int least = 0; /* the smallest count, usually plain decoding, keeps its weight */
    while (least < SD_COST_MODEL_BINS && c->n[least] == 0.0) least++;
    for (int j = least + 1; j < SD_COST_MODEL_BINS; j++)
        if (j != i && c->n[j] > FIRST) c->n[j] = fmax(FIRST, c->n[j] * (1.0 - 1.0 / STALE));
    fit(c);
}

double sd_cost_model_seconds(const sd_cost_model* c, int count) {
    int i = bin_of(count);
    if (!c->known) return 0.0;
    double line = on_line(c, count), own = c->mean[i] + line - on_line(c, c->at[i]);
    return fmax(0.0, (c->n[i] * own + LINE * line) / (c->n[i] + LINE));
}

double sd_cost_model_step(const sd_cost_model* c, int count) {
    return on_line(c, count + 1) - on_line(c, count);
}

double sd_cost_model_seen(const sd_cost_model* c, int low, int high) {
    double n = 0.0;
    for (int i = bin_of(low); i <= bin_of(high); i++) n += c->n[i];
    return n;
}
