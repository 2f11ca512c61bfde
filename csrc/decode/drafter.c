#include "drafter.h"

int sd_proposal_wants(const sd_proposal* p, int node) {
    return p->tree.n_nodes <= p->budget && p->depths[node] < p->depth;
}

int sd_proposal_add(sd_proposal* p, int parent, int32_t token, double confidence) {
    int node = p->tree.n_nodes++;
    p->tree.tokens[node] = token;
    p->tree.parents[node] = parent;
    p->depths[node] = p->depths[parent] + 1;
    p->reach[node] = p->reach[parent] * confidence;
    return node;
}
