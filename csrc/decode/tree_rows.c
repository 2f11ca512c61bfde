#include "tree_rows.h"

/* The row of pending node k before rows are moved; -1 if it has none. moved [n]: where rows found so far go,
 * -1 for the others. */
static int row_of(const sd_cache* cache, int k, int n, const int32_t* moved, const int32_t* tokens,
                  const int32_t* parents) {
    int32_t token = cache->tokens[cache->n_committed + k];
    for (int row = 1; row < n; row++)
        if (moved[row] < 0 && tokens[row] == token && moved[parents[row]] == cache->parents[k]) return row;
    return -1;
}

int sd_tree_rows_fill(const sd_tree* tree, const sd_cache* cache, int32_t* rows, int32_t* tokens,
                      int32_t* parents, int32_t* moved) {
    int n = sd_tree_number_rows(tree, rows), n_begun = 1;
    sd_tree_merge(tree, rows, tokens, parents);
    if (cache->n_pending < 2) return n; /* the root is first in any case */
    moved[0] = 0;
    for (int row = 1; row < n; row++) moved[row] = -1;
    for (int k = 1; k < cache->n_pending; k++) {
        int row = row_of(cache, k, n, moved, tokens, parents);
        if (row < 0) break;
        moved[row] = n_begun++;
    }
    for (int row = 1; row < n; row++)
        if (moved[row] < 0) moved[row] = n_begun++;
    for (int node = 0; node < tree->n_nodes; node++) rows[node] = moved[rows[node]];
    sd_tree_merge(tree, rows, tokens, parents);
    return n;
}
