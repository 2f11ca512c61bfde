/* Positions in attention: cosines and sines of rotary embeddings, and score biases by distance. */
#pragma once

#include "weights.h"

/* Cosines and sines, computed when a forward pass first meets a position: a context may be far longer than
 * any text, so there is no table of all of it. */
typedef struct sd_angles {
    const sd_config* config; /* of the model, borrowed */
    int n_known;             /* positions computed so far: 0 … n_known - 1 */
    int n_columns;           /* floats of a position */
    int* columns;            /* [n_rotations] first column of each rotation */
    /* [positions, n_columns]: for each rotation n_freq cosines and n_freq sines; then the factor of queries,
     * if any. */
    float* rows;
} sd_angles;

/* Take memory for positions 0 … n_positions - 1 from the arena (which may be counting). The system allocates
 * its pages when they are written. The configuration is borrowed. */
sd_angles sd_angles_take(sd_arena* arena, const sd_config* config, int n_positions);

/* Compute missing rows of positions 0 … end - 1. */
void sd_angles_extend(sd_angles* angles, int end);

/* The n_freq cosines of a rotation at a computed position; its n_freq sines follow them. */
const float* sd_angles_row(const sd_angles* angles, int rotation, int position);

/* Factor of queries at a computed position. */
float sd_angles_query_factor(const sd_angles* angles, int position);

/* Score biases by distance: ALiBi's, and those of buckets. */

/* Bias of a head's score with a key `distance` ≥ 0 positions before the row, in a model with such biases. */
float sd_distance_bias(const sd_model* model, int layer, int head, int distance);

/* Fill bias [n], borrowed, for keys at positions first, first + 1, …, all at or before the row's. */
void sd_distance_biases_before(const sd_model* model, int layer, int head, int position, int first, int n,
                               float* bias);

/* Fill bias [n], borrowed, for keys distance, distance + 1, … positions after the row, in an encoder, which
 * has buckets of their own for them. */
void sd_distance_biases_after(const sd_model* model, int layer, int head, int distance, int n, float* bias);
