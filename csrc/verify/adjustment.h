/* What is done to logits before they become a distribution: repetition penalty, presence and frequency
 * penalty, biases, then masks. */
#pragma once

#include "memory.h"
#include "tree.h"

/* What comes before the token after a node: a text and the way from the tree's root, its last token, to the
 * node. All pointers borrowed. */
typedef struct sd_history {
    const int32_t* tokens; /* [n_tokens] */
    int n_tokens;
    int n_prompt; /* of them the prompt; what comes behind it is new */
    const sd_tree* tree;
} sd_history;

/* Where adjusted logits are made; arrays belong to the arena that they were taken from. */
typedef struct sd_adjustment {
    float* logits;     /* [n_vocab] */
    int32_t* counts;   /* [n_vocab] how often tokens have occurred; all 0 between calls */
    int32_t* reversed; /* [n_text] scratch: text and way to the node, the last token first */
    int32_t* borders;  /* [n_text] scratch: longest borders of what `reversed` begins with */
} sd_adjustment;

/* Take the arrays from the arena (which may be counting). `n_text`: tokens of a text with the way to a node,
 * at most. */
sd_adjustment sd_adjustment_take(sd_arena* arena, int n_vocab, int n_text);

/* Logits [n_vocab] of the token after `node`: the same pointer if there is nothing to do, else
 * adjustment->logits. By the repetition penalty a token of the text, or of the way to the node, counts once,
 * however often it occurs. Presence and frequency penalty count tokens of the new text alone: a token that
 * occurs c > 0 times loses presence_penalty + c · frequency_penalty, rounded once to float32. */
const float* sd_logits_adjust(const sd_sampling* sampling, int n_vocab, const float* logits,
                              const sd_history* history, int node, const sd_adjustment* adjustment);
