/* What attention adds for positions: the cosines and sines of rotary ones, biases of scores by distance. */
#pragma once

#include "weights.h"

/* Cosines and sines, computed when a forward first meets a position: a context may be far longer than any
 * text, so there is no table of the whole of it. */
typedef struct sd_angles {
    const sd_config* config; /* of the model, borrowed */
    int n_known;             /* positions computed so far: 0 … n_known - 1 */
    int n_columns;           /* floats of a position */
    int* columns;            /* [n_rotations] where the angles of a rotation begin among them */
    float* rows; /* [positions, n_columns]: for each rotation n_freq cosines and n_freq sines; then the
                  * factor of queries, if they have one */
} sd_angles;

/* Take room for positions 0 … n_positions - 1 from the arena (which may be counting). The system makes pages
 * of it when they are written. The configuration is borrowed. */
sd_angles sd_angles_take(sd_arena* arena, const sd_config* config, int n_positions);

/* Compute what is missing of positions 0 … end - 1. */
void sd_angles_extend(sd_angles* angles, int end);

/* The n_freq cosines of a rotation at a position that has been computed; its n_freq sines follow them. */
const float* sd_angles_row(const sd_angles* angles, int rotation, int position);

/* The factor of queries at a position that has been computed. */
float sd_angles_query_factor(const sd_angles* angles, int position);

/* Biases of the scores of attention that follow from distances: ALiBi's, and those of buckets. */

/* Of a model that has such biases: that of a head's score with a key `distance` ≥ 0 positions before the
 * row. */
float sd_distance_bias(const sd_model* model, int layer, int head, int distance);

/* bias [n], borrowed: of keys at positions first, first + 1, …, all at or before the row's. */
void sd_distance_biases_before(const sd_model* model, int layer, int head, int position, int first, int n,
                               float* bias);

/* bias [n], borrowed: of keys distance, distance + 1, … positions after the row, in an encoder: they have
 * buckets of their own. */
void sd_distance_biases_after(const sd_model* model, int layer, int head, int distance, int n, float* bias);
