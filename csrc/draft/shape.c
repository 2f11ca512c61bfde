#include "shape.h"

sd_status sd_shape_check(const sd_shape_options* o) {
    if (o->n_chains < 0 || (o->n_chains == 0 && o->n_nodes < 1))
        return sd_fail(SD_ERR_VALUE, "the shape has %d chains and %d nodes, expected at least one of either",
                       o->n_chains, o->n_nodes);
    for (int i = 0; o->n_chains == 0 && i < o->n_nodes; i++) {
        int low = i == 0 ? 0 : o->parents[i - 1];
        if (o->parents[i] < low || o->parents[i] > i)
            return sd_fail(SD_ERR_VALUE, "the parent of node %d is %d, expected %d to %d", i + 1,
                           (int)o->parents[i], low, i);
    }
    return SD_OK;
}

static int32_t parent_of(const sd_shape_options* o, int node) {
    if (o->n_chains == 0) return o->parents[node - 1];
    return node <= o->n_chains ? 0 : node - o->n_chains;
}

sd_shape sd_shape_take(sd_arena* arena, const sd_shape_options* o, int gamma) {
    sd_shape s = {.n_nodes = o->n_chains > 0 || o->n_nodes > gamma ? gamma : o->n_nodes, .how = o->how};
    s.n_children = sd_arena_take(arena, (size_t)s.n_nodes + 1, sizeof *s.n_children);
    s.first_child = sd_arena_take(arena, (size_t)s.n_nodes + 1, sizeof *s.first_child);
    /* a level ends where a node's parent is the first node of its own level or a later one */
    int level = 1, n_siblings = 0, n_parents = 0, last = -1;
    s.n_levels = s.n_nodes > 0;
    for (int node = 1; node <= s.n_nodes; node++) {
        int32_t parent = parent_of(o, node);
        if (parent >= level) level = node, n_parents = 0, s.n_levels++;
        if (parent != last) n_siblings = 0, n_parents++;
        last = parent;
        n_siblings++;
        if (n_siblings > s.most_children) s.most_children = n_siblings;
        if (n_parents > s.widest) s.widest = n_parents;
        if (arena->base == NULL) continue;
        if (n_siblings == 1) s.first_child[parent] = node;
        s.n_children[parent] = n_siblings;
    }
    return s;
}
