/* States of a user's object (constraint, transform) along a text and its draft tokens.
 *
 * A state belongs to the new tokens before it and never changes; each token leads to another state. States
 * are created on demand, once each; the core knows them by number only. */
#pragma once

#include "memory.h"
#include "tree.h"

/* The owner of the states; failures are SD_ERR_CALLBACK. */
typedef struct sd_state_source {
    /* Set state 0 to the start of a new text, after the prompt: tokens [n]. */
    sd_status (*start)(void* context, const int32_t* tokens, int n);
    /* Set state `to` to that after state `from` and a token; `from` stays unchanged. */
    sd_status (*advance)(void* context, int from, int32_t token, int to);
    /* Set state 0 to state `from` and forget all others. */
    void (*keep)(void* context, int from);
    /* Forget the exception of the last call, which failed after a draft token that the text may never
     * contain. Returns 0 if it must not be forgotten, like a request to stop. */
    int (*forgive)(void* context);
    /* Bracket several calls with enter and leave (nested), to take a lock once for all of them. */
    void (*enter)(void* context);
    void (*leave)(void* context);
    void* context; /* borrowed */
} sd_state_source;

typedef struct sd_state_node {
    int32_t token;
    int parent, first_child, next_sibling; /* -1: none */
    int made;                              /* a state of this number exists */
    int tag;                               /* for the owner of the tree; -1 for a new node */
} sd_state_node;

typedef struct sd_state_tree {
    sd_state_source source;
    int capacity;         /* nodes, at most */
    int n;                /* nodes so far; node 0 is the root */
    int n_text;           /* tokens of the text up to the root; 0: no text yet */
    sd_arena arena;       /* owns the arrays below */
    sd_state_node* nodes; /* [capacity] */
    int32_t* path;        /* [capacity] scratch */
} sd_state_tree;

/* Create a tree of up to `capacity` ≥ 2 states; free with sd_state_tree_free. */
sd_status sd_state_tree_create(sd_state_tree* states, const sd_state_source* source, int capacity);
void sd_state_tree_free(sd_state_tree* states);

/* Start over for another text. Makes no calls. */
void sd_state_tree_restart(sd_state_tree* states);

/* Make the state at the end of text [n_text] the root and drop all others. The first call for a text, its
 * prompt, starts it. *from: previous number of the state. */
sd_status sd_state_tree_follow(sd_state_tree* states, const int32_t* text, int n_text, int* from);

/* Number of the state after a node of a tree (NULL: the root), whose root is the last token of text [n_text],
 * which may extend that of the last `follow`. The state need not exist yet. -1: more tokens in a row than the
 * tree's capacity. */
int sd_state_tree_find(sd_state_tree* states, const int32_t* text, int n_text, const sd_tree* tree, int node);

/* Create this state and all before it. */
sd_status sd_state_tree_make(sd_state_tree* states, int state);
