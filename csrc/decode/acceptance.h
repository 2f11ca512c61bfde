/* Acceptance rates of draft tokens, learned from verdicts, by the draft's confidence and by depth.
 *
 * Rates decay, so they follow a text that changes. Plain numbers: may be copied; starts as zeros. */
#pragma once

#include "proposal.h"
#include "running_mean.h"

#define SD_ACCEPTANCE_CONFIDENCES 14 /* bins of the draft's confidence */
#define SD_ACCEPTANCE_DEPTHS 10      /* bins by depth; deeper draft tokens fall into the last */

typedef struct sd_acceptance {
    sd_mean lately;                                   /* of the last few draft tokens */
    sd_mean whole;                                    /* of the last hundred or so */
    sd_mean by_depth[SD_ACCEPTANCE_DEPTHS];           /* of the first draft token at each depth */
    sd_mean by_confidence[SD_ACCEPTANCE_CONFIDENCES]; /* by the draft's confidence */
    /* By confidence and depth. */
    sd_mean by_both[SD_ACCEPTANCE_CONFIDENCES][SD_ACCEPTANCE_DEPTHS];
    /* How often each confidence occurs: at depth 1, and deeper. */
    double confidences[2][SD_ACCEPTANCE_CONFIDENCES];
    /* 1: the confidence of a draft token is known before it gets a row (sd_proposal_worth_verifying). */
    int looks;
} sd_acceptance;

/* Learn from the verdict on a proposal; path [n_path] are its accepted nodes, from depth 1 on. */
void sd_acceptance_observe(sd_acceptance* acceptance, const sd_proposal* proposal, const int32_t* path,
                           int n_path);

/* Limit the weight of each rate to n cases, so that new cases count more. */
void sd_acceptance_weaken(sd_acceptance* acceptance, double n);

/* The middle of a bin of confidences. */
double sd_acceptance_confidence(int bin);

/* Chance that a draft token of this confidence and depth (≥ 1) is accepted if its parent is. */
double sd_acceptance_chance(const sd_acceptance* acceptance, double confidence, int depth);

/* The same before the confidence is known, for depths 1 to n: chance [n + 1]; chance[0] is 1. */
void sd_acceptance_by_depth(const sd_acceptance* acceptance, double* chance, int n);
