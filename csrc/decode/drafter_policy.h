/* Whether a drafter drafts in a round, and whether another guess pays (section 3.5 of Leviathan et al. 2023:
 * varying gamma during the run).
 *
 * A guess pays iff the tokens that it is expected to bring are at least λ times the seconds that it costs
 * (throughput.h). Its gain is learned from the draft's confidence and the depth; its cost, from the
 * times of draft and target. A drafter that is asked after others in a round brings only what those have not
 * proposed.
 *
 * What a schedule makes of it (drafter_schedule.h) is that drafters which do not pay rest.
 *
 * Plain numbers: it may be copied, and kept from one session to the next. The sequences of a session share
 * it. */
#pragma once

#include "acceptance.h"
#include "drafter_schedule.h"
#include "throughput.h"

#define SD_POLICY_EXPECTED 7 /* bins of the tokens that earlier drafters of the round expect to bring */
#define SD_POLICY_HORIZON 64 /* longest chain that is planned */

struct sd_drafter_policy {
    sd_acceptance acceptance;
    sd_cost_model draft; /* seconds of drafting, by steps of the batch: guesses in a row */
    sd_mean right;       /* tokens that a proposal has right */
    /* Of these tokens, the share that no earlier drafter of the round had, by what those expected. */
    sd_mean added[SD_POLICY_EXPECTED];
    double n_draft_tokens, steps; /* guesses and steps of a proposal */
    /* Seconds of a round in which the drafter was asked and took no step: it looked and found nothing. */
    sd_mean empty_s;

    sd_drafter_schedule schedule; /* whether it is tried or left out whatever the price is */

    /* Extra query tokens after every row of a tree, where this drafter drafts; and those of another drafter,
     * whether this one drafts or not. */
    int n_extra, n_other;

    /* The fields below are of the round that has begun. */

    int horizon; /* guesses of one sequence for which the arrays below are filled */
    /* The gamma with the most tokens per second, by the chances of each depth alone. */
    int planned;
    int drafting; /* 1: the drafter drafts */
    /* Guesses that are made even if they do not pay, to learn what they cost. */
    int explore_to;
    double rate; /* λ: tokens per second of the batch */
    /* Seconds of the target by guesses of one sequence, the other sequences making the planned number. */
    double target_s[SD_POLICY_HORIZON + 1];
    /* Seconds of drafting by steps of one sequence, the other sequences making the planned number. */
    double draft_s[SD_POLICY_HORIZON + 1];
    /* Chance that the guess at a depth is accepted if its parent is, before its confidence is known; [0] is
     * 1. */
    double chance[SD_POLICY_HORIZON + 1];
    /* Seconds that one more row of the target takes, one more step of the draft. */
    double row_s, step_s;
};

/* A policy that has learned nothing. */
void sd_drafter_policy_reset(sd_drafter_policy* policy);

/* Tell the throughput what rounds with this drafter would be like. gamma: most guesses of a sequence. Comes
 * between sd_throughput_begin and sd_drafter_policy_begin. */
void sd_drafter_policy_plan(sd_drafter_policy* policy, sd_throughput* throughput, int gamma);

/* A round begins, in which the batch has n_rows rows before this drafter is asked: one for each sequence and
 * those of earlier drafters. gamma: most guesses of a sequence. Returns 1 if the drafter drafts, else 0. */
int sd_drafter_policy_begin(sd_drafter_policy* policy, const sd_throughput* throughput, int gamma,
                            int n_rows);

/* Does a draft token pay after a node of this path_prob and depth, one of n_draft_tokens? known: the chance
 * that the guess is accepted if its parent is, or below 0 if the guess has not been drafted yet. */
int sd_drafter_policy_pays(const sd_drafter_policy* policy, double path_prob, int depth, int n_draft_tokens,
                           double known);

/* The chance that the guess at a depth (≥ 1) is accepted if its parent is, before its confidence is known. */
double sd_drafter_policy_chance(const sd_drafter_policy* policy, int depth);

/* The share of this drafter's right tokens that earlier drafters of the round have not, where those expect
 * to bring `expected` tokens. It is the path_prob of the root. */
double sd_drafter_policy_new_share(const sd_drafter_policy* policy, double expected);

/* Tokens that a proposal brings by itself; 1 as long as nothing is known. */
double sd_drafter_policy_right(const sd_drafter_policy* policy);

/* The verdict on a proposal: its nodes path [n_path] were right, n_added of them beyond what earlier drafters
 * had, which had expected `expected`. */
void sd_drafter_policy_observe(sd_drafter_policy* policy, const sd_proposal* proposal, const int32_t* path,
                               int n_path, double expected, int n_added);

/* Seconds of n_steps; below 0 where they cannot be said yet. */
double sd_drafter_policy_expects(const sd_drafter_policy* policy, int n_steps);

/* What a drafter did in a round. */
typedef struct sd_drafter_round {
    int n_asked; /* sequences for which it was asked; 0: not in this round */
    /* Rows of the batch before it was asked; its guesses; their depths, added over the sequences. */
    int n_rows, n_draft_tokens, n_steps;
    int n_added, n_tokens; /* tokens that it added; all tokens of the round */
    double draft_s;        /* measured seconds of proposing */
} sd_drafter_round;

/* The round is over, and the throughput has been measured. Returns the seconds of drafting, of a machine of
 * usual speed. */
double sd_drafter_policy_end(sd_drafter_policy* policy, const sd_throughput* throughput,
                             const sd_drafter_round* round);

/* Accepted tokens that one more forward pass of the draft must bring to pay; 0 for NULL. */
double sd_drafter_policy_step_price(const sd_drafter_policy* policy);
