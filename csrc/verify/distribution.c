#include "distribution.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

/* ----------------------------------------------------------------------------------- truncation */

/* A sample of this many weights estimates where the cut falls; rows this short are sorted directly. */
#define LOOK 32

/* Sort x [n] in descending order. */
static void sort_down(double* x, int n) {
    for (int i = 1; i < n; i++) {
        double moving = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] < moving; at--) x[at] = x[at - 1];
        x[at] = moving;
    }
}

/* Value of a token of this weight: 1, or the weight rounded to the grid (sd_kernels.split). */
static double value(double weight, double grid) { return grid > 0.0 ? (weight + grid) - grid : 1.0; }

/* Where a row is cut: the smallest kept weight, how many tokens have it, and the value of the tokens
 * above. */
typedef struct cut {
    double weight;
    int n_equal;
    double above;
} cut;

/* Return the cut that reaches `goal` among n sorted candidates; weight 0 if they do not reach it. */
static cut cut_sorted(const double* sorted, int n, double above, double goal, double grid) {
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end] == sorted[i];) end++;
        double here = (end - i) * value(sorted[i], grid);
        if (above + here >= goal) return (cut){sorted[i], end - i, above};
        above += here;
    }
    return (cut){0.0, 0, above};
}

/* Return the cut that reaches `goal`. Candidates are first all weights, then those between two bounds
 * estimated from a sorted sample of 32; one pass counts and copies them and leaves about a fifth. Sums of
 * values are exact, so the search path does not change the result. */
static cut find_cut(int n, const double* weights, double mass, double goal, double grid, double* scratch) {
    const sd_kernels* k = sd_kernels_get();
    const double* candidates = weights;
    double *inside = scratch, *other = scratch + n;
    double look[LOOK], sums[2];
    double above = 0.0;                    /* value of the tokens above all candidates */
    double within = grid > 0.0 ? mass : n; /* value of the candidates; an estimate is enough */
    int margin = 3;
    while (n > LOOK) {
        double looked = 0.0, reached = 0.0;
        for (int i = 0; i < LOOK; i++) {
            look[i] = candidates[(long)n * i / LOOK];
            looked += value(look[i], grid);
        }
        sort_down(look, LOOK);
        int at = 0; /* the cut within the sample */
        while (at < LOOK - 1 && (reached += value(look[at], grid)) * within < (goal - above) * looked) at++;
        int upper = at - margin, lower = at + margin;
        double high = upper >= 0 ? nextafter(look[upper], INFINITY) : INFINITY;
        double low = lower < LOOK ? look[lower] : 0.0;
        int n_inside = k->split(n, candidates, low, high, grid, inside, sums);
        if (above + sums[0] >= goal) { /* above the upper bound */
            n_inside = k->split(n, candidates, high, INFINITY, grid, inside, sums);
            within = sums[1];
        } else if (above + sums[1] >= goal) {
            above += sums[0];
            within = sums[1] - sums[0];
            if (upper >= 0 && lower < LOOK && look[upper] == low) return (cut){low, n_inside, above};
        } else { /* below the lower bound */
            above += sums[1];
            within -= sums[1];
            n_inside = k->split(n, candidates, 0.0, low, grid, inside, sums);
        }
        margin = n_inside < n ? 3 : 0; /* few distinct weights: then one of them at a time */
        n = n_inside;
        candidates = inside;
        inside = other;
        other = (double*)candidates;
    }
    memcpy(look, candidates, (size_t)n * sizeof *look);
    sort_down(look, n);
    return cut_sorted(look, n, above, goal, grid);
}

/* Zero all but the fewest largest weights whose values reach `goal` (ties to the lowest id); keep all if they
 * do not. Returns the mass kept. scratch [2 · n]. */
