/* The hypotheses of a beam search as one tree, read by the target and in part by the draft.
 *
 * Node i of the tree is pending node i of each cache that has read it: the target has read all that a
 * round leaves, the draft the first n_draft_read. A hypothesis' last token is no node between
 * rounds: its logits are wanted in the next one, so it is read there. */
#pragma once

#include "cache.h"

/* A hypothesis, as the step that chose it knows it. */
typedef struct sd_beam {
    double score;    /* Σ ln p of its new tokens at temperature 1 */
    int32_t token;   /* the last one; -1: it had ended before this step, which left it as it was */
    int parent;      /* the hypothesis that it continues, among those of the step before */
    int ended;       /* a stop id was reached: it is not continued */
    int node;        /* the caller's: node of its last token in a tree; -1: none */
    int parent_node; /* the caller's: node of the token before; -1: it is committed text */
} sd_beam;

/* Ids that end a hypothesis. */
typedef struct sd_stop_ids {
    const int32_t* ids; /* [n] borrowed */
    int n;
} sd_stop_ids;

/* The `width` best among the continuations of beams [n] by one token and the ended ones themselves,
 * best first: higher score, then the lower hypothesis, then the lower token id. Logits after a
 * hypothesis that has not ended lie in row (node - first_node) of logits [rows, ld] f32, n_vocab a
 * row. Fills next [width], which is not `beams`, and returns how many there are: fewer than width
 * where there are fewer continuations, 0 where some logits are not finite numbers. node and parent_node
 * are not set. */
int sd_beam_step(const sd_beam* beams, int n, const float* logits, ptrdiff_t ld, int first_node, int n_vocab,
                 sd_stop_ids stop, int width, sd_beam* next);

typedef struct sd_beam_tree {
    sd_cache target; /* owned */
    sd_cache draft;  /* owned; not created where nothing is drafted */
    sd_arena arena;  /* owns the arrays below */
    int n_nodes, max_nodes;
    int drafting;              /* the draft goes on reading; it does not take it up again */
    int n_draft_read;          /* nodes in the draft's cache, while it drafts */
    int32_t *tokens, *parents; /* [max_nodes] an earlier node, or -1: the committed text */
    int32_t *kept, *moved;     /* [max_nodes] of a prune: old index of a node, new index */
} sd_beam_tree;

/* Room for max_nodes nodes on n_committed tokens. draft NULL: nothing is drafted. The tree owns its
 * memory, also after a failure. */
sd_status sd_beam_tree_create(sd_beam_tree* tree, const sd_model* target, const sd_model* draft,
                              int n_committed, int max_nodes);
void sd_beam_tree_free(sd_beam_tree* tree);

/* Append a node; returns its index. There is room. */
int sd_beam_tree_add(sd_beam_tree* tree, int32_t token, int parent);
/* The node of this token and parent among the nodes from `first` on; -1: none. */
int sd_beam_tree_find(const sd_beam_tree* tree, int first, int32_t token, int parent);

/* Drop, here and in the caches, all nodes from which no hypothesis [n] that goes on descends; commit those
 * from which all descend and that both models have read. Sets parent_node to the new indices. */
sd_status sd_beam_tree_prune(sd_beam_tree* tree, sd_beam* beams, int n);
