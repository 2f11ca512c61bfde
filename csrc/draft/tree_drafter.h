/* Draft trees of a predictor, such as a smaller model: of a given shape, or growing by its confidence.
 *
 * Nodes of a shape are numbered level by level, and within a level in the order of their parents. A smaller
 * round takes the first ones: the levels from the top, and of the last level the children of the first. A
 * growing tree has point masses: the most probable tokens, or under the coupled rule the first of the
 * race. */
#pragma once

#include "memory.h"
#include "predictor.h"
#include "token_drafter.h"

typedef struct sd_shape {
    int n_nodes;               /* without the root */
    int32_t* n_children;       /* [n_nodes + 1] */
    int32_t* first_child;      /* [n_nodes + 1] first child, where there are children */
    int widest, most_children; /* most nodes with children in a level; most children of a node */
    int n_levels;              /* levels, without the root's */
    sd_choosing how;
} sd_shape;

/* Description of a shape. */
typedef struct sd_shape_options {
    int n_chains;           /* this many chains, as long as gamma allows; 0: the tree below */
    const int32_t* parents; /* [n_nodes] of nodes 1, 2, …: each earlier than the node, never descending;
                             * borrowed while the shape is made */
    int n_nodes;
    sd_choosing how;
} sd_shape_options;

/* Does it have at least one chain, or parents in order? */
sd_status sd_shape_check(const sd_shape_options* options);

/* Take the first gamma nodes of a shape, with arrays from the arena. widest, most_children and n_levels are
 * also set while the arena is counting. */
sd_shape sd_shape_take(sd_arena* arena, const sd_shape_options* options, int gamma);

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                 const sd_shape_options* shape, sd_drafter** drafter);

typedef struct sd_dynamic_tree_options {
    int width;        /* nodes of one sequence read at once, and most children of each */
    int steps;        /* most forward passes of the draft in a round */
    double sharpness; /* > 0, see token_drafter.h */
} sd_dynamic_tree_options;

/* Create a drafter; gamma of `drafting` is the number of nodes. Owned by the caller. */
sd_status sd_dynamic_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                         const sd_dynamic_tree_options* dynamic, sd_drafter** drafter);
