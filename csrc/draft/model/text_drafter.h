/* A draft of another vocabulary that drafts through text (string-level exact match of Timor et al. 2025,
 * arXiv 2502.05202, Algorithm 2): it writes on in its own tokens, the most probable ones, and what it has
 * written is guessed in the target's, as the target's tokenizer cuts it. These guesses are point masses.
 *
 * With SD_WAY_MEASURED it does so in some rounds, and in others it guesses tokens that both vocabularies
 * have, drawn from its law restricted to them (Algorithm 4): for each text by the way that brought more. */
#ifndef SD_TEXT_DRAFTER_H
#define SD_TEXT_DRAFTER_H

#include "model_predictor.h"

typedef enum sd_vocabulary_way { SD_WAY_TEXT, SD_WAY_MEASURED } sd_vocabulary_way;

/* Make one; `options` have a translation and `writes`. */
sd_status sd_text_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                 sd_vocabulary_way way, sd_drafter** drafter);

#endif
