/* The distribution of the next token from a row of logits: ln p by a softmax in double precision, and the
 * most probable tokens. Pure functions. */
#pragma once

#include <stdint.h>

typedef struct sd_row_distribution {
    double largest;   /* the largest logit */
    double log_total; /* ln Σ exp(logit − largest), tokens ascending */
    int32_t argmax;   /* the most probable token, lowest id on ties */
} sd_row_distribution;

/* Distribution of logits [n_vocab], borrowed; at least one is finite, none is NaN or +infinity. */
sd_row_distribution sd_row_distribution_of(const float* logits, int n_vocab);

/* ln p(token). */
static inline double sd_row_log_prob(const sd_row_distribution* row, const float* logits, int32_t token) {
    return (double)logits[token] - row->largest - row->log_total;
}

/* Σ exp(logit − from) over logits [n_vocab], borrowed, with the exponentials of sampling (f32, kernels.h). */
double sd_row_mass(const float* logits, int n_vocab, float from);

/* The n ≤ n_vocab most probable tokens [n], largest logit first, lower id on ties, and their ln p in
 * log_probs [n]; out, borrowed. */
void sd_row_top(const sd_row_distribution* row, const float* logits, int n_vocab, int n, int32_t* tokens,
                double* log_probs);

/* The largest values of a stream: a heap with the least kept value at 0. */
typedef struct sd_top {
    int n; /* how many are kept, at least 1 */
    int n_found;
    int32_t* tokens; /* [n], borrowed */
    double* values;  /* [n], borrowed; none is NaN */
} sd_top;

/* Keep a token unconditionally, in place of the least one if there are n. */
void sd_top_take(sd_top* top, int32_t token, double value);

/* Keep a token if its value is among the n largest so far. Offer tokens in ascending order. */
static inline void sd_top_offer(sd_top* top, int32_t token, double value) {
    if (top->n_found < top->n || value > top->values[0]) sd_top_take(top, token, value);
}

/* After the last value: sort the kept tokens, largest value first, lower id on ties. */
void sd_top_sort(sd_top* top);
