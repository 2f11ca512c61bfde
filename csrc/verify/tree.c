#include "tree.h"

int sd_tree_number_rows(const sd_tree* t, int32_t* node_rows) {
    int n_rows = 1;
    node_rows[0] = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        int32_t parent = node_rows[t->parents[i]];
        int duplicate = i - 1;
        while (duplicate > 0 &&
               (t->tokens[duplicate] != t->tokens[i] || node_rows[t->parents[duplicate]] != parent))
            duplicate--;
        node_rows[i] = duplicate > 0 ? node_rows[duplicate] : n_rows++;
    }
    return n_rows;
}

void sd_tree_merge(const sd_tree* t, const int32_t* node_rows, int32_t* tokens, int32_t* parents) {
    for (int node = t->n_nodes - 1; node >= 0; node--) { /* the first of a row comes last and stays */
        tokens[node_rows[node]] = t->tokens[node];
        parents[node_rows[node]] = node == 0 ? -1 : node_rows[t->parents[node]];
    }
}
