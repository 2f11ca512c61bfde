/* The shape of speculation: a tree of guessed tokens.
 *
 * Node 0 is the last committed token. Every other node has a token, an earlier node as parent and the
 * distribution its token was drawn from, given all nodes before it: siblings may be independent draws, draws
 * without replacement, or point masses (tokens that were chosen, not drawn). A chain of γ guesses is the tree
 * in which node i + 1 is the child of node i.
 *
 * Nodes with the same tokens from the root are one *row*: the target is run once for all of them, so
 * several chains that share their beginnings cost what their prefix tree costs. Each node still counts
 * as a draw of its own (verify.h). */
#pragma once

#include "distribution.h"

/* The most guesses a round may ask for. */
#define SD_MAX_GAMMA 1024

static inline sd_status sd_gamma_check(int gamma) {
    if (gamma >= 0 && gamma <= SD_MAX_GAMMA) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "gamma is %d, expected 0 to %d", gamma, SD_MAX_GAMMA);
}

/* What is known of the trees of a drafting method, from the least to the most general: this decides which
 * rules can judge them (sd_rule_check_trees). */
typedef enum sd_tree_type {
    SD_TREE_CHAINS,  /* every node is the child of the one before it */
    SD_TREE_DRAWS,   /* the guesses for one token are independent draws of one distribution */
    SD_TREE_ANY,     /* any tree */
    SD_TREE_UNKNOWN, /* known only when the tree is there */
} sd_tree_type;

typedef struct sd_tree {
    int n_nodes;
    int32_t* tokens;             /* [n_nodes] */
    int32_t* parents;            /* [n_nodes]; parents[0] is -1 */
    sd_distribution* drawn_from; /* [n_nodes]; entry 0 is unused */
} sd_tree;

/* Number the rows in the order of their first nodes: node_rows [n_nodes], out, the row of each node, 0 for
 * the root; borrowed. Returns the number of rows. */
int sd_tree_number_rows(const sd_tree* tree, int32_t* node_rows);

/* The rows as nodes of a forward: tokens and parents [number of rows], out, the root's parent -1, from
 * node_rows [n_nodes]. All borrowed. */
void sd_tree_merge(const sd_tree* tree, const int32_t* node_rows, int32_t* tokens, int32_t* parents);
