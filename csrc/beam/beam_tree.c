#include "beam_tree.h"

#include <string.h>

static void lay_out(sd_beam_tree* t) {
    size_t n = (size_t)t->max_nodes;
    t->tokens = sd_arena_take(&t->arena, n, sizeof *t->tokens);
    t->parents = sd_arena_take(&t->arena, n, sizeof *t->parents);
    t->old_index = sd_arena_take(&t->arena, n, sizeof *t->old_index);
    t->new_index = sd_arena_take(&t->arena, n, sizeof *t->new_index);
}

sd_status sd_beam_tree_create(sd_beam_tree* t, const sd_model* target, const sd_model* draft, int n_committed,
                              int max_nodes) {
    *t = (sd_beam_tree){.max_nodes = max_nodes, .drafting = draft != NULL};
    sd_status status = SD_ARENA_BUILD(&t->arena, lay_out(t));
    if (status != SD_OK) return status;
    status = sd_cache_create(&t->target, target, n_committed + max_nodes, max_nodes, 0, NULL);
    if (status == SD_OK && draft != NULL)
        status = sd_cache_create(&t->draft, draft, n_committed + max_nodes, max_nodes, 0, NULL);
    return status;
}

void sd_beam_tree_free(sd_beam_tree* t) {
    sd_cache_free(&t->target);
    sd_cache_free(&t->draft);
    sd_arena_free(&t->arena);
}

int sd_beam_tree_add(sd_beam_tree* t, int32_t token, int parent) {
    t->tokens[t->n_nodes] = token;
    t->parents[t->n_nodes] = parent;
    return t->n_nodes++;
}

int sd_beam_tree_find(const sd_beam_tree* t, int first, int32_t token, int parent) {
    for (int i = first; i < t->n_nodes; i++)
        if (t->parents[i] == parent && t->tokens[i] == token) return i;
    return -1;
}

/* List the nodes to keep with their new indices; returns their number. */
static int choose(sd_beam_tree* t, const sd_beam* beams, int n) {
    for (int i = 0; i < t->n_nodes; i++) t->new_index[i] = -1;
    for (int i = 0; i < n; i++) {
        if (beams[i].ended) continue;
        for (int a = beams[i].parent_node; a >= 0 && t->new_index[a] < 0; a = t->parents[a])
            t->new_index[a] = 0;
    }
    int n_kept = 0;
    for (int i = 0; i < t->n_nodes; i++) {
        if (t->new_index[i] < 0) continue;
        t->new_index[i] = n_kept;
        t->old_index[n_kept++] = i;
    }
    return n_kept;
}

/* Length of the stem: nodes 0, 1, … that are a chain from which all other nodes and hypotheses descend. */
static int stem(const sd_beam_tree* t, const sd_beam* beams, int n) {
    int length = 0;
    while (length < t->n_nodes && t->parents[length] == length - 1) length++;
    for (int i = length; i < t->n_nodes; i++)
        if (t->parents[i] + 1 < length) length = t->parents[i] + 1;
    for (int i = 0; i < n; i++)
        if (!beams[i].ended && beams[i].parent_node + 1 < length) length = beams[i].parent_node + 1;
    return length;
}

sd_status sd_beam_tree_prune(sd_beam_tree* t, sd_beam* beams, int n) {
    int n_kept = choose(t, beams, n), n_read = 0;
    while (n_read < n_kept && t->old_index[n_read] < t->n_draft_read) n_read++;
    sd_status status = sd_cache_prune(&t->target, t->old_index, n_kept);
    if (status == SD_OK && t->drafting) status = sd_cache_prune(&t->draft, t->old_index, n_read);
    if (status != SD_OK) return status;
    for (int i = 0; i < n_kept; i++) {
        int parent = t->parents[t->old_index[i]];
        t->tokens[i] = t->tokens[t->old_index[i]];
        t->parents[i] = parent < 0 ? -1 : t->new_index[parent];
    }
    for (int i = 0; i < n; i++)
        if (!beams[i].ended && beams[i].parent_node >= 0)
            beams[i].parent_node = t->new_index[beams[i].parent_node];
    t->n_nodes = n_kept;
    t->n_draft_read = n_read;

    int n_stem = stem(t, beams, n);
    if (t->drafting && n_read < n_stem) n_stem = n_read;
    status = sd_cache_settle(&t->target, n_stem);
    if (status == SD_OK && t->drafting) status = sd_cache_settle(&t->draft, n_stem);
    if (status != SD_OK) return status;
    for (int i = n_stem; i < t->n_nodes; i++) {
        t->tokens[i - n_stem] = t->tokens[i];
        t->parents[i - n_stem] = t->parents[i] < n_stem ? -1 : t->parents[i] - n_stem;
    }
    for (int i = 0; i < n; i++)
        if (!beams[i].ended)
            beams[i].parent_node = beams[i].parent_node < n_stem ? -1 : beams[i].parent_node - n_stem;
    t->n_nodes -= n_stem;
    t->n_draft_read -= t->drafting ? n_stem : 0;
    return SD_OK;
}
