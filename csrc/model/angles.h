/* Cosines and sines of rotary positions, computed when a forward first meets a position. A context may be
 * far longer than any text, so there is no table of the whole of it. */
#ifndef SD_ANGLES_H
#define SD_ANGLES_H

#include "weights.h"

typedef struct sd_angles {
    const double* inv_freq; /* [n_half] of the model, borrowed; NULL: positions do not rotate */
    int n_half;             /* d_head / 2 */
    int n_known;            /* positions computed so far: 0 … n_known - 1 */
    float* rows; /* [positions, 2, n_half] cosines and sines; of the arena that they were taken from */
} sd_angles;

/* Take room for positions 0 … n_positions - 1 from the arena (which may be counting). The system makes pages
 * of it when they are written. */
sd_angles sd_angles_take(sd_arena* arena, const sd_model* model, int n_positions);

/* Compute what is missing of positions 0 … end - 1. */
void sd_angles_extend(sd_angles* angles, int end);

/* The n_half cosines of a position that has been computed; its n_half sines follow them. */
const float* sd_angles_row(const sd_angles* angles, int position);

#endif
