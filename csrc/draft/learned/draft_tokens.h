/* The tokens that a learnt draft may guess, where these are fewer than its target's. */
#ifndef SD_DRAFT_TOKENS_H
#define SD_DRAFT_TOKENS_H

#include <stdint.h>

#include "status.h"

/* Can tokens [n_draft], borrowed, be the target's token of each of a draft's? NULL: they are the same, which
 * needs n_draft to be n_vocab, the target's. */
sd_status sd_draft_tokens_check(const int32_t* tokens, int n_draft, int n_vocab);

/* Logits [n_draft] of a draft's tokens to those of the target's, [n_vocab]; the others stay as they are. All
 * borrowed; tokens as above. */
void sd_draft_tokens_scatter(const int32_t* tokens, int n_draft, const float* from, float* to);

#endif
