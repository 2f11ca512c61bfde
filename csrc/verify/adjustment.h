/* Adjustments of logits before they become a distribution: repetition, presence, frequency and DRY penalties,
 * biases, then masks. */
#pragma once

#include "memory.h"
#include "tree.h"

/* The tokens before the one after a node: a text, then the path from the tree's root (its last token) to the
 * node. All pointers borrowed. */
typedef struct sd_history {
    const int32_t* tokens; /* [n_tokens] */
    int n_tokens;
    int n_prompt; /* length of the prompt; the tokens after it are new */
    const sd_tree* tree;
} sd_history;

/* Output and scratch of an adjustment; arrays belong to the arena they were taken from. */
typedef struct sd_adjustment {
    float* logits;     /* [n_vocab] */
    int32_t* counts;   /* [n_vocab] scratch: a count of each token; all 0 between calls */
    int32_t* reversed; /* [n_text] scratch: text and path to the node, last token first */
    int32_t* lengths;  /* [n_text] scratch: lengths of equal parts of `reversed` */
} sd_adjustment;

/* Take the arrays from the arena (which may be counting). `n_text`: maximum length of a text plus the path to
 * a node. */
sd_adjustment sd_adjustment_take(sd_arena* arena, int n_vocab, int n_text);

/* Return the logits [n_vocab] of the token after `node`: `logits` itself if nothing changes, else
 * adjustment->logits. The repetition penalty applies once to each token of the text or of the path to the
 * node. Presence and frequency penalties count generated tokens only: a token that occurs c > 0 times loses
 * presence_penalty + c · frequency_penalty, rounded once to float32; likewise the DRY penalty, at most the
 * largest float32. */
const float* sd_logits_adjust(const sd_sampling* sampling, int n_vocab, const float* logits,
                              const sd_history* history, int node, const sd_adjustment* adjustment);
