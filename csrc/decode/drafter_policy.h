/* Whether a drafter drafts in a round, and whether another draft token pays (section 3.5 of Leviathan et al.
 * 2023: varying gamma during the run).
 *
 * A draft token pays iff its expected accepted tokens are at least λ times the seconds it costs
 * (throughput.h). The gain is learned by the draft's confidence and depth; the cost, from the times of draft
 * and target. A drafter that is asked after others in a round only gains tokens that those have not proposed.
 *
 * A schedule pauses drafters that do not pay (drafter_schedule.h).
 *
 * Plain numbers: may be copied and kept between sessions. All sequences of a session share it. */
#pragma once

#include "acceptance.h"
#include "drafter_schedule.h"
#include "throughput.h"

#define SD_POLICY_EXPECTED 7 /* bins by the accepted tokens that earlier drafters of the round expect */
#define SD_POLICY_HORIZON 64 /* longest chain that is planned */

struct sd_drafter_policy {
    sd_acceptance acceptance;
    sd_cost_model draft; /* seconds of drafting, by steps of the batch */
    sd_mean right;       /* accepted tokens per proposal */
    /* Share of these tokens that no earlier drafter of the round had, by what those expected. */
    sd_mean added[SD_POLICY_EXPECTED];
    double n_draft_tokens, steps; /* means per proposal */
    /* Seconds of a proposal without a step: the drafter looked and found nothing. */
    sd_mean empty_s;

    sd_drafter_schedule schedule; /* when it is tried or skipped regardless of its cost */

    /* Extra query tokens after every row of a tree: this drafter's, when it drafts; another's, in any
     * case. */
    int n_extra, n_other;

    /* The fields below belong to the current round. */

    int horizon; /* draft tokens of one sequence for which the arrays below are filled */
    /* The gamma with the most tokens per second, by the chances of each depth alone. */
    int planned;
    int drafting; /* 1: the drafter drafts */
    int n_asked;  /* sequences to draft for: all, or in a trial a share */
    /* Draft tokens made even if they do not pay, and most of them, to learn their cost. */
    int explore_to, explore_most;
    double rate; /* λ: tokens per second of the batch */
    /* Seconds of the target by draft tokens of every sequence, per sequence. */
    double target_s[SD_POLICY_HORIZON + 1];
    /* Seconds of drafting by steps of every sequence, per sequence. */
    double draft_s[SD_POLICY_HORIZON + 1];
    /* Chance that the draft token at a depth is accepted if its parent is, before its confidence is known;
     * [0] is 1. */
    double chance[SD_POLICY_HORIZON + 1];
    /* Seconds of one more row of the target, and of one more step of the draft. */
    double row_s, step_s;
};

/* Forget everything. */
void sd_drafter_policy_reset(sd_drafter_policy* policy);

/* Tell the throughput what rounds with this drafter are expected to take and yield. gamma: most draft tokens
 * of a sequence. Call between sd_throughput_begin and sd_drafter_policy_begin. */
void sd_drafter_policy_plan(sd_drafter_policy* policy, sd_throughput* throughput, int gamma);

/* Begin a round in which the batch has n_rows rows before this drafter is asked: one for each sequence plus
 * those of earlier drafters. gamma: most draft tokens of a sequence. Returns 1 if the drafter drafts, else
 * 0. */
int sd_drafter_policy_begin(sd_drafter_policy* policy, const sd_throughput* throughput, int gamma,
                            int n_rows);

/* Does the drafter draft for sequence i of the round? */
int sd_drafter_policy_asks(const sd_drafter_policy* policy, const sd_throughput* throughput, int i);

/* Does a draft token pay after a node of this path_prob and depth, one of n_draft_tokens? known: the chance
 * that it is accepted if its parent is; below 0 if it has not been drafted yet. */
int sd_drafter_policy_pays(const sd_drafter_policy* policy, double path_prob, int depth, int n_draft_tokens,
                           double known);

/* Chance that the draft token at a depth (≥ 1) is accepted if its parent is, before its confidence is
 * known. */
double sd_drafter_policy_chance(const sd_drafter_policy* policy, int depth);

/* Share of this drafter's accepted tokens that earlier drafters of the round lack, where those expect
 * `expected` tokens. It is the path_prob of the root. */
double sd_drafter_policy_new_share(const sd_drafter_policy* policy, double expected);

/* Accepted tokens of a proposal by itself; 1 before anything is known. */
double sd_drafter_policy_right(const sd_drafter_policy* policy);

/* Learn from the verdict on a proposal: its nodes path [n_path] were accepted, n_added of them new relative
 * to earlier drafters, which had expected `expected`. */
void sd_drafter_policy_observe(sd_drafter_policy* policy, const sd_proposal* proposal, const int32_t* path,
                               int n_path, double expected, int n_added);

/* Expected seconds of n_steps for n_asked sequences of the round; below 0: not known yet. */
double sd_drafter_policy_expects(const sd_drafter_policy* policy, const sd_throughput* throughput,
                                 int n_asked, int n_steps);

/* A drafter's part in a round. */
typedef struct sd_drafter_round {
    int n_asked; /* sequences for which it was asked; 0: not in this round */
    /* Rows of the batch before it was asked; its draft tokens; their depths, summed over the sequences. */
    int n_rows, n_draft_tokens, n_steps;
    int n_added, n_tokens; /* accepted tokens that it added; all tokens of the round */
    double draft_s;        /* measured seconds of proposing */
} sd_drafter_round;

/* End the round, after the throughput has been measured. Returns the seconds of drafting at the machine's
 * usual speed. */
double sd_drafter_policy_end(sd_drafter_policy* policy, const sd_throughput* throughput,
                             const sd_drafter_round* round);

/* Accepted tokens that one more forward pass of the draft must add to pay; 0 for NULL. */
double sd_drafter_policy_step_price(const sd_drafter_policy* policy);

/* Accepted tokens that a row of the target must add to pay, on average; 0 for NULL, and in an exploration. */
double sd_drafter_policy_row_price(const sd_drafter_policy* policy);
