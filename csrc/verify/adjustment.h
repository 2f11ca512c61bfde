/* What is done to logits before they become a distribution: repetition penalty, then bias. */
#ifndef SD_ADJUSTMENT_H
#define SD_ADJUSTMENT_H

#include "tree.h"

/* Logits [n_vocab] of the token after `node` of a tree whose root is the last of tokens [n_tokens]: the same
 * pointer if there is nothing to do, else `adjusted` [n_vocab]. A token of these, or of the way to the node,
 * counts once, however often it occurs. */
const float* sd_logits_adjust(const sd_sampling* sampling, int n_vocab, const float* logits,
                              const int32_t* tokens, int n_tokens, const sd_tree* tree, int node,
                              float* adjusted);

#endif
