/* From the draft's logits to a guess: what drafters that guess by distributions have in common. */
#ifndef SD_GUESS_H
#define SD_GUESS_H

#include "adjustment.h"
#include "drafter.h"
#include "memory.h"

typedef struct sd_guesser {
    int n_vocab;
    double* scratch; /* [2 · n_vocab] */
    sd_adjustment adjustment;
} sd_guesser;

/* A guesser whose arrays are pieces of the arena. */
sd_guesser sd_guesser_take(sd_arena* arena, const sd_drafting* drafting);

/* The distribution of the token after `node` of a proposal, by the draft's logits [n_vocab] and the settings
 * of the proposal: *from, whose weights are the caller's. Returns the adjusted logits. */
const float* sd_guess_distribute(const sd_guesser* guesser, const sd_proposal* proposal, int node,
                                 const float* logits, sd_distribution* from);

/* Append a guess that follows `node`, drawn from the distribution of these logits [n_vocab]; returns its
 * node, or -1 if it does not pay and may be left out (sd_proposal_worth_verifying), or where the draft knows
 * no token that may come: `node`
 * then has no child. */
int sd_guess_if_it_pays(const sd_guesser* guesser, sd_proposal* proposal, int node, const float* logits);

/* Draw the token of the next node after `parent` from its distribution; by SD_RULE_COUPLED with the noise
 * that the target will draw with at the same position, which is made in noise [n_vocab]. */
int32_t sd_guess_draw(const sd_proposal* proposal, int parent, const sd_distribution* from, int n_vocab,
                      double* noise);

#endif
