#include "proposal.h"

#include "drafter_policy.h"

int sd_count_drafters(uint64_t drafters, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += sd_may_draft(drafters, i);
    return count;
}

int sd_proposal_has_capacity(const sd_proposal* p, int node) {
    return p->failure->status == SD_OK && p->tree.n_nodes <= p->budget && p->depths[node] < p->depth;
}

/* Returns 0 where nothing may follow. */
static int find_mask(const sd_proposal* p, int node, sd_mask* mask) {
    return sd_constraint_mask(p->constraint, p->text, p->n_text, &p->tree, node, 1, mask);
}

int sd_proposal_goes_on(const sd_proposal* p, int node) {
    sd_mask mask;
    return p->constraint == NULL || find_mask(p, node, &mask);
}

sd_mask sd_proposal_mask(const sd_proposal* p, int node) {
    sd_mask mask = {0};
    if (p->constraint != NULL) find_mask(p, node, &mask);
    return mask;
}

int sd_proposal_allows(const sd_proposal* p, int node, int32_t token) {
    sd_mask mask;
    return p->constraint == NULL || (find_mask(p, node, &mask) && sd_mask_allows(&mask, token));
}

int sd_proposal_may_draft(const sd_proposal* p, int node) {
    if (!sd_proposal_has_capacity(p, node)) return 0;
    int pays = p->policy == NULL || sd_drafter_policy_pays(p->policy, p->path_prob[node], p->depths[node],
                                                           p->tree.n_nodes - 1, -1.0);
    return pays && sd_proposal_goes_on(p, node);
}

int sd_proposal_may_add(const sd_proposal* p, int node) {
    if (!sd_proposal_has_capacity(p, node)) return 0;
    if (p->policy == NULL) return 1;
    int depth = p->depths[node];
    double chance = sd_drafter_policy_chance(p->policy, depth + 1);
    return sd_drafter_policy_pays(p->policy, p->path_prob[node], depth, p->tree.n_nodes - 1, chance);
}

int sd_proposal_worth_verifying(sd_proposal* p, int node, double confidence) {
    if (p->policy == NULL) return 1;
    int depth = p->depths[node] + 1;
    double known = sd_acceptance_chance(&p->policy->acceptance, confidence, depth);
    if (sd_drafter_policy_pays(p->policy, p->path_prob[node], depth - 1, p->tree.n_nodes - 1, known))
        return 1;
    p->rejected_at = depth;
    p->rejected_confidence = confidence;
    return 0;
}

int sd_proposal_add(sd_proposal* p, int parent, int32_t token, double confidence) {
    int node = p->tree.n_nodes++;
    p->tree.tokens[node] = token;
    p->tree.parents[node] = parent;
    p->depths[node] = p->depths[parent] + 1;
    if (p->origins != NULL) p->origins[node] = p->origin;
    if (p->policy != NULL) {
        p->confidences[node] = confidence;
        confidence = sd_acceptance_chance(&p->policy->acceptance, confidence, p->depths[node]);
    }
    p->path_prob[node] = p->path_prob[parent] * confidence;
    return node;
}

int sd_proposal_add_point(sd_proposal* p, int parent, int32_t token, double confidence) {
    p->tree.drawn_from[p->tree.n_nodes].point = token;
    return sd_proposal_add(p, parent, token, confidence);
}

/* Draft tokens of all proposals together if each has at most `most`. */
static int count_draft_tokens(const sd_proposal* proposals, int n, int most) {
    int n_draft_tokens = 0;
    for (int i = 0; i < n; i++) n_draft_tokens += proposals[i].budget < most ? proposals[i].budget : most;
    return n_draft_tokens;
}

void sd_proposals_share(sd_proposal* proposals, int n, int n_rows, int* turn) {
    int n_free = n_rows - n, most = 0, n_wanting = 0, at = 0;
    if (count_draft_tokens(proposals, n, SD_MAX_GAMMA) <= n_free) return;
    while (count_draft_tokens(proposals, n, most + 1) <= n_free) most++;
    int left = n_free - count_draft_tokens(proposals, n, most);
    for (int i = 0; i < n; i++) n_wanting += proposals[i].budget > most;
    *turn %= n_wanting;
    for (int i = 0; i < n; i++) {
        if (proposals[i].budget <= most) continue;
        proposals[i].budget = most + ((at++ - *turn + n_wanting) % n_wanting < left);
    }
    *turn += left;
}
