/* Verification: which guesses stand, and what the target says next. A pure function. */
#ifndef SD_VERIFY_H
#define SD_VERIFY_H

#include "tree.h"

typedef struct sd_verdict {
    int n_path;    /* accepted nodes, the root not counted */
    int32_t* path; /* [n_nodes] room; the accepted nodes from the root down */
    int32_t token; /* the token after the path: a correction, or a bonus when a leaf was reached */
    int n_betas;   /* positions at which guesses were tested */
    double* betas; /* [n_nodes] room; Σ min(target, draft) at each of them */
} sd_verdict;

/* The target's distribution after a node. It is asked for when the node is reached, in order down the
 * path, and is read until the next is asked for. */
typedef sd_distribution (*sd_target_after)(void* context, int node);

/* The rejection rule (Algorithm 1; on siblings the iterative form of SpecInfer).
 *
 * From the root down: the children of a node are tested in order, child x drawn from D against
 * what is left of the target, T: accepted if uniforms[x] < T(x) / D(x), else
 * T ← norm(max(0, T − D)). The first accepted child is the next node. If none is accepted the
 * last T gives the token; a leaf gives a token of its own target distribution.
 *
 * uniforms [n_nodes + 1] in [0, 1): one for each node (entry 0 unused), the last one draws the token. residual [2 · n_vocab] scratch. */
void sd_verify_rejection(const sd_tree* tree, sd_target_after target_after, void* context, int n_vocab,
                         const double* uniforms, double* residual, sd_verdict* verdict);

#endif
