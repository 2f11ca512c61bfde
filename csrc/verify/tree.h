/* The draft tree of a round: draft tokens, and the distributions they were drawn from.
 *
 * Node 0, the root, is the last committed token. Every other node has a token, an earlier node as its parent,
 * and the distribution its token was drawn from, given all nodes before it: siblings may be independent
 * draws, draws without replacement, or point masses (chosen tokens). In a chain of γ draft tokens node i + 1
 * is the child of node i.
 *
 * Nodes with the same tokens from the root are one *row*: the target evaluates them once, so chains that
 * share a prefix cost what their prefix tree costs. Each node still counts as its own draw (verify.h). */
#pragma once

#include "distribution.h"

/* Maximum number of draft tokens in a round. */
#define SD_MAX_GAMMA 1024

static inline sd_status sd_gamma_check(int gamma) {
    if (gamma >= 0 && gamma <= SD_MAX_GAMMA) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "gamma is %d, expected 0 to %d", gamma, SD_MAX_GAMMA);
}

/* What is known about a drafter's trees, from the most special to the most general; it decides which rules
 * can judge them (sd_rule_check_trees). */
typedef enum sd_tree_type {
    SD_TREE_CHAINS,  /* every node is the child of the one before it */
    SD_TREE_DRAWS,   /* siblings are independent draws of one distribution */
    SD_TREE_ANY,     /* any tree */
    SD_TREE_UNKNOWN, /* known only once the tree exists */
} sd_tree_type;

typedef struct sd_tree {
    int n_nodes;
    int32_t* tokens;             /* [n_nodes] */
    int32_t* parents;            /* [n_nodes]; parents[0] is -1 */
    sd_distribution* drawn_from; /* [n_nodes]; entry 0 is unused */
} sd_tree;

/* Number the rows in the order of their first nodes: node_rows [n_nodes], out, borrowed; the root's is 0.
 * Returns the number of rows. */
int sd_tree_number_rows(const sd_tree* tree, int32_t* node_rows);

/* Write the rows as nodes of a forward pass: tokens and parents [number of rows], out; the root's parent is
 * -1. node_rows [n_nodes] as above. All borrowed. */
void sd_tree_merge(const sd_tree* tree, const int32_t* node_rows, int32_t* tokens, int32_t* parents);
