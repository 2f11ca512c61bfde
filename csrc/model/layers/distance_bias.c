#include "distance_bias.h"

/* The bias of the scores of a head in a bucket of distances. */
static float bucket_bias(const sd_model* model, int layer, int head, int bucket) {
    const float* table = (const float*)(const void*)model->layers[layer].relative_bias.data;
    return table[(size_t)bucket * (size_t)model->config.layers[layer].n_head + (size_t)head];
}

/* The last bucket that begins at or below a distance. */
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
