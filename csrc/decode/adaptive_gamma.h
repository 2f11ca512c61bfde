/* gamma="auto": the policy of a session's drafter, and the throughput it maximizes. */
#pragma once

#include "drafter_policy.h"

/* Loads: 1 sequence, 2 to 3, 4 to 7, and so on; the last has 128 and more. */
#define SD_ADAPTIVE_LOADS 8

/* What depends on the number of sequences in a round: measured rates, costs of drafting, pauses. */
typedef struct sd_adaptive_load {
    int known;                         /* 0: no round had so many */
    double tokens, seconds, n_drafted; /* of sd_throughput */
    sd_cost_model draft;               /* this and the rest: of sd_drafter_policy */
    double n_draft_tokens, steps;
    sd_drafter_schedule schedule;
} sd_adaptive_load;

/* Plain numbers: it may be copied, and kept from one session to the next. */
typedef struct sd_adaptive_gamma {
    sd_throughput throughput;
    sd_drafter_policy drafter;
    int load;                                  /* index of the load that both are in */
    sd_adaptive_load loads[SD_ADAPTIVE_LOADS]; /* the others */
} sd_adaptive_gamma;

/* Forget everything. */
void sd_adaptive_gamma_reset(sd_adaptive_gamma* adaptive);

/* Start a session of n_slots sequences with the state of an earlier one. n_extra: extra query tokens after
 * every row of a tree. */
void sd_adaptive_gamma_start(sd_adaptive_gamma* adaptive, sd_expert_reads expert_reads, int n_extra,
                             int n_slots);

/* Enter the load of n_open sequences; a new one starts from the estimates of the last. */
void sd_adaptive_gamma_enter(sd_adaptive_gamma* adaptive, int n_open);

/* Is the drafter paused for at least the next round? */
int sd_adaptive_gamma_paused(const sd_adaptive_gamma* adaptive);

/* Begin a round of n_open sequences. gamma: most draft tokens of a sequence. Returns 1 if the round drafts,
 * for those sequences of which sd_drafter_policy_asks, else 0. */
int sd_adaptive_gamma_begin(sd_adaptive_gamma* adaptive, int n_open, int gamma);

/* Costs and tokens of a round of the batch. */
typedef struct sd_adaptive_gamma_round {
    int n_asked;                                   /* sequences that the drafter was asked for */
    int n_rows, n_draft_tokens, n_steps, n_tokens; /* draft tokens: rows of the trees without the roots */
    double draft_s, rest_s;                        /* seconds of proposing, and of all else */
} sd_adaptive_gamma_round;

void sd_adaptive_gamma_end(sd_adaptive_gamma* adaptive, const sd_adaptive_gamma_round* round);
