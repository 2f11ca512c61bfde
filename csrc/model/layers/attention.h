/* Attention of rows of one layer and key/value head, for three uses: text nodes attend to committed tokens,
 * to their ancestors and to themselves; source rows to the whole source; text nodes to a whole source. */
#pragma once

#include "cache.h"
#include "kernels.h"
#include "positions.h"

/* Query rows computed together, which share each key and value read. Enough for 5 nodes of 8 query heads
 * each; the scores of more would not fit a second-level cache. */
#define SD_ATTENTION_ROWS 48

/* Number of rows to prefetch queries, keys or values ahead: the rows of a slice are far apart, and not in a
 * near cache. */
#define SD_ROWS_AHEAD 4

/* What a softmax keeps of the pairs of row and query head computed together. */
typedef struct sd_softmax_rows {
    float largest[SD_ATTENTION_ROWS];
    int n_whole[SD_ATTENTION_ROWS]; /* leading slots of the span whose numbers are their positions */
    float lanes[SD_ATTENTION_ROWS * SD_LANES];
    float factors[SD_ATTENTION_ROWS]; /* 1 / sum of the weights, if threads share the pairs */
} sd_softmax_rows;

/* One thread's scratch. */
typedef struct sd_attention_scratch {
    float* queries; /* [SD_ATTENTION_ROWS, d_head], here and below the largest of any layer */
    void* prepared; /* the same, prepared for products with keys */
    /* [n_slots / 32][rows][32] scores, then their exponentials; up to 48 rows, or fewer if a source has more
     * slots. */
    float* weights;
    ptrdiff_t n_weights; /* floats of `weights` */
    sd_softmax_rows* rows;
    float* output; /* [SD_ATTENTION_ROWS, SD_PANEL · value panels] */
    float* bias;   /* [SD_ATTENTION_ROWS + n_slots in whole panels] biases of scores; NULL: none */
} sd_attention_scratch;

/* Take scratch for up to n_slots keys of texts, and for any source of the encoder, from the arena (which may
 * be counting). */
sd_attention_scratch sd_attention_take(sd_arena* arena, const sd_config* config, int n_slots);

/* What the rows attend to. */
typedef enum sd_attended {
    SD_ATTEND_TEXT, /* rows are pending nodes of `cache` */
    SD_ATTEND_OWN,  /* rows and keys belong to one source */
    /* Text nodes attend to a source. Scores only have a factor; distance biases, soft cap and sinks belong to
     * attention to the model's own text. */
    SD_ATTEND_SOURCE,
} sd_attended;

/* Rows that attend, in one layer, with the query heads that share one key/value head. Borrowed. */
typedef struct sd_attention {
    sd_attended attended;
    const sd_model* model;
    int layer, kv_head;
    const sd_key_values* keys; /* of the layer; keys are rotated where the layer has a rotation */
    const sd_cache* cache;     /* SD_ATTEND_TEXT: the cache of the keys; else NULL */
    int first_node;            /* SD_ATTEND_TEXT: pending node of the first row; the others follow it */
    int n_keys;                /* SD_ATTEND_OWN, SD_ATTEND_SOURCE: number of keys, all attended to */
    int position;              /* SD_ATTEND_OWN: of the first row */
    int n_rows;
    const sd_prefetch_list* prefetch; /* prefetched meanwhile; NULL: nothing */
    const float* queries;             /* [n_rows, n_head · d_head] rows ldq apart, of all heads, rotated */
    ptrdiff_t ldq;
    float* out; /* [n_rows, n_head · d_head] rows ldo apart; the query heads of kv_head are written */
    ptrdiff_t ldo;
} sd_attention;

/* Memory that attention of the pending nodes of a cache reads first, in one layer and key/value head. */
sd_prefetch_list sd_attention_first_reads(const sd_cache* cache, int layer, int kv_head);

void sd_attention_run(const sd_attention* attention, const sd_attention_scratch* scratch);

/* The same in four steps, for threads that share an attention: block by block of its pairs of row and query
 * head, all in one scratch. No step splits a sum, so the bits are the same. Pieces of a step are independent.
 *
 * 1. Prepare the queries of a block. Returns the numbers of pieces of the other steps. */
typedef struct sd_attention_pieces {
    int n_key_panels, n_pairs, n_value_panels;
} sd_attention_pieces;
int sd_attention_blocks(const sd_attention* attention, const sd_attention_scratch* scratch);
sd_attention_pieces sd_attention_prepare(const sd_attention* attention, const sd_attention_scratch* scratch,
                                         int block);
/* 2. Compute the scores of panels [panel, end) of keys. */
void sd_attention_score(const sd_attention* attention, const sd_attention_scratch* scratch, int block,
                        int panel, int end);
/* 3. Turn the scores of one pair into weights. bias: as in the scratch, but the thread's own. */
void sd_attention_weigh(const sd_attention* attention, const sd_attention_scratch* scratch, int block,
                        int pair, float* bias);
/* 4. Compute one panel of the output's columns. */
void sd_attention_add_values(const sd_attention* attention, const sd_attention_scratch* scratch, int block,
                             int panel);

/* Normalize and rotate, in place, the queries and keys of one key/value head of a row at `position`. Store
 * key and value in slot `slot` of the layer's keys, if it has its own. row: queries, keys and values of all
 * heads, in the columns of weights.h; the angles of the position must be computed. */
void sd_attention_store(const sd_model* model, int layer, int kv_head, const sd_angles* angles, int position,
                        float* row, const sd_key_values* keys, int slot);

/* Attention in tile order (docs/NUMERICS.md), for prompts and sources whose products have it. */

/* Pairs of row and query head computed together: two pairs of tiles. */
#define SD_TILE_ATTENTION_ROWS 64

/* Source rows of one piece of work: they share the values, stored in pairs. */
#define SD_TILE_SOURCE_ROWS 128

/* One thread's scratch, owned by the workspace's arena, for some rows and some of their positions at a
 * time. */
typedef struct sd_attention_tiles {
    float* queries;       /* [rows, d_head], here and below of any layer */
    void* prepared;       /* the same, prepared */
    float* scores;        /* [positions / 32][rows][32] */
    void* weights;        /* rows of them, prepared */
    uint16_t* key_panel;  /* of d_head inputs, for positions that are not a panel in the cache */
    uint16_t* value_rows; /* [32][16][2] values of such positions */
    uint16_t* values;     /* [value panels][slots / 2][32][2] */
    float* output;        /* [rows, SD_PANEL · value panels] */
    float* bias;          /* [rows + positions] biases by distance; NULL: scores have none */
} sd_attention_tiles;

/* Take scratch for up to n_slots keys from the arena (which may be counting). */
sd_attention_tiles sd_attention_tiles_take(sd_arena* arena, const sd_config* config, int n_slots);

/* Like sd_attention_run, for nodes that are one or more chains, or for source rows. */
void sd_attention_run_tiles(const sd_attention* attention, const sd_attention_tiles* scratch);
