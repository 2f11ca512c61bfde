/* The hypotheses of a beam search as one tree, read by the target and partly by the draft.
 *
 * Tree node i is pending node i of each cache that has read it: the target has read all nodes that a round
 * leaves, the draft the first n_draft_read. Between rounds a hypothesis' last token is not a node: the next
 * round needs its logits and reads it then. */
#pragma once

#include "cache.h"

/* A hypothesis, as the step that chose it describes it. */
typedef struct sd_beam {
    double score;    /* Σ ln p of its new tokens at temperature 1 */
    int32_t token;   /* last token; -1: it had ended before this step, which left it unchanged */
    int parent;      /* the hypothesis that it continues, of the step before */
    int ended;       /* a stop id was reached: it is not continued */
    int node;        /* set by the caller: node of its last token; -1: none */
    int parent_node; /* set by the caller: node of the token before; -1: committed text */
} sd_beam;

/* Ids that end a hypothesis. */
typedef struct sd_stop_ids {
    const int32_t* ids; /* [n] borrowed */
    int n;
} sd_stop_ids;

/* Choose the `width` best among the one-token continuations of beams [n] and the ended ones, best first:
 * higher score, then lower hypothesis, then lower token id. Logits after an open hypothesis are in row (node
 * - first_node) of logits [rows, ld] f32, n_vocab per row. Fills next [width], which is not `beams`, and
 * returns their number: fewer than width if there are fewer, 0 if some logits are not finite. Does not set
 * node and parent_node. */
int sd_beam_step(const sd_beam* beams, int n, const float* logits, ptrdiff_t ld, int first_node, int n_vocab,
                 sd_stop_ids stop, int width, sd_beam* next);

typedef struct sd_beam_tree {
    sd_cache target; /* owned */
    sd_cache draft;  /* owned; not created if nothing is drafted */
    sd_arena arena;  /* owns the arrays below */
    int n_nodes, max_nodes;
    int drafting;                   /* the draft still reads; once stopped it never resumes */
    int n_draft_read;               /* nodes in the draft's cache while it drafts */
    int32_t *tokens, *parents;      /* [max_nodes] parents: an earlier node, or -1: the committed text */
    int32_t *old_index, *new_index; /* [max_nodes] of a prune: by new node, and by old node or -1 */
} sd_beam_tree;

/* Create a tree for up to max_nodes nodes after n_committed tokens. draft NULL: nothing is drafted. The tree
 * owns its memory, also after a failure. */
sd_status sd_beam_tree_create(sd_beam_tree* tree, const sd_model* target, const sd_model* draft,
                              int n_committed, int max_nodes);
void sd_beam_tree_free(sd_beam_tree* tree);

/* Append a node and return its index. The capacity must suffice. */
int sd_beam_tree_add(sd_beam_tree* tree, int32_t token, int parent);
/* Find the node with this token and parent, from `first` on; -1: none. */
int sd_beam_tree_find(const sd_beam_tree* tree, int first, int32_t token, int parent);

/* Drop, here and in the caches, nodes that no continuing hypothesis [n] descends from; commit those that all
 * descend from and both models have read. Sets parent_node to the new indices. */
sd_status sd_beam_tree_prune(sd_beam_tree* tree, sd_beam* beams, int n);