static double keep_largest(int n, double* weights, double mass, double goal, double grid, double* scratch) {
    cut at = find_cut(n, weights, mass, goal, grid, scratch);
    if (at.n_equal > 0) { /* of equal weights keep as many as needed, lowest ids first */
        double each = value(at.weight, grid);
        int wanted = (int)((goal - at.above) / each);
        while (wanted > 1 && at.above + (wanted - 1) * each >= goal) wanted--;
        while (wanted < at.n_equal && at.above + wanted * each < goal) wanted++;
        for (int i = n - 1, surplus = at.n_equal - wanted; surplus > 0; i--)
            if (weights[i] == at.weight) weights[i] = 0.0, surplus--;
    }
    return sd_kernels_get()->cut(n, weights, at.weight);
}

/* Zero the weights [n] that the settings drop: top-k, then nucleus, then min-p, by selection instead of
 * sorting. mass: sum of all weights; best: lowest id of the largest weight; scratch [2 · n]. Returns the mass
 * kept. */
static double truncate_weights(const sd_sampling* s, int n, double* weights, double mass, int32_t best,
                               double* scratch) {
    if (s->top_k > 0 && s->top_k < n) mass = keep_largest(n, weights, mass, s->top_k, 0.0, scratch);
    if (s->top_p < 1.0) {
        /* Weights are rounded to the spacing of doubles above twice the mass. Sums of such multiples, up to
         * the mass, are exact. */
        int exponent;
        frexp(mass, &exponent);
        mass = keep_largest(n, weights, mass, s->top_p * mass, ldexp(1.0, exponent + 1), scratch);
    }
    if (s->min_p > 0.0) mass = sd_kernels_get()->cut(n, weights, s->min_p * weights[best]);
    return mass;
}

/* -------------------------------------------------------------------------- standardized logits */

static void set_mass(sd_distribution* d, double mass) {
    d->mass = mass;
    d->factor = 1.0 / mass;
}

int sd_standardize(const sd_sampling* s, int n_vocab, const float* logits, double* scratch,
                   sd_distribution* out) {
    const sd_kernels* k = sd_kernels_get();
    int32_t best = k->argmax(n_vocab, logits);
    int finite = isfinite(logits[best]);
    out->point = s->temperature == 0.0 || !finite ? best : -1;
    if (out->point >= 0) return finite;
    /* capped, because 0 · infinity is not 0 */
    float factor = s->temperature > 1e-30 ? (float)(1.0 / s->temperature) : 1e30f;
    double mass = k->weigh(n_vocab, logits, logits[best], factor, out->weights);
    mass = truncate_weights(s, n_vocab, out->weights, mass, best, scratch);
    set_mass(out, mass);
    return 1;
}

/* ------------------------------------------------------------------------------- distributions */

double sd_prob(const sd_distribution* d, int32_t token) {
    return d->point < 0 ? d->weights[token] * d->factor : d->point == token ? 1.0 : 0.0;
}

int32_t sd_most_probable(const sd_distribution* d, int n_vocab) {
    if (d->point >= 0) return d->point;
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (d->weights[i] > d->weights[best]) best = i;
    return best;
}

double sd_overlap(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab) {
    if (target->point >= 0) return fmin(scale, sd_prob(draft, target->point));
    if (draft->point >= 0) return fmin(scale * sd_prob(target, draft->point), 1.0);
    double overlap;
    sd_kernels_get()->residual(n_vocab, target->weights, scale * target->factor, 1.0, draft->weights,
                               draft->factor, NULL, &overlap);
    return fmin(overlap, 1.0);
}

/* The cumulative sum skips whole blocks at the speed of a sum; only one block is walked. */
#define SAMPLE_BLOCK 128

int32_t sd_sample(const sd_distribution* d, int n_vocab, double uniform) {
    if (d->point >= 0) return d->point;
    const sd_kernels* k = sd_kernels_get();
    double goal = uniform * d->mass, before = 0.0, cumulative = 0.0;
    int first = 0; /* the block to walk: the one with `goal`, or the last one with mass */
    for (int i = 0; i < n_vocab && !(goal < cumulative); i += SAMPLE_BLOCK) {
        double block = k->mass(n_vocab - i < SAMPLE_BLOCK ? n_vocab - i : SAMPLE_BLOCK, d->weights + i);
        if (!(block > 0.0)) continue;
        first = i;
        before = cumulative;
        cumulative += block;
    }
    int32_t chosen = first; /* rounding may end the walk below `goal`: then the last token with mass */
    for (int32_t i = first; i < n_vocab && i < first + SAMPLE_BLOCK; i++) {
        if (d->weights[i] <= 0.0) continue;
        before += d->weights[i];
        chosen = i;
        if (goal < before) break;
    }
    return chosen;
}

