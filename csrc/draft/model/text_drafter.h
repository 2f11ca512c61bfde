/* A draft of another vocabulary that drafts through text (string-level exact match of Timor et al. 2025,
 * arXiv 2502.05202, Algorithm 2): it writes on in its own tokens, the most probable ones, and what it has
 * written is guessed in the target's, as the target's tokenizer cuts it. Every guess is a point mass. */
#ifndef SD_TEXT_DRAFTER_H
#define SD_TEXT_DRAFTER_H

#include "model_predictor.h"

/* Make one; `options` have a translation and `writes`. */
sd_status sd_text_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                 sd_drafter** drafter);

#endif
