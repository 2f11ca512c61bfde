/* From the draft's logits to guesses: what drafters that guess by distributions have in common. */
#pragma once

#include "adjustment.h"
#include "drafter.h"
#include "memory.h"

typedef struct sd_token_drafter {
    int n_vocab;
    double* scratch; /* [2 · n_vocab] */
    sd_adjustment adjustment;
} sd_token_drafter;

/* A guesser whose arrays are pieces of the arena. */
sd_token_drafter sd_token_drafter_take(sd_arena* arena, const sd_drafting* drafting);

/* The distribution of the token after `node` of a proposal, by the draft's logits [n_vocab] and the settings
 * of the proposal: *from, whose weights are the caller's. Returns the adjusted logits. */
const float* sd_draft_token_distribute(const sd_token_drafter* token_drafter, const sd_proposal* proposal,
                                       int node, const float* logits, sd_distribution* from);

/* Append a guess that follows `node`, drawn from the distribution of these logits [n_vocab]; returns its
 * node, or -1 if it does not pay and may be left out (sd_proposal_worth_verifying), or where the draft knows
 * no token that may come: `node` then has no child. */
int sd_draft_token_add_if_it_pays(const sd_token_drafter* token_drafter, sd_proposal* proposal, int node,
                                  const float* logits);

/* Draw the token of the next node after `parent` from its distribution; by SD_RULE_COUPLED with the noise
 * that the target will draw with at the same position, which is made in noise [n_vocab]. */
int32_t sd_draft_token_draw(const sd_proposal* proposal, int parent, const sd_distribution* from, int n_vocab,
                            double* noise);

/* ------------------------------------------------------------------ several guesses for one token */

/* How they are chosen. Where the draft's temperature is 0 all mass is on one token, and the coupled rule
 * gives every draw the same noise; there equal draws would be all there is, so each way takes the most
 * promising tokens: at temperature 0 the largest logits, under the coupled rule the first of the race. */
typedef enum sd_choosing {
    SD_CHOOSE_DRAWS,    /* independent draws */
    SD_CHOOSE_DISTINCT, /* each from the draft's distribution without its previous siblings: sampling without
                         * replacement (recursive rejection sampling, Jeon et al. 2024) */
    SD_CHOOSE_TOP,      /* the most probable tokens, each a point mass */
} sd_choosing;

typedef struct sd_child_sampler {
    sd_token_drafter token_drafter;
    int capacity; /* most children of a node */
    /* > 0: logits are multiplied by it to estimate the chances of tokens where the target does not draw, at
     * temperature 0 and in the race. The better the draft, the larger. */
    double sharpness;
    int32_t* order;  /* [room] tokens, the most promising first */
    double* scores;  /* [room] the draft's estimate of each one's chance */
    double* weights; /* [n_vocab] scratch */
    int32_t* heads;  /* [blocks of the vocabulary] scratch */
} sd_child_sampler;

/* A sampler whose arrays are pieces of the arena. */
sd_child_sampler sd_child_sampler_take(sd_arena* arena, const sd_drafting* drafting, int capacity,
                                       double sharpness);

/* Rank the k most promising tokens after `node` of a proposal's tree, by the draft's logits [n_vocab], into
 * `order` and `scores`. k is at most `room`. Returns how many there are: a token without mass is none. */
int sd_child_sampler_rank(const sd_child_sampler* sampler, const sd_proposal* proposal, int node,
                          const float* logits, int k);

/* Append up to n guesses that follow `node`, as long as the proposal wants them. Returns how many. */
int sd_child_sampler_draw(const sd_child_sampler* sampler, sd_proposal* proposal, int node,
                          const float* logits, sd_choosing how, int n);