void sd_noise(sd_stream stream, uint32_t position, int n_vocab, double* noise) {
    const uint32_t counter[4] = {position, 0, SD_DRAW_NOISE, stream.sequence};
    const uint32_t key[2] = {(uint32_t)stream.seed, (uint32_t)(stream.seed >> 32)};
    sd_kernels_get()->noise(n_vocab, counter, key, noise);
}

/* −ln(1 − v) for a multiple v < 1 of 2^-53, so that 1 − v is exact: −ln(m 2^e) = −e ln 2 − 2 atanh s with s =
 * (m − 1) / (m + 1), |s| < 0.172. The C library's log is not used: its last bits vary. */
static double exponential(double v) {
    int e;
    double m = frexp(1.0 - v, &e);
    if (m < 0.70710678118654752) m *= 2.0, e--;
    double s = (m - 1.0) / (m + 1.0), square = s * s, series = 0.0;
    for (int k = 23; k > 0; k -= 2) series = series * square + 1.0 / k;
    return -e * 0.69314718055994531 - 2.0 * s * series;
}

int sd_race_order(const sd_distribution* d, int n_vocab, const double* noise, int k, int32_t* order,
                  double* times) {
    int n = 0;
    /* −ln(1 − v) ≥ v, so few tokens pass this test */
    for (int32_t i = 0;; i++) {
        double last = n < k ? INFINITY : times[k - 1];
        i += sd_kernels_get()->find_below(n_vocab - i, noise + i, d->weights + i, last);
        if (i >= n_vocab) return n;
        double time = exponential(noise[i]) / d->weights[i];
        if (!(time < last)) continue;
        int at = n < k ? n++ : k - 1;
        for (; at > 0 && time < times[at - 1]; at--) times[at] = times[at - 1], order[at] = order[at - 1];
        times[at] = time, order[at] = i;
    }
}

int32_t sd_race(const sd_distribution* d, int n_vocab, const double* noise) {
    int32_t winner = d->point;
    double time;
    if (winner < 0) sd_race_order(d, n_vocab, noise, 1, &winner, &time);
    return winner;
}

int32_t sd_coupled_token(const sd_distribution* d, sd_stream stream, uint32_t position, int n_vocab,
                         double* noise) {
    if (d->point < 0) sd_noise(stream, position, n_vocab, noise);
    return sd_race(d, n_vocab, noise);
}

double sd_residual(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab,
                   double* left, sd_distribution* rest, double* overlap) {
    const sd_kernels* k = sd_kernels_get();
    if (rest) *rest = *target;
    if (target->point >= 0 || draft->point >= 0) *overlap = sd_overlap(target, 1.0, draft, n_vocab);
    /* the residual of a point mass is on the same token */
    if (target->point >= 0) return fmax(0.0, scale - sd_prob(draft, target->point));
    double factor = scale * target->factor, mass, sum;
    if (draft->point >= 0) {
        memcpy(left, target->weights, (size_t)n_vocab * sizeof *left);
        left[draft->point] = fmax(0.0, left[draft->point] - 1.0 / factor);
        mass = k->mass(n_vocab, left);
        sum = mass * factor;
    } else {
        sum = mass = k->residual(n_vocab, target->weights, target->factor, scale, draft->weights,
                                 draft->factor, rest ? left : NULL, overlap);
        *overlap = fmin(*overlap, 1.0);
    }
    if (!(mass > 0.0 && isfinite(1.0 / mass))) return 0.0;
    if (rest) {
        rest->weights = left;
        set_mass(rest, mass);
    }
    return sum;
}
