/* The rows that the target is run on for a tree of guesses (tree.h), in the order in which it is run.
 *
 * That is the order of the tree's nodes, except that rows that a drafter has begun in the target's cache come
 * first, in the order of the cache, so that the target goes on from there (sd_forward_finish). */
#ifndef SD_TREE_ROWS_H
#define SD_TREE_ROWS_H

#include "cache.h"
#include "tree.h"

/* Fill rows [n_nodes], the row of each node, the root's 0; and of each row tokens [n_rows] and parents
 * [n_rows], -1 for the root's. scratch [n_nodes]. All borrowed. Returns n_rows. */
int sd_tree_rows_fill(const sd_tree* tree, const sd_cache* cache, int32_t* rows, int32_t* tokens,
                      int32_t* parents, int32_t* scratch);

#endif
