#include "distribution.h"

#include <math.h>

#include "kernels.h"

sd_status sd_sampling_check(const sd_sampling* s) {
    if (!(s->temperature >= 0.0 && isfinite(s->temperature)))
        return sd_fail(SD_ERR_VALUE, "temperature is %g, expected a finite number of 0 or more",
                       s->temperature);
    if (s->top_k < 0) return sd_fail(SD_ERR_VALUE, "top_k is %d, expected 0 (all) or more", s->top_k);
    if (!(s->top_p > 0.0 && s->top_p <= 1.0))
        return sd_fail(SD_ERR_VALUE, "top_p is %g, expected above 0 and at most 1", s->top_p);
    return SD_OK;
}

int32_t sd_argmax(int n_vocab, const float* logits) {
    float best = sd_kernels_get()->max(n_vocab, logits);
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] == best) return i;
    return 0;
}

/* Sum of probs [n] over eight lanes: a fixed order that compilers turn into vectors. */
static double sum(const double* probs, int n) {
    double lanes[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) lanes[l] += probs[i + l];
    for (int l = 0; i < n; i++, l++) lanes[l] += probs[i];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static void normalise(double* probs, int n) {
    double factor = 1.0 / sum(probs, n);
    for (int i = 0; i < n; i++) probs[i] *= factor;
}

/* Is token a before token b in the order of probability, ids breaking ties? */
static int before(const double* probs, int32_t a, int32_t b) {
    return probs[a] != probs[b] ? probs[a] > probs[b] : a < b;
}

static void sift_down(const double* probs, int32_t* heap, int n, int at) {
    int32_t moving = heap[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(probs, heap[child + 1], heap[child])) child++;
        if (before(probs, moving, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

/* Zero all but the kept tokens, which leave a heap most probable first: the first k of them, then
 * as few of these as have top_p of their mass. */
static void truncate(const sd_sampling* s, int n_vocab, double* probs, int32_t* heap) {
    int n = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (probs[i] > 0.0) heap[n++] = i;
    for (int at = n / 2 - 1; at >= 0; at--) sift_down(probs, heap, n, at);

    /* Popped tokens collect behind the shrinking heap: the j-th popped lies at heap[n - 1 - j]. */
    int k = s->top_k > 0 && s->top_k < n ? s->top_k : n, kept = 0;
    double mass = 0.0;
    /* Without top-k the kept mass is 1, so the nucleus can be cut while popping. */
    int cut_early = k == n && s->top_p < 1.0;
    while (kept < k && !(cut_early && mass >= s->top_p)) {
        int32_t top = heap[0];
        heap[0] = heap[n - 1 - kept];
        heap[n - 1 - kept] = top;
        sift_down(probs, heap, n - 1 - kept, 0);
        mass += probs[top];
        kept++;
    }
    if (!cut_early && s->top_p < 1.0) {
        double limit = s->top_p * mass;
        mass = 0.0;
        int nucleus = 0;
        while (nucleus < kept && mass < limit) mass += probs[heap[n - 1 - nucleus++]];
        kept = nucleus;
    }
    /* Everything not kept: what is still in the heap, and popped tokens past the nucleus. */
    for (int i = 0; i < n - kept; i++) probs[heap[i]] = 0.0;
}

void sd_standardise(const sd_sampling* s, int n_vocab, const float* logits, int32_t* order,
                    sd_distribution* out) {
    if (s->temperature == 0.0) {
        out->point = sd_argmax(n_vocab, logits);
        return;
    }
    const sd_kernels* k = sd_kernels_get();
    float best = k->max(n_vocab, logits);
    /* capped, because 0 · infinity is not 0 */
    float factor = s->temperature > 1e-30 ? (float)(1.0 / s->temperature) : 1e30f;
    float block[256];
    out->point = -1;
    for (int i = 0; i < n_vocab; i += 256) {
        int n = n_vocab - i < 256 ? n_vocab - i : 256;
        k->exp(n, logits + i, best, factor, block);
        for (int j = 0; j < n; j++) out->probs[i + j] = (double)block[j];
    }
    normalise(out->probs, n_vocab);
    if ((s->top_k > 0 && s->top_k < n_vocab) || s->top_p < 1.0) {
        truncate(s, n_vocab, out->probs, order);
        normalise(out->probs, n_vocab);
    }
}

double sd_prob(const sd_distribution* d, int32_t token) {
    return d->point < 0 ? d->probs[token] : d->point == token ? 1.0 : 0.0;
}

double sd_overlap(const sd_distribution* a, const sd_distribution* b, int n_vocab) {
    if (a->point >= 0) return sd_prob(b, a->point);
    if (b->point >= 0) return sd_prob(a, b->point);
    double lanes[8] = {0};
    int i = 0;
    for (; i + 8 <= n_vocab; i += 8) {
        for (int l = 0; l < 8; l++) {
            double x = a->probs[i + l], y = b->probs[i + l];
            lanes[l] += x < y ? x : y;
        }
    }
    for (int l = 0; i < n_vocab; i++, l++) lanes[l] += a->probs[i] < b->probs[i] ? a->probs[i] : b->probs[i];
    double total = sum(lanes, 8);
    return total < 1.0 ? total : 1.0;
}

/* Whole blocks of the cumulative sum are passed at the speed of a sum; one is walked. */
#define SAMPLE_BLOCK 64

int32_t sd_sample(const sd_distribution* d, int n_vocab, double uniform) {
    if (d->point >= 0) return d->point;
    int first = 0; /* the block to walk: the one `uniform` lies in, or the last one with mass */
    double before = 0.0, cumulative = 0.0;
    for (int i = 0; i < n_vocab && !(uniform < cumulative); i += SAMPLE_BLOCK) {
        double block = sum(d->probs + i, n_vocab - i < SAMPLE_BLOCK ? n_vocab - i : SAMPLE_BLOCK);
        if (!(block > 0.0)) continue;
        first = i;
        before = cumulative;
        cumulative += block;
    }
    int32_t chosen = first; /* rounding may end the walk below `uniform`: then the last one with mass */
    for (int32_t i = first; i < n_vocab && i < first + SAMPLE_BLOCK; i++) {
        if (d->probs[i] <= 0.0) continue;
        before += d->probs[i];
        chosen = i;
        if (uniform < before) break;
    }
    return chosen;
}

void sd_residual(sd_distribution* target, const sd_distribution* draft, int n_vocab) {
    if (target->point >= 0) return; /* what is left of a point mass lies on the same token */
    double left = 0.0;
    if (draft->point >= 0) {
        left = sum(target->probs, n_vocab) - target->probs[draft->point];
        if (!(left > 0.0)) return;
        target->probs[draft->point] = 0.0;
        normalise(target->probs, n_vocab);
        return;
    }
    for (int i = 0; i < n_vocab && !(left > 0.0); i++) left = target->probs[i] - draft->probs[i];
    if (!(left > 0.0)) return;
    for (int i = 0; i < n_vocab; i++) {
        double d = target->probs[i] - draft->probs[i];
        target->probs[i] = d > 0.0 ? d : 0.0;
    }
    normalise(target->probs, n_vocab);
}
