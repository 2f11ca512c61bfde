#include "state_walk.h"

#include <assert.h>

sd_walk sd_walk_take(sd_arena* arena, int n_tree) {
    sd_walk walk = {0};
    size_t n = (size_t)n_tree;
    walk.steps = sd_arena_take(arena, 2 * n, sizeof *walk.steps);
    walk.updates = sd_arena_take(arena, n, sizeof *walk.updates);
    walk.n_below = sd_arena_take(arena, n, sizeof *walk.n_below);
    return walk;
}

int sd_walk_most_tiles(int n) {
    int most = 1;
    for (; n > 1; n /= 2) most++;
    return most;
}

/* The pending nodes of a walk. */
typedef struct tree {
    const int32_t* parents;
    int first, first_new, n;
} tree;

/* The children of a node on the way to new nodes. */
typedef struct children {
    int n_rows, first_row; /* those that are new */
    int n_inner, heaviest; /* those with new nodes below them, and the one with the most */
} children;

static int below(const sd_walk* w, const tree* t, int node) { return w->n_below[node - t->first]; }
static int is_inner(const sd_walk* w, const tree* t, int node) {
    return below(w, t, node) > (node >= t->first_new);
}

/* Is `child` a child of `node`? -1 is the end of the text. */
static int is_child(const tree* t, int child, int node) {
    return t->parents[child] == node || (node < 0 && t->parents[child] < t->first);
}

static children children_of(const sd_walk* w, const tree* t, int node) {
    children found = {0, -1, 0, -1};
    for (int i = node < 0 ? t->first : node + 1; i < t->n; i++) {
        if (!is_child(t, i, node) || below(w, t, i) == 0) continue;
        if (i >= t->first_new && found.n_rows++ == 0) found.first_row = i;
        if (!is_inner(w, t, i)) continue;
        if (found.n_inner++ == 0 || below(w, t, i) > below(w, t, found.heaviest)) found.heaviest = i;
    }
    return found;
}

static void add_step(sd_walk* w, int from, int to, int first_update, int node) {
    w->steps[w->n_steps++] = (sd_walk_step){from, to, first_update, w->n_updates - first_update, node};
}

/* Walk below `node`: the state after it is `tile` with the updates from first_update on. Tiles from n_used on
 * are free; those before hold states that are still read. */
static void visit(sd_walk* w, const tree* t, int node, int tile, int first_update, int n_used) {
    int own = 0; /* the tile is this call's and may be overwritten */
    for (;;) {
        children below_node = children_of(w, t, node);
        int n_updates = w->n_updates - first_update;
        if (below_node.n_inner == 0 && below_node.n_rows == 0) return;
        if (below_node.n_rows > 0 || below_node.n_inner > 1 || n_updates == SD_MOST_UPDATES) {
            int to = SD_TILE_NONE;
            if (n_updates > 0 && (below_node.n_inner > 0 || below_node.n_rows > 1)) {
                to = own ? tile : n_used++;
                own = 1;
            }
            if (n_updates > 0 || below_node.n_rows > 0)
                add_step(w, tile, to, first_update, below_node.first_row);
            if (to != SD_TILE_NONE) tile = to;
            first_update = w->n_updates;
            for (int i = below_node.first_row + 1; below_node.n_rows > 1 && i < t->n; i++)
                if (i >= t->first_new && is_child(t, i, node))
                    add_step(w, tile, SD_TILE_NONE, first_update, i);
            for (int i = node < 0 ? t->first : node + 1; below_node.n_inner > 1 && i < t->n; i++) {
                if (i == below_node.heaviest || !is_child(t, i, node) || !is_inner(w, t, i)) continue;
                w->updates[w->n_updates++] = i;
                visit(w, t, i, tile, w->n_updates - 1, n_used);
            }
            first_update = w->n_updates;
        }
        if (n_used > w->n_tiles) w->n_tiles = n_used;
        if (below_node.n_inner == 0) return;
        node = below_node.heaviest;
        w->updates[w->n_updates++] = node;
    }
}

void sd_walk_plan(sd_walk* w, const int32_t* parents, int first, int first_new, int n) {
    const tree t = {parents, first, first_new > first ? first_new : first, n};
    w->n_steps = w->n_updates = w->n_tiles = 0;
    for (int i = first; i < n; i++) w->n_below[i - first] = i >= t.first_new;
    for (int i = n - 1; i >= first; i--)
        if (parents[i] >= first) w->n_below[parents[i] - first] += w->n_below[i - first];
    visit(w, &t, -1, SD_TILE_TEXT, 0, 0);
    assert(w->n_tiles <= sd_walk_most_tiles(n - first));
}
