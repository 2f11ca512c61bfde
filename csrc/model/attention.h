/* Attention of the new nodes of one sequence and one key/value head. */
#ifndef SD_ATTENTION_H
#define SD_ATTENTION_H

#include "angles.h"
#include "cache.h"

/* Query rows computed together: they share each key and value that is read. Enough for 5 nodes of
 * 8 query heads each; the scores of more would not fit a second-level cache. */
#define SD_ATTENTION_ROWS 48

/* One thread's scratch. */
typedef struct sd_attention_scratch {
    float* queries; /* [SD_ATTENTION_ROWS, d_head] */
    void* prepared; /* the same, prepared for the products with keys */
    float* weights; /* [n_slots / 32][rows][32] scores, then their exponentials; up to 48 rows */
    float* output;  /* [SD_ATTENTION_ROWS, SD_PANEL · value panels] */
    float* bias;    /* [n_slots in whole panels] biases of one row's scores; NULL where scores have none */
} sd_attention_scratch;

/* Take the scratch for caches of up to n_slots from the arena (which may be counting). */
sd_attention_scratch sd_attention_take(sd_arena* arena, const sd_config* config, int n_slots);

/* Norm, rotate and store keys and values of the last n_new pending nodes of `cache`, then attend. qkv
 * [n_new, ...] rows ldq apart, queries, keys and values of all heads from the columns that weights.h says,
 * rotated in place by `angles`, which knows their positions; out [n_new, n_head · d_head] rows ldo apart;
 * only the query heads of kv_head are touched. */
void sd_attention(const sd_model* model, const sd_cache* cache, int layer, int kv_head, int n_new,
                  const sd_angles* angles, float* qkv, ptrdiff_t ldq, float* out, ptrdiff_t ldo,
                  const sd_attention_scratch* scratch);

#endif
