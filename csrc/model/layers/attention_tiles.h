/* Attention in the order of tiles (docs/NUMERICS.md), of prompts and sources whose products have it. */
#ifndef SD_ATTENTION_TILES_H
#define SD_ATTENTION_TILES_H

#include "attention.h"

/* Pairs of row and query head that are computed together: two pairs of tiles. */
#define SD_TILE_ATTENTION_ROWS 64

/* Rows of a source that one piece of work attends with: they share the values, put in pairs. */
#define SD_TILE_SOURCE_ROWS 128

/* One thread's scratch, owned by the workspace's arena: some rows, and some positions that they attend to,
 * are taken at a time. */
typedef struct sd_attention_tiles {
    float* queries;       /* [rows, d_head], here and below of any layer */
    void* prepared;       /* the same, prepared */
    float* scores;        /* [positions / 32][rows][32] */
    void* weights;        /* rows of them, prepared */
    uint16_t* key_panel;  /* of d_head inputs, of positions that lie as no panel in the cache */
    uint16_t* value_rows; /* [32][32] values of such positions */
    uint16_t* values;     /* [value panels][slots / 2][32][2] */
    float* output;        /* [rows, SD_PANEL · value panels] */
    float* bias;          /* [rows + positions] biases by distance; NULL where scores have none */
} sd_attention_tiles;

/* Take the scratch for up to n_slots keys from the arena (which may be counting). */
sd_attention_tiles sd_attention_tiles_take(sd_arena* arena, const sd_config* config, int n_slots);

/* As sd_attention_run, of nodes that are a chain or several, or of rows of a source. */
void sd_attention_run_tiles(const sd_attention* attention, const sd_attention_tiles* scratch);

#endif
