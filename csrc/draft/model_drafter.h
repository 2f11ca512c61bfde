/* A smaller model drafts: M_q of the paper, a chain of γ tokens a round. */
#ifndef SD_MODEL_DRAFTER_H
#define SD_MODEL_DRAFTER_H

#include "guess.h"
#include "reader.h"

typedef struct sd_model_drafter_options {
    const sd_model* model; /* borrowed; must outlive the drafter; vocabulary of the target */
    sd_guessing guessing;
    int gamma;       /* most guesses of a round */
    int n_sequences; /* of the session */
    int n_text;      /* tokens of its longest text */
    int n_threads;
} sd_model_drafter_options;

/* Create a drafter. Owned by the caller, who hands it to a session. A text that outgrows the draft's
 * context is no longer drafted for. */
sd_status sd_model_drafter_create(const sd_model_drafter_options* options, sd_drafter** drafter);

#endif
