/* gamma="auto": the policy of a session's one drafter, and the throughput that it goes by. */
#pragma once

#include "drafter_policy.h"

/* Plain numbers: it may be copied, and kept from one session to the next. */
typedef struct sd_adaptive_gamma {
    sd_throughput throughput;
    sd_drafter_policy drafter;
} sd_adaptive_gamma;

/* One that has learned nothing. */
void sd_adaptive_gamma_reset(sd_adaptive_gamma* adaptive);

/* A session begins with what an earlier one has learned. n_extra: extra query tokens after every row of a
 * tree. */
void sd_adaptive_gamma_start(sd_adaptive_gamma* adaptive, sd_expert_reads expert_reads, int n_extra);

/* Does the drafter stay out of the next round at least? */
int sd_adaptive_gamma_paused(const sd_adaptive_gamma* adaptive);

/* A round of n_open sequences begins. gamma: most guesses of a sequence. Returns 1 if the round drafts, else
 * 0. */
int sd_adaptive_gamma_begin(sd_adaptive_gamma* adaptive, int n_open, int gamma);

/* What a round of the batch took. */
typedef struct sd_adaptive_gamma_round {
    int n_asked; /* sequences that might have guesses; 0: the drafter was not asked */
    int n_rows, n_draft_tokens, n_steps, n_tokens; /* guesses: rows of the trees but the roots */
    double draft_s, rest_s;                        /* seconds of proposing, and of all else */
} sd_adaptive_gamma_round;

void sd_adaptive_gamma_end(sd_adaptive_gamma* adaptive, const sd_adaptive_gamma_round* round);
