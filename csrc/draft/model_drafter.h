/* A smaller model drafts: M_q of the paper, a chain of γ tokens a round. */
#ifndef SD_MODEL_DRAFTER_H
#define SD_MODEL_DRAFTER_H

#include "guess.h"
#include "weights.h"

typedef struct sd_model_drafter_options {
    const sd_model* model; /* borrowed; must outlive the drafter; vocabulary of the target */
    sd_guessing guessing;
    int gamma;          /* longest chain asked for */
    int max_new_tokens; /* as in the session */
    int n_threads;
} sd_model_drafter_options;

/* Create a drafter for n sequences with prompts of n_prompt [n] tokens. Owned by the caller, who
 * hands it to a session. A text that outgrows the draft's context is no longer drafted for. */
sd_status sd_model_drafter_create(const sd_model_drafter_options* options, const int* n_prompt, int n,
                                  sd_drafter** drafter);

#endif
