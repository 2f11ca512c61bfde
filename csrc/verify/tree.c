#include "tree.h"

int sd_tree_places(const sd_tree* t, int32_t* places) {
    int n_places = 1;
    places[0] = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        int32_t parent = places[t->parents[i]];
        int duplicate = i - 1;
        while (duplicate > 0 && (t->tokens[duplicate] != t->tokens[i] || places[t->parents[duplicate]] != parent)) duplicate--;
        places[i] = duplicate > 0 ? places[duplicate] : n_places++;
    }
    return n_places;
}

void sd_tree_merge(const sd_tree* t, const int32_t* places, int32_t* tokens, int32_t* parents) {
    for (int node = t->n_nodes - 1; node >= 0; node--) { /* the first of a place comes last and stays */
        tokens[places[node]] = t->tokens[node];
        parents[places[node]] = node == 0 ? -1 : places[t->parents[node]];
    }
}
