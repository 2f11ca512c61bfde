/* The order in which the rows of a tree read a recurrent state.
 *
 * A row reads the state after its parent. States of pending nodes exist only while their descendants are
 * computed. SD_TILE_TEXT is the tile after the committed text; tiles 0, 1, … are those of nodes on the
 * way. */
#pragma once

#include <stdint.h>

#include "memory.h"

#define SD_TILE_TEXT (-1)
#define SD_TILE_NONE (-2)

/* Most updates of a step. */
#define SD_MOST_UPDATES 16

/* One step: read a tile, apply the updates of some nodes, store the result, and compute the row of a node. */
typedef struct sd_walk_step {
    int from, to;                /* tiles; to SD_TILE_NONE: the result is not stored */
    int first_update, n_updates; /* in `updates` of the walk */
    int node;                    /* -1: no row */
} sd_walk_step;

typedef struct sd_walk {
    int n_steps, n_updates, n_tiles;
    sd_walk_step* steps; /* [2 · n_tree] */
    int32_t* updates;    /* [n_tree] nodes */
    int32_t* n_below;    /* [n_tree] new nodes below a pending node, itself included */
} sd_walk;

/* Take memory for walks through trees of up to n_tree nodes from the arena (which may be counting). */
sd_walk sd_walk_take(sd_arena* arena, int n_tree);

/* Most tiles of a walk through n nodes. */
int sd_walk_most_tiles(int n);

/* Plan the walk through pending nodes [first, n), of which those from first_new on have rows. A parent [n]
 * before `first` is the end of the text. Of several branches below a node the one with the most rows comes
 * last and overwrites its tile, so the tiles are at most sd_walk_most_tiles(n - first). */
void sd_walk_plan(sd_walk* walk, const int32_t* parents, int first, int first_new, int n);
