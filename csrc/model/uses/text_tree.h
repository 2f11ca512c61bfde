/* Texts to be scored, as trees of their tokens: what texts have in common at their beginnings is there once.
 *
 * Texts are put in order, those that begin alike beside each other, and divided into groups. The nodes of a
 * group's tree are the tokens that are read: all but the last of each text. First comes the stem, a chain
 * that all texts of the group begin with, then what follows it. */
#ifndef SD_TEXT_TREE_H
#define SD_TEXT_TREE_H

#include <stddef.h>
#include <stdint.h>

/* Most nodes of a tree behind its stem: every row of the tree attends to all of them, and masks those that
 * are not on its way. */
#define SD_TREE_BEHIND_STEM 256

/* A text, of which the tokens from the n_given-th on are scored; all pointers borrowed. */
typedef struct sd_scored_text {
    const int32_t* tokens; /* [n], n ≥ 2 */
    int n, n_given;        /* 1 ≤ n_given < n */
    const int32_t* source; /* [n_source] of a model with an encoder; NULL: there is none */
    int n_source;
    ptrdiff_t first; /* where the results of its first scored token go */
} sd_scored_text;

/* Texts [first, first + n) of those in order. */
typedef struct sd_text_group {
    int first, n;
    int n_nodes, n_stem;
    int n_unscored; /* nodes at the beginning of the stem after which no text is scored */
    int n_wants;    /* tokens that are scored */
} sd_text_group;

/* Put texts [n] in order: by source, then by tokens. */
void sd_texts_sort(sd_scored_text* texts, int n);

/* Divide texts [n] in order into groups [n]; returns how many there are. With `apart` each text is one. */
int sd_texts_group(const sd_scored_text* texts, int n, int apart, sd_text_group* groups);

/* A token that is scored by the logits of a node. */
typedef struct sd_want {
    int32_t token;
    int next;         /* the next want of the node, -1: none */
    ptrdiff_t result; /* where its results go */
} sd_want;

/* The tree of a group; arrays have room for the largest group and are the caller's. */
typedef struct sd_text_tree {
    int32_t* tokens;  /* [n_nodes] */
    int32_t* parents; /* [n_nodes] earlier nodes; -1: there is none */
    int* first_wants; /* [n_nodes] the wants of each node, -1: none */
    sd_want* wants;   /* [n_wants] */
    int32_t* path;    /* [n_nodes] scratch: the nodes of the last text */
} sd_text_tree;

/* Fill the tree of a group of texts in order, all of them [..]. */
void sd_text_tree_build(sd_text_tree* tree, const sd_scored_text* texts, const sd_text_group* group);

#endif
