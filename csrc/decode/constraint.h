/* The constraint of a text: which tokens may come next, along the text and the draft tokens after it.
 *
 * The target's distribution is masked and renormalized token by token, and so are those of drafts: the mask
 * after a node is computed once and shared. */
#pragma once

#include "state_tree.h"

/* Most tokens that are proposed in a row because nothing else may come. */
#define SD_MAX_FORCED 16

/* Which tokens may come next: token i if bit i % 32 of words[i / 32] is set; no bit is set from n_vocab
 * on. */
typedef struct sd_mask {
    /* [ceil(n_vocab / 32)] borrowed until the next mask is requested; NULL: every token may */
    const uint32_t* words;
    int n_allowed; /* how many may */
} sd_mask;

static inline int sd_mask_allows(const sd_mask* mask, int32_t token) {
    return mask->words == NULL || (mask->words[token >> 5] >> (token & 31) & 1);
}

/* Lowest token that may come; -1: none. */
int32_t sd_mask_first(const sd_mask* mask, int n_vocab);

/* Logits [n_vocab] with −infinity for tokens that may not come: the same pointer if all may, else `masked`
 * [n_vocab], which may be `logits` itself. */
const float* sd_mask_logits(const sd_mask* mask, int n_vocab, const float* logits, float* masked);

typedef struct sd_constraint_source {
    sd_state_source states;
    /* Fill words [ceil(n_vocab / 32)] with the tokens that may follow a state. *complete: the text is
     * complete and nothing can follow; then words are not read. */
    sd_status (*mask)(void* context, int state, uint32_t* words, int* complete);
} sd_constraint_source;

typedef struct sd_constraint {
    sd_constraint_source source;
    int n_vocab;
    sd_state_tree states; /* owned */
    sd_arena arena;       /* owns the array below */
    /* [states.capacity, n_words] of states whose tag, the number of allowed tokens, is known */
    uint32_t* words;
    int n_words;
    int complete;                  /* the committed text is complete: nothing can follow */
    sd_status status;              /* first failure; nothing is masked after it */
    char message[SD_MESSAGE_SIZE]; /* of that failure */
} sd_constraint;

/* Create the constraint of a sequence with up to n_nodes draft tokens per round. Owned by the caller; must
 * outlive the sequence. */
sd_status sd_constraint_create(const sd_constraint_source* source, int n_vocab, int n_nodes,
                               sd_constraint** constraint);
void sd_constraint_free(sd_constraint* constraint);

/* Start over for another text. Makes no calls. */
void sd_constraint_restart(sd_constraint* constraint);

/* Set the text to tokens [n]; for a new text, the prompt. Finds what may follow, and whether the text is
 * complete. SD_ERR_SETTING if no token may follow an incomplete text. */
sd_status sd_constraint_follow(sd_constraint* constraint, const int32_t* tokens, int n);

/* Find what may follow a node of a tree, addressed as in sd_state_tree_find. Returns 0 after a forbidden
 * token or where the text is complete. After a failure, which `status` keeps, every token may follow.
 * is_draft: the text may never reach the node, so a failure there is forgotten, 0 is returned, and nothing is
 * drafted after it. */
int sd_constraint_mask(sd_constraint* constraint, const int32_t* text, int n_text, const sd_tree* tree,
                       int node, int is_draft, sd_mask* mask);

/* SD_OK, or the failure with its message. */
sd_status sd_constraint_check(const sd_constraint* constraint);

/* Append the tokens that must come next, at most n, because nothing else may, to text [n_text], which has
 * room for them. Returns their number. */
int sd_constraint_forced(sd_constraint* constraint, int32_t* text, int n_text, int n);
