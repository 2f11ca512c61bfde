#include "angles.h"

#include <math.h>

sd_angles sd_angles_take(sd_arena* arena, const sd_model* model, int n_positions) {
    if (model->inv_freq == NULL) return (sd_angles){0};
    int n_half = model->config.d_head / 2;
    float* rows = sd_arena_take(arena, (size_t)n_positions, 2 * (size_t)n_half * sizeof(float));
    return (sd_angles){.inv_freq = model->inv_freq, .n_half = n_half, .rows = rows};
}

void sd_angles_extend(sd_angles* a, int end) {
    if (a->inv_freq == NULL) return;
    for (; a->n_known < end; a->n_known++) {
        float* cosine = a->rows + 2 * (ptrdiff_t)a->n_known * a->n_half;
        float* sine = cosine + a->n_half;
        for (int i = 0; i < a->n_half; i++) {
            cosine[i] = (float)cos(a->n_known * a->inv_freq[i]);
            sine[i] = (float)sin(a->n_known * a->inv_freq[i]);
        }
    }
}

const float* sd_angles_row(const sd_angles* a, int position) {
    return a->rows + 2 * (ptrdiff_t)position * a->n_half;
}
