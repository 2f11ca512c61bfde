/* What a row of logits says of the next token: ln p by a softmax in double precision, the most probable
 * tokens. Pure functions of the row. */
#pragma once

#include <stdint.h>

typedef struct sd_row_distribution {
    double largest;   /* logit */
    double log_total; /* ln Σ exp(logit − largest), tokens ascending */
    int32_t argmax;   /* the most probable token, of equal ones the lowest */
} sd_row_distribution;

/* The law of logits [n_vocab], borrowed; at least one of them is finite, none NaN or +infinity. */
sd_row_distribution sd_row_distribution_of(const float* logits, int n_vocab);

/* ln p(token) by the law of its logits. */
static inline double sd_row_log_prob(const sd_row_distribution* law, const float* logits, int32_t token) {
    return (double)logits[token] - law->largest - law->log_total;
}

/* Σ exp(logit − from) over logits [n_vocab], borrowed, in the exponentials of sampling (f32, kernels.h). */
double sd_row_mass(const float* logits, int n_vocab, float from);

/* The n ≤ n_vocab tokens of the largest logits [n_vocab], the largest first, of equal ones the lower token:
 * tokens [n] and log_probs [n], their ln p by the law of the logits; out, borrowed. */
void sd_row_top(const sd_row_distribution* law, const float* logits, int n_vocab, int n, int32_t* tokens,
                double* log_probs);

/* While values come, a heap with the least of those kept at 0. */
typedef struct sd_top {
    int n; /* how many are kept, at least 1 */
    int n_found;
    int32_t* tokens; /* [n], borrowed */
    double* values;  /* [n], borrowed; none is NaN */
} sd_top;

/* Keep a token in any case, in place of the least one where there are n. */
void sd_top_take(sd_top* top, int32_t token, double value);

/* Keep a token if its value is among the n largest so far. Tokens come in ascending order. */
static inline void sd_top_offer(sd_top* top, int32_t token, double value) {
    if (top->n_found < top->n || value > top->values[0]) sd_top_take(top, token, value);
}

/* When all have come: put those that were kept in order, the largest first, of equal ones the lower token. */
void sd_top_sort(sd_top* top);
