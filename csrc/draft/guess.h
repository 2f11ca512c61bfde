/* From the draft's logits to a guess: what drafters that guess by distributions have in common. */
#ifndef SD_GUESS_H
#define SD_GUESS_H

#include "adjustment.h"
#include "drafter.h"
#include "memory.h"

/* How a draft chooses. */
typedef struct sd_guessing {
    sd_adjustment adjustment; /* of the draft's logits; its arrays must outlive the drafter */
    sd_sampling sampling;     /* the draft's own standardisation */
    int coupled;              /* draw with the noise of SD_RULE_COUPLED */
} sd_guessing;

typedef struct sd_guesser {
    sd_guessing how;
    int n_vocab;
    double* scratch; /* [2 · n_vocab] */
    float* adjusted; /* [n_vocab] logits */
    double* terms;   /* a piece of a row */
} sd_guesser;

sd_status sd_guessing_check(const sd_guessing* how, int n_vocab);

/* Are all guesses point masses? */
static inline int sd_guessing_points(const sd_guessing* how) { return how->sampling.temperature == 0.0; }

/* A guesser whose arrays are pieces of the arena. */
sd_guesser sd_guesser_take(sd_arena* arena, const sd_guessing* how, int n_vocab);

/* Append a guess that follows `node`, drawn from the distribution of these logits [n_vocab]; returns its
 * node, or -1 if it does not pay and may be left out (sd_proposal_worth_verifying): nothing hangs on `node`
 * then. */
int sd_guess_if_it_pays(const sd_guesser* guesser, sd_proposal* proposal, int node, const float* logits);

#endif
