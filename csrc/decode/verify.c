#include "verify.h"

/* First child of `node` after node `after`; n_nodes if there is none. */
static int next_child(const sd_tree* tree, int node, int after) {
    int child = after + 1;
    while (child < tree->n_nodes && tree->parents[child] != node) child++;
    return child;
}

/* Accepted with probability min(1, T(x) / D(x)). The comparison is strict, so a token without
 * target mass is never accepted, and it is a product, so that D(x) may be as small as it likes. */
static int accepts(const sd_distribution* target, const sd_distribution* draft, int32_t token,
                   double uniform) {
    return uniform * sd_prob(draft, token) < sd_prob(target, token);
}

void sd_verify_rejection(const sd_tree* tree, sd_target_after target_after, void* context, int n_vocab,
                         const double* uniforms, double* residual, sd_verdict* verdict) {
    verdict->n_path = 0;
    verdict->n_betas = 0;
    int node = 0;
    for (;;) {
        sd_distribution left = target_after(context, node); /* T: what is left of the target at this node */
        int child = next_child(tree, node, node);
        if (child < tree->n_nodes)
            verdict->betas[verdict->n_betas++] = sd_overlap(&left, &tree->drawn_from[child], n_vocab);
        for (; child < tree->n_nodes; child = next_child(tree, node, child)) {
            const sd_distribution* draft = &tree->drawn_from[child];
            if (accepts(&left, draft, tree->tokens[child], uniforms[child])) break;
            /* neither the caller's target nor the residual it is taken from is written over */
            double* rest = left.weights == residual ? residual + n_vocab : residual;
            left = sd_residual(&left, draft, n_vocab, rest);
        }
        if (child == tree->n_nodes) {
            verdict->token = sd_sample(&left, n_vocab, uniforms[tree->n_nodes]);
            return;
        }
        verdict->path[verdict->n_path++] = child;
        node = child;
    }
}
