/* The states that a caller's object has along a text and the guesses behind it.
 *
 * A state belongs to the new tokens before it and never changes: behind a token there is another state. They
 * are made when they are asked for, each once, and the core knows them by number alone. */
#pragma once

#include "memory.h"
#include "tree.h"

/* Who makes the states. All but SD_ERR_CALLBACK is the object's own affair. */
typedef struct sd_state_source {
    /* State 0 becomes that in which the new text begins, behind the prompt: tokens [n]. */
    sd_status (*start)(void* context, const int32_t* tokens, int n);
    /* State `to` becomes that behind state `from` and a token; `from` stays as it is. */
    sd_status (*advance)(void* context, int from, int32_t token, int to);
    /* State 0 becomes what state `from` is; all others are forgotten. */
    void (*keep)(void* context, int from);
    /* The last call has failed behind a guess that the text may never take: what it raised is forgotten.
     * Returns 0 where it must not be, as a wish to stop. */
    int (*forgive)(void* context);
    /* Several calls follow one another until the same number of `leave`: so what a call needs, as a lock, is
     * taken once. */
    void (*enter)(void* context);
    void (*leave)(void* context);
    void* context; /* borrowed */
} sd_state_source;

typedef struct sd_state_node {
    int32_t token;
    int parent, first_child, next_sibling; /* -1: none */
    int made;                              /* there is a state of this number */
    int tag;                               /* for whoever has the tree; -1 when the node is new */
} sd_state_node;

typedef struct sd_state_tree {
    sd_state_source source;
    int capacity;         /* nodes, at most */
    int n;                /* nodes so far; node 0 is the root */
    int n_text;           /* tokens of the text up to the root; 0: the text has not begun */
    sd_arena arena;       /* owns the arrays below */
    sd_state_node* nodes; /* [capacity] */
    int32_t* path;        /* [capacity] scratch */
} sd_state_tree;

/* Make a tree of up to `capacity` ≥ 2 states, for sd_state_tree_free. */
sd_status sd_state_tree_create(sd_state_tree* states, const sd_state_source* source, int capacity);
void sd_state_tree_free(sd_state_tree* states);

/* Another text begins: nothing of the last one is known. Calls nobody. */
void sd_state_tree_restart(sd_state_tree* states);

/* The state with which text [n_text] ends is the root from now on, and there are no others. The first call
 * for a text starts it: it is the prompt. *from: the number that the state had. */
sd_status sd_state_tree_follow(sd_state_tree* states, const int32_t* text, int n_text, int* from);

/* The number of the state behind a node of a tree (NULL: its root), whose root is the last token of text
 * [n_text]; the text may go on behind that of the last `follow`. It need not be made yet. -1 if there are
 * more tokens in a row than the tree has room for. */
int sd_state_tree_find(sd_state_tree* states, const int32_t* text, int n_text, const sd_tree* tree, int node);

/* Make this state, and those that it follows. */
sd_status sd_state_tree_make(sd_state_tree* states, int state);
