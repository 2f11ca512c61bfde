/* The shape of the trees that a draft proposes: which node has how many children.
 *
 * Nodes are numbered level by level, and within a level in the order of their parents. A round that may guess
 * less takes the first ones: the levels from the top, and of the last level the children of the first. */
#ifndef SD_SHAPE_H
#define SD_SHAPE_H

#include "child_sampler.h"
#include "memory.h"

typedef struct sd_shape {
    int n_nodes;               /* without the root */
    int32_t* n_children;       /* [n_nodes + 1] */
    int32_t* first_child;      /* [n_nodes + 1] where there are children, their first */
    int widest, most_children; /* most nodes of a level that have children; most children of a node */
    int n_levels;              /* of nodes, without the root's */
    sd_choosing how;
} sd_shape;

/* What a shape is made of. */
typedef struct sd_shape_options {
    int n_chains;           /* this many chains, as long as gamma allows; 0: the tree below */
    const int32_t* parents; /* [n_nodes] of nodes 1, 2, …: each earlier than the node, never descending;
                             * borrowed while the shape is made */
    int n_nodes;
    sd_choosing how;
} sd_shape_options;

/* At least one chain, or parents in order? */
sd_status sd_shape_check(const sd_shape_options* options);

/* The first gamma nodes of a shape; its arrays are pieces of the arena. Counted without the arrays too:
 * widest, most_children and n_levels hold while the arena is counting. */
sd_shape sd_shape_take(sd_arena* arena, const sd_shape_options* options, int gamma);

#endif
