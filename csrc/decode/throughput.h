/* What a round takes, and how many tokens a second the run gives: the price of a second, in tokens.
 *
 * Rounds are a renewal process: over many of them the tokens per second are E(tokens) / E(seconds) of one,
 * and the policy with the most of them spends seconds iff they bring at least λ tokens each, λ being these
 * tokens per second themselves (Dinkelbach). λ is never below that of plain decoding, as a round without
 * guesses is among the choices.
 *
 * Plain numbers: it may be copied, and begins as zeros. */
#pragma once

#include "config.h"
#include "cost_model.h"

typedef struct sd_throughput {
    /* How much slower than usual the machine is now. All seconds below are measured seconds over this. */
    double slowness;
    /* Seconds of a round's forward pass of the target and all that follows it, by rows of the batch. */
    sd_cost_model target;
    /* Tokens and seconds of the last rounds with drafting, and the weight of these rounds. */
    double tokens, seconds, n_drafted;
    int starting; /* 1: no round of this session has ended yet */

    /* The fields below are of the round that has begun. */

    int n_open;        /* sequences */
    double plain_rate; /* tokens per second of plain decoding; 0: not known */
    /* Tokens and seconds of the best round that is planned so far. */
    double best_tokens, best_seconds;
} sd_throughput;

/* What a target's forward passes read, weight by weight. */
sd_expert_reads sd_expert_reads_of(const sd_config* target);

/* A session begins with what an earlier one has learned; reading: of its target. */
void sd_throughput_start(sd_throughput* throughput, sd_expert_reads expert_reads);

/* A round of n_open sequences begins. */
void sd_throughput_begin(sd_throughput* throughput, int n_open);

/* A round that could be: raises λ if it is the best so far. */
void sd_throughput_plan(sd_throughput* throughput, double tokens, double seconds);

/* Has plain decoding of about so many sequences been measured? */
int sd_throughput_knows_plain(const sd_throughput* throughput);

/* λ: tokens per second of the batch, as planned and as the last rounds were. */
double sd_throughput_rate(const sd_throughput* throughput);

/* The round has run n_rows rows of the target. draft_s: measured seconds of proposing; rest_s: of all else.
 * expected_draft_s: the seconds that the drafters' cost models say, 0 without drafting, or below 0 where a
 * model cannot say yet. Comes before the calls below of the same round. */
void sd_throughput_measure(sd_throughput* throughput, int n_rows, double draft_s, double rest_s,
                           double expected_draft_s);

/* The round drafted, for draft_s seconds of a machine of usual speed, and gave n_tokens. */
void sd_throughput_add(sd_throughput* throughput, int n_rows, int n_tokens, double draft_s, double rest_s);
