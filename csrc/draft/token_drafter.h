/* From the draft's logits to draft tokens: shared by drafters that draft from distributions. */
#pragma once

#include "adjustment.h"
#include "drafter.h"
#include "memory.h"

typedef struct sd_token_drafter {
    int n_vocab;
    double* scratch; /* [2 · n_vocab] */
    sd_adjustment adjustment;
} sd_token_drafter;

/* Take one with arrays from the arena. */
sd_token_drafter sd_token_drafter_take(sd_arena* arena, const sd_drafting* drafting);

/* Compute the distribution of the token after `node` from the draft's logits [n_vocab] and the proposal's
 * settings: *from, with weights of the caller. Returns the adjusted logits. */
const float* sd_draft_token_distribute(const sd_token_drafter* token_drafter, const sd_proposal* proposal,
                                       int node, const float* logits, sd_distribution* from);

/* Append a draft token after `node`, drawn from the distribution of these logits [n_vocab]. Returns its node;
 * -1, without a child, if it does not pay and may be left out (sd_proposal_worth_verifying), or if the draft
 * knows no allowed token. */
int sd_draft_token_add_if_it_pays(const sd_token_drafter* token_drafter, sd_proposal* proposal, int node,
                                  const float* logits);

/* Draw the token of the next node after `parent` from its distribution. SD_RULE_COUPLED draws with the noise
 * of the target at the same position, which is written to noise [n_vocab]. */
int32_t sd_draft_token_draw(const sd_proposal* proposal, int parent, const sd_distribution* from, int n_vocab,
                            double* noise);

/* ------------------------------------------------------------------ several draft tokens at one position */

/* How siblings are chosen. At draft temperature 0 all mass is on one token, and the coupled rule gives every
 * draw the same noise; draws would then be equal, so each method takes the most promising tokens: at
 * temperature 0 the largest logits, under the coupled rule the first of the race. */
typedef enum sd_choosing {
    SD_CHOOSE_DRAWS,    /* independent draws */
    SD_CHOOSE_DISTINCT, /* draws without replacement (recursive rejection sampling, Jeon et al. 2024) */
    SD_CHOOSE_TOP,      /* the most probable tokens, each a point mass */
} sd_choosing;

typedef struct sd_child_sampler {
    sd_token_drafter token_drafter;
    int capacity; /* most children of a node */
    /* > 0: factor on logits that estimates the chances of tokens at temperature 0 and in the race. Larger for
     * better drafts. */
    double sharpness;
    int32_t* order;  /* [capacity] tokens, the most promising first */
    double* scores;  /* [capacity] the draft's estimate of each one's chance */
    double* weights; /* [n_vocab] scratch */
    int32_t* heads;  /* [blocks of the vocabulary] scratch */
} sd_child_sampler;

/* Take a sampler with arrays from the arena. */
sd_child_sampler sd_child_sampler_take(sd_arena* arena, const sd_drafting* drafting, int capacity,
                                       double sharpness);

/* Rank the k most promising tokens after `node` of a proposal's tree, by the draft's logits [n_vocab], into
 * `order` and `scores`. k is at most `capacity`. Returns the number of tokens with mass. */
int sd_child_sampler_rank(const sd_child_sampler* sampler, const sd_proposal* proposal, int node,
                          const float* logits, int k);

/* Append up to n draft tokens after `node`, as long as the proposal accepts them. Returns their number. */
int sd_child_sampler_draw(const sd_child_sampler* sampler, sd_proposal* proposal, int node,
                          const float* logits, sd_choosing how, int n);
