#include "positions.h"

#include <math.h>

sd_angles sd_angles_take(sd_arena* arena, const sd_config* c, int n_positions) {
    sd_angles a = {.config = c, .columns = sd_arena_take(arena, (size_t)c->n_rotations, sizeof(int))};
    for (int r = 0; r < c->n_rotations; r++) {
        if (a.columns) a.columns[r] = a.n_columns;
        a.n_columns += 2 * c->rotations[r].n_freq;
    }
    if (c->query_growth > 0.0) a.n_columns++;
    a.rows = sd_arena_take(arena, (size_t)n_positions, (size_t)a.n_columns * sizeof(float));
    return a;
}

void sd_angles_extend(sd_angles* a, int end) {
    const sd_config* c = a->config;
    if (a->n_columns == 0) return;
    for (; a->n_known < end; a->n_known++) {
        float* row = a->rows + (ptrdiff_t)a->n_known * a->n_columns;
        for (int r = 0; r < c->n_rotations; r++) {
            const sd_rotation* rotation = &c->rotations[r];
            float *cosine = row + a->columns[r], *sine = cosine + rotation->n_freq;
            for (int i = 0; i < rotation->n_freq; i++) {
                double angle = a->n_known * rotation->inv_freq[i];
                cosine[i] = (float)(cos(angle) * rotation->factor);
                sine[i] = (float)(sin(angle) * rotation->factor);
            }
        }
        if (c->query_growth > 0.0) {
            int n_spans = a->n_known / c->query_span;
            row[a->n_columns - 1] = (float)(1.0 + c->query_growth * log(1.0 + n_spans));
        }
    }
}

const float* sd_angles_row(const sd_angles* a, int rotation, int position) {
    return a->rows + (ptrdiff_t)position * a->n_columns + a->columns[rotation];
}

float sd_angles_query_factor(const sd_angles* a, int position) {
    if (a->config->query_growth == 0.0) return 1.0f;
    return a->rows[(ptrdiff_t)(position + 1) * a->n_columns - 1];
}

/* Score bias of a head in a bucket of distances. */
static float bucket_bias(const sd_model* model, int layer, int head, int bucket) {
    const float* table = (const float*)(const void*)model->layers[layer].relative_bias.data;
    return table[(size_t)bucket * (size_t)model->config.layers[layer].n_head + (size_t)head];
}

static int bucket_of(const sd_config* c, int distance) {
    int low = 0, high = c->n_buckets;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (c->bucket_starts[middle] <= distance)
            low = middle;
        else
            high = middle;
    }
    return low;
}

float sd_distance_bias(const sd_model* model, int layer, int head, int distance) {
    const sd_config* c = &model->config;
    if (c->alibi != NULL) return -(c->alibi[head] * (float)distance);
    return bucket_bias(model, layer, head, bucket_of(c, distance));
}

/* Distances fall key by key. */
void sd_distance_biases_before(const sd_model* model, int layer, int head, int position, int first, int n,
                               float* bias) {
    const sd_config* c = &model->config;
    if (c->alibi != NULL) {
        float slope = c->alibi[head];
        for (int i = 0; i < n; i++) bias[i] = -(slope * (float)(position - first - i));
        return;
    }
    for (int i = 0, bucket = bucket_of(c, position - first); i < n; bucket--) {
        float value = bucket_bias(model, layer, head, bucket);
        for (; i < n && position - first - i >= c->bucket_starts[bucket]; i++) bias[i] = value;
    }
}

void sd_distance_biases_after(const sd_model* model, int layer, int head, int distance, int n, float* bias) {
    const sd_config* c = &model->config;
    for (int i = 0, bucket = bucket_of(c, distance); i < n; bucket++) {
        float value = bucket_bias(model, layer, head, c->n_buckets + bucket);
        int last = bucket + 1 == c->n_buckets;
        for (; i < n && (last || distance + i < c->bucket_starts[bucket + 1]); i++) bias[i] = value;
    }
}
