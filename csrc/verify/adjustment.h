/* What is done to logits before they become a distribution: repetition penalty, then bias. */
#ifndef SD_ADJUSTMENT_H
#define SD_ADJUSTMENT_H

#include "tree.h"

typedef struct sd_adjustment {
    double repetition_penalty; /* > 0; logits of tokens that have occurred are divided by it if
                                * positive, else multiplied (Keskar et al. 2019, section 4.1); 1: none */
    int n_biased;
    const int32_t* biased; /* [n_biased] distinct tokens; borrowed */
    const float* biases;   /* [n_biased] what is added to their logits, −infinity to forbid one; borrowed */
} sd_adjustment;

sd_status sd_adjustment_check(const sd_adjustment* adjustment, int n_vocab);

/* Logits [n_vocab] of the token after `node` of a tree whose root is the last of text [n_text]: the
 * same pointer if there is nothing to do, else `adjusted` [n_vocab]. A token of the text or of the
 * way to the node counts once, however often it occurs. */
const float* sd_logits_adjust(const sd_adjustment* adjustment, int n_vocab, const float* logits,
                              const int32_t* text, int n_text, const sd_tree* tree, int node,
                              float* adjusted);

#endif
