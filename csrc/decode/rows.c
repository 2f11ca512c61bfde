#include "rows.h"

/* The place of pending node k; -1 if it has none. moved [n]: the rows found so far, -1 for other places. */
static int place_of(const sd_cache* cache, int k, int n, const int32_t* moved, const int32_t* tokens,
                    const int32_t* parents) {
    int32_t token = cache->tokens[cache->n_committed + k];
    for (int place = 1; place < n; place++)
        if (moved[place] < 0 && tokens[place] == token && moved[parents[place]] == cache->parents[k])
            return place;
    return -1;
}

int sd_rows_fill(const sd_tree* tree, const sd_cache* cache, int32_t* rows, int32_t* tokens, int32_t* parents,
                 int32_t* moved) {
    int n = sd_tree_places(tree, rows), n_begun = 1;
    sd_tree_merge(tree, rows, tokens, parents);
    if (cache->n_pending < 2) return n; /* the root is first in any case */
    moved[0] = 0;
    for (int place = 1; place < n; place++) moved[place] = -1;
    for (int k = 1; k < cache->n_pending; k++) {
        int place = place_of(cache, k, n, moved, tokens, parents);
        if (place < 0) break;
        moved[place] = n_begun++;
    }
    for (int place = 1; place < n; place++)
        if (moved[place] < 0) moved[place] = n_begun++;
    for (int node = 0; node < tree->n_nodes; node++) rows[node] = moved[rows[node]];
    sd_tree_merge(tree, rows, tokens, parents);
    return n;
}
