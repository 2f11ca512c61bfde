/* One step of beam search: the best continuations of all hypotheses. Pure. */
#include <math.h>

#include "beam_tree.h"
#include "kernels.h"

/* Logits per block: a block whose largest logit cannot enter the best is skipped. */
#define BLOCK 256

/* Turns logits into ln p = (logit - largest) - log_sum. */
typedef struct normalizer {
    double largest, log_sum;
} normalizer;

/* Exponentials are those of sampling, in f32, their sum is in double: ln p is accurate to some 1e-7, with
 * equal bits on every instruction set. */
static normalizer normalize(int n_vocab, const float* logits) {
    const sd_kernels* k = sd_kernels_get();
    float largest = k->max(n_vocab, logits);
    double weights[BLOCK], sum = 0.0;
    for (int i = 0; i < n_vocab; i += BLOCK)
        sum += k->weigh(n_vocab - i < BLOCK ? n_vocab - i : BLOCK, logits + i, largest, 1.0f, weights);
    return (normalizer){(double)largest, log(sum)};
}

/* Monotonic in the logit, rounding included, so the largest logit of a block decides for the block. */
static double score_of(double before, normalizer z, float logit) {
    return before + (((double)logit - z.largest) - z.log_sum);
}

/* Insert a candidate into best [*n], best first. Candidates come in tie-breaking order, so an equal one goes
 * after. */
static void insert(sd_beam* best, int* n, int width, sd_beam candidate) {
    if (*n == width && !(candidate.score > best[width - 1].score)) return;
    int at = *n < width ? (*n)++ : width - 1;
    for (; at > 0 && best[at - 1].score < candidate.score; at--) best[at] = best[at - 1];
    best[at] = candidate;
}

/* Returns 0 if the logits are not finite. */
static int insert_continuations(const sd_beam* beams, int index, const float* logits, int n_vocab, int width,
                                sd_beam* best, int* n) {
    const sd_kernels* k = sd_kernels_get();
    double before = beams[index].score;
    normalizer z = normalize(n_vocab, logits);
    if (!isfinite(z.largest) || !isfinite(z.log_sum)) return 0;
    for (int first = 0; first < n_vocab; first += BLOCK) {
        int end = n_vocab - first < BLOCK ? n_vocab : first + BLOCK;
        float largest = k->max(end - first, logits + first);
        if (*n == width && !(score_of(before, z, largest) > best[width - 1].score)) continue;
        for (int t = first; t < end; t++) {
            const sd_beam candidate = {.score = score_of(before, z, logits[t]), .token = t, .parent = index};
            insert(best, n, width, candidate);
        }
    }
    return 1;
}

int sd_beam_step(const sd_beam* beams, int n, const float* logits, ptrdiff_t ld, int first_node, int n_vocab,
                 sd_stop_ids stop, int width, sd_beam* next) {
    int n_next = 0;
    for (int i = 0; i < n; i++) {
        const sd_beam itself = {.score = beams[i].score, .token = -1, .parent = i, .ended = 1};
        if (beams[i].ended) {
            insert(next, &n_next, width, itself);
            continue;
        }
        const float* row = logits + (beams[i].node - first_node) * ld;
        if (!insert_continuations(beams, i, row, n_vocab, width, next, &n_next)) return 0;
    }
    for (int i = 0; i < n_next; i++)
        for (int j = 0; j < stop.n; j++) next[i].ended |= next[i].token == stop.ids[j];
    return n_next;
}
