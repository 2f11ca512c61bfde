/* A mean that forgets: `sum` over weights `n`, both decaying. Begins as zeros. */
#ifndef SD_RUNNING_MEAN_H
#define SD_RUNNING_MEAN_H

typedef struct sd_mean {
    double sum, n;
} sd_mean;

/* Another case, which counts as `weight`; about `memory` cases are remembered. A case that was right with a
 * chance `value` of weight 1 makes the mean a rate. */
static inline void sd_mean_add(sd_mean* mean, double value, double weight, double memory) {
    mean->sum += value - mean->sum / memory;
    mean->n += weight - mean->n / memory;
}

/* The mean, with a prior that counts as `weight`. */
static inline double sd_mean_of(sd_mean mean, double prior, double weight) {
    return (mean.sum + weight * prior) / (mean.n + weight);
}

/* Count it as at most n. */
static inline void sd_mean_weaken(sd_mean* mean, double n) {
    if (mean->n > n) mean->sum *= n / mean->n, mean->n = n;
}

#endif
