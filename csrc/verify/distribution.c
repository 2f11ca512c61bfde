#include "distribution.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "truncation.h"

static void set_mass(sd_distribution* d, double mass) {
    d->mass = mass;
    d->factor = 1.0 / mass;
}

int sd_standardise(const sd_sampling* s, int n_vocab, const float* logits, double* scratch,
                   sd_distribution* out) {
    const sd_kernels* k = sd_kernels_get();
    int32_t best = k->argmax(n_vocab, logits);
    int finite = isfinite(logits[best]);
    out->point = s->temperature == 0.0 || !finite ? best : -1;
    if (out->point >= 0) return finite;
    /* capped, because 0 · infinity is not 0 */
    float factor = s->temperature > 1e-30 ? (float)(1.0 / s->temperature) : 1e30f;
    double mass = k->weigh(n_vocab, logits, logits[best], factor, out->weights);
    mass = sd_truncate(s, n_vocab, out->weights, mass, best, scratch);
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
    double factor = scale * target->factor;
    return fmin(sd_kernels_get()->overlap(n_vocab, target->weights, factor, draft->weights, draft->factor),
                1.0);
}

/* Whole blocks of the cumulative sum are passed at the speed of a sum; one is walked. */
#define SAMPLE_BLOCK 128

int32_t sd_sample(const sd_distribution* d, int n_vocab, double uniform) {
    if (d->point >= 0) return d->point;
    const sd_kernels* k = sd_kernels_get();
    double goal = uniform * d->mass, before = 0.0, cumulative = 0.0;
    int first = 0; /* the block to walk: the one `goal` lies in, or the last one with mass */
    for (int i = 0; i < n_vocab && !(goal < cumulative); i += SAMPLE_BLOCK) {
        double block = k->mass(n_vocab - i < SAMPLE_BLOCK ? n_vocab - i : SAMPLE_BLOCK, d->weights + i);
        if (!(block > 0.0)) continue;
        first = i;
        before = cumulative;
        cumulative += block;
    }
    int32_t chosen = first; /* rounding may end the walk below `goal`: then the last one with mass */
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

/* −ln(1 − v) for a multiple v < 1 of 2^-53, so that 1 − v is exact: −ln(m 2^e) = −e ln 2 − 2 atanh s
 * with s = (m − 1) / (m + 1), |s| < 0.172. Not the C library's, whose last bits vary. */
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
    /* −ln(1 − v) ≥ v, so few get past this */
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
                   double* left, sd_distribution* rest) {
    const sd_kernels* k = sd_kernels_get();
    *rest = *target;
    /* what is left of a point mass lies on the same token */
    if (target->point >= 0) return fmax(0.0, scale - sd_prob(draft, target->point));
    double factor = scale * target->factor, mass, sum;
    if (draft->point >= 0) {
        memcpy(left, target->weights, (size_t)n_vocab * sizeof *left);
        left[draft->point] = fmax(0.0, left[draft->point] - 1.0 / factor);
        mass = k->mass(n_vocab, left);
        sum = mass * factor;
    } else {
        sum = mass = k->residual(n_vocab, target->weights, factor, draft->weights, draft->factor, left);
    }
    if (!(mass > 0.0 && isfinite(1.0 / mass))) return 0.0;
    rest->weights = left;
    set_mass(rest, mass);
    return sum;
}
