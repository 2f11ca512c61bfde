/* How likely the target is to accept a guess, learned from verdicts: by the draft's confidence and by depth.
 *
 * Rates forget, so a text that changes is followed. Plain numbers: it may be copied, and begins as zeros. */
#pragma once

#include "proposal.h"
#include "running_mean.h"

#define SD_ACCEPTANCE_CONFIDENCES 14 /* bins of the draft's confidence */
#define SD_ACCEPTANCE_DEPTHS 10      /* depths told apart; deeper guesses count as the last */

typedef struct sd_acceptance {
    sd_mean lately;                                   /* of the last few guesses */
    sd_mean whole;                                    /* of the last hundred or so */
    sd_mean by_depth[SD_ACCEPTANCE_DEPTHS];           /* of the first guess at each depth */
    sd_mean by_confidence[SD_ACCEPTANCE_CONFIDENCES]; /* by the draft's confidence */
    /* By confidence and depth. */
    sd_mean by_both[SD_ACCEPTANCE_CONFIDENCES][SD_ACCEPTANCE_DEPTHS];
    /* How often each confidence occurs: at depth 1, and deeper. */
    double confidences[2][SD_ACCEPTANCE_CONFIDENCES];
    /* 1: the confidence of a guess is known before its row is spent (sd_proposal_worth_verifying). */
    int looks;
} sd_acceptance;

/* The verdict on a proposal: path [n_path] are the nodes of it that were accepted, from depth 1 on. */
void sd_acceptance_observe(sd_acceptance* acceptance, const sd_proposal* proposal, const int32_t* path,
                           int n_path);

/* Count each rate as at most n cases: what is seen next weighs more. */
void sd_acceptance_weaken(sd_acceptance* acceptance, double n);

/* The middle of a bin of confidences. */
double sd_acceptance_confidence(int bin);

/* The chance that a guess of this confidence and depth (≥ 1) is accepted if its parent is. */
double sd_acceptance_chance(const sd_acceptance* acceptance, double confidence, int depth);

/* The same before the confidence is known, for depths 1 to n: chance [n + 1]; chance[0] is 1. */
void sd_acceptance_by_depth(const sd_acceptance* acceptance, double* chance, int n);
