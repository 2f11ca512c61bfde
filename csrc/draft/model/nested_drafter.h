/* A drafter drafts for the draft (section 6 of the paper): the model's chain of guesses is itself decoded
 * speculatively. An inner drafter proposes, the model reads all of it in one forward, and the guesses are
 * what verification leaves: the model's own draws, which the inner drafter cannot change, only hasten. */
#ifndef SD_NESTED_DRAFTER_H
#define SD_NESTED_DRAFTER_H

#include "model_drafter.h"

typedef struct sd_nested_options {
    sd_drafter* inner; /* made for texts that are longer by gamma; may speculate itself */
    int inner_gamma;   /* its guesses a round */
} sd_nested_options;

/* Create a drafter, owned by the caller. The inner one is owned from the call on, also when it fails. */
sd_status sd_nested_drafter_create(const sd_model_drafter_options* options, const sd_nested_options* nested,
                                   sd_drafter** drafter);

#endif
