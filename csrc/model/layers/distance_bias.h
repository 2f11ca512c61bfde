/* Biases of the scores of attention that follow from distances: ALiBi's, and those of buckets. */
#ifndef SD_DISTANCE_BIAS_H
#define SD_DISTANCE_BIAS_H

#include "weights.h"

/* Of a model that has such biases: that of a head's score with a key `distance` ≥ 0 positions before the
 * row. */
float sd_distance_bias(const sd_model* model, int layer, int head, int distance);

/* bias [n], borrowed: of keys at positions first, first + 1, …, all at or before the row's. */
void sd_distance_biases_before(const sd_model* model, int layer, int head, int position, int first, int n,
                               float* bias);

/* bias [n], borrowed: of keys distance, distance + 1, … positions after the row, in an encoder: they have
 * buckets of their own. */
void sd_distance_biases_after(const sd_model* model, int layer, int head, int distance, int n, float* bias);

#endif
