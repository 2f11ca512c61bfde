/* gamma="auto": the policy of a session's drafter, and the throughput it maximizes. */
#pragma once

#include "drafter_policy.h"

/* Plain numbers: it may be copied, and kept from one session to the next. */
typedef struct sd_adaptive_gamma {
    sd_throughput throughput;
    sd_drafter_policy drafter;
} sd_adaptive_gamma;

/* Forget everything. */
void sd_adaptive_gamma_reset(sd_adaptive_gamma* adaptive);

/* Start a session with the state of an earlier one. n_extra: extra query tokens after every row of a tree. */
void sd_adaptive_gamma_start(sd_adaptive_gamma* adaptive, sd_expert_reads expert_reads, int n_extra);

/* Is the drafter paused for at least the next round? */
int sd_adaptive_gamma_paused(const sd_adaptive_gamma* adaptive);

/* Begin a round of n_open sequences. gamma: most draft tokens of a sequence. Returns 1 if the round drafts,
 * else 0. */
int sd_adaptive_gamma_begin(sd_adaptive_gamma* adaptive, int n_open, int gamma);

/* Costs and tokens of a round of the batch. */
typedef struct sd_adaptive_gamma_round {
    int n_asked; /* sequences that could have draft tokens; 0: the drafter was not asked */
    int n_rows, n_draft_tokens, n_steps, n_tokens; /* draft tokens: rows of the trees without the roots */
    double draft_s, rest_s;                        /* seconds of proposing, and of all else */
} sd_adaptive_gamma_round;

void sd_adaptive_gamma_end(sd_adaptive_gamma* adaptive, const sd_adaptive_gamma_round* round);
