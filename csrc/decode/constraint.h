/* The constraint of a text: which tokens may come next, along the text and the draft tokens after it.
 *
 * The target's distribution is masked and renormalized token by token, and so are those of drafts: a mask is
 * computed once for all who ask, after whichever nodes they ask for. */
#pragma once

#include "state_tree.h"

/* Most tokens that are proposed in a row because nothing else may come. */
#define SD_MAX_FORCED 16

/* Which tokens may come next: token i if bit i % 32 of words[i / 32] is set; no bit is set behind n_vocab. */
typedef struct sd_mask {
    const uint32_t*
        words;     /* [ceil(n_vocab / 32)] borrowed until another is asked for; NULL: every token may */
    int n_allowed; /* how many may */
} sd_mask;

static inline int sd_mask_allows(const sd_mask* mask, int32_t token) {
    return mask->words == NULL || (mask->words[token >> 5] >> (token & 31) & 1);
}

/* The lowest token that may come, -1: none. */
int32_t sd_mask_first(const sd_mask* mask, int n_vocab);

/* Logits [n_vocab] with −infinity for tokens that may not come: the same pointer if all may, else `masked`
 * [n_vocab], which may be `logits` itself. */
const float* sd_mask_logits(const sd_mask* mask, int n_vocab, const float* logits, float* masked);

typedef struct sd_constraint_source {
    sd_state_source states;
    /* Fill words [ceil(n_vocab / 32)] of the tokens that may follow a state. *complete is set where the text
     * is complete and nothing can follow; then the words are not read. */
    sd_status (*mask)(void* context, int state, uint32_t* words, int* complete);
} sd_constraint_source;

typedef struct sd_constraint {
    sd_constraint_source source;
    int n_vocab;
    sd_state_tree states; /* owned */
    sd_arena arena;       /* owns the array below */
    uint32_t*
        words; /* [states.capacity, n_words] of states whose number of allowed tokens, the tag, is known */
    int n_words;
    int complete;                  /* the committed text is: nothing can follow */
    sd_status status;              /* of what was asked for the text: after a failure nothing is masked */
    char message[SD_MESSAGE_SIZE]; /* of the failure */
} sd_constraint;

/* Create the constraint of a sequence with up to n_nodes guesses a round. Owned by the caller; must outlive
 * the sequence. */
sd_status sd_constraint_create(const sd_constraint_source* source, int n_vocab, int n_nodes,
                               sd_constraint** constraint);
void sd_constraint_free(sd_constraint* constraint);

/* Another text begins. Calls nobody. */
void sd_constraint_restart(sd_constraint* constraint);

/* The text is tokens [n] from now on; of a text that begins, the prompt. Finds what may follow, and whether
 * the text is complete. SD_ERR_SETTING if no token may follow a text that is not. */
sd_status sd_constraint_follow(sd_constraint* constraint, const int32_t* tokens, int n);

/* Find what may follow a node of a tree, as sd_state_tree_find has it. Returns 0 where nobody needs to know:
 * after a token that may not come, or where the text is complete. After a failure, which `status` of the
 * constraint keeps, every token may follow. is_draft: the text may never take the node, so that a failure
 * counts only if the text comes there; then 0 is returned, and nothing is drafted after it. */
int sd_constraint_mask(sd_constraint* constraint, const int32_t* text, int n_text, const sd_tree* tree,
                       int node, int is_draft, sd_mask* mask);

/* SD_OK, or the failure with its message. */
sd_status sd_constraint_check(const sd_constraint* constraint);

/* The tokens that must come next, one after the other because nothing else may, at most n: tokens [n].
 * Returns how many there are. text [n_text] has room for them behind; they are written there. */
int sd_constraint_forced(sd_constraint* constraint, int32_t* text, int n_text, int n);
