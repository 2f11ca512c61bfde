/* The shape of speculation: a tree of guessed tokens.
 *
 * Node 0 is the last committed token. Every other node has a token, an earlier node as parent and
 * the distribution its token was drawn from; siblings are independent draws. A chain of γ guesses
 * is the tree in which node i + 1 is the child of node i. */
#ifndef SD_TREE_H
#define SD_TREE_H

#include "distribution.h"

typedef struct sd_tree {
    int n_nodes;
    int32_t* tokens;             /* [n_nodes] */
    int32_t* parents;            /* [n_nodes]; parents[0] is -1 */
    sd_distribution* drawn_from; /* [n_nodes]; entry 0 is unused */
} sd_tree;

#endif
