/* Block verification: a chain judged as a whole (Sun et al. 2024, Algorithm 2). */
#include <string.h>

#include "rules.h"

sd_status sd_verify_block(const sd_verify_input* q, sd_verdict* verdict) {
    const sd_tree* tree = q->tree;
    int gamma = tree->n_nodes - 1, n_kept = 0;
    double p = 1.0; /* p_i of the paper: probability that the chain so far is kept */
    /* Distribution of the token after the last kept node, in one half of the scratch. The other half is
     * written meanwhile, because the next target_after overwrites the target's row. */
    double *of_kept = q->residual, *of_node = q->residual + q->n_vocab;
    sd_distribution target = {0}, kept = {0};
    for (int i = 0; i <= gamma; i++) {
        if (i > 0) {
            /* p · T(x) / D(x), at most 1; compared before dividing, so D(x) may be arbitrarily small */
            double t = p * sd_prob(&target, tree->tokens[i]);
            double d = sd_prob(&tree->drawn_from[i], tree->tokens[i]);
            p = t < d ? t / d : (t > 0.0);
        }
        sd_status status = q->target_after(q->context, i, &target);
        if (status != SD_OK) return status;
        sd_distribution rest = target;
        double chance = p; /* h_i: probability that node i is the last one kept, if no later node is */
        if (i < gamma) {
            const sd_distribution* draft = &tree->drawn_from[i + 1];
            verdict->betas[i] = sd_overlap(&target, 1.0, draft, q->n_vocab);
            double left = sd_residual(&target, p, draft, q->n_vocab, of_node, &rest);
            chance = left + (1.0 - p) > 0.0 ? left / (left + (1.0 - p)) : 1.0;
        }
        if (i > 0 && !(q->uniforms[i] < chance)) continue;
        n_kept = i;
        kept = rest;
        if (rest.point >= 0) continue; /* has no weights */
        if (rest.weights != of_node) memcpy(of_node, rest.weights, (size_t)q->n_vocab * sizeof *of_node);
        kept.weights = of_node;
        of_node = of_kept;
        of_kept = kept.weights;
    }
    verdict->n_path = n_kept;
    for (int i = 0; i < n_kept; i++) verdict->path[i] = i + 1;
    verdict->n_betas = n_kept < gamma ? n_kept + 1 : gamma;
    verdict->token = sd_sample(&kept, q->n_vocab, q->uniforms[tree->n_nodes]);
    return SD_OK;
}
