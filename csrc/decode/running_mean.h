/* A decaying mean: `sum` over weights `n`, both decaying. Starts as zeros. */
#pragma once

typedef struct sd_mean {
    double sum, n;
} sd_mean;

/* Add `value` to the sum, with this weight; both decay over about `memory` calls. With values from 0 to 1 and
 * weights of 1 the mean is a rate. */
static inline void sd_mean_add(sd_mean* mean, double value, double weight, double memory) {
    mean->sum += value - mean->sum / memory;
    mean->n += weight - mean->n / memory;
}

/* The mean, with a prior that counts as `weight`. */
static inline double sd_mean_of(sd_mean mean, double prior, double weight) {
    return (mean.sum + weight * prior) / (mean.n + weight);
}

/* Keep the mean, but reduce its weight to at most n. */
static inline void sd_mean_weaken(sd_mean* mean, double n) {
    if (mean->n > n) mean->sum *= n / mean->n, mean->n = n;
}
