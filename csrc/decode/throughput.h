/* Throughput of rounds, and λ: what a second is worth in tokens.
 *
 * Rounds are a renewal process: in the long run the tokens per second are E(tokens) / E(seconds) of a round.
 * With λ as this rate, the best policy spends a second iff it adds at least λ tokens (Dinkelbach). λ is never
 * below the rate of plain decoding, because a round may have no draft tokens.
 *
 * Plain numbers: may be copied; starts as zeros. */
#pragma once

#include "config.h"
#include "cost_model.h"

typedef struct sd_throughput {
    /* Slowness of the machine now, relative to usual. All seconds below are measured seconds divided by
     * it. */
    double slowness;
    /* Rounds in a row that were slower than expected (> 0) or faster (< 0), and the least of their ratios. */
    int n_apart;
    double nearest;
    /* Seconds of a round from the target's forward pass on, by rows of the batch. */
    sd_cost_model target;
    /* Tokens and seconds of the last rounds with drafting, and the weight of these rounds. */
    double tokens, seconds, n_drafted;
    int starting; /* 1: no round of this session has ended yet */

    /* The fields below belong to the current round. */

    int n_open;        /* sequences */
    double plain_rate; /* tokens per second of plain decoding; 0: not known */
    /* Tokens and seconds of the best round planned so far. */
    double best_tokens, best_seconds;
} sd_throughput;

/* Expert reads of a target's forward passes. */
sd_expert_reads sd_expert_reads_of(const sd_config* target);

/* Start a session with the state of an earlier one; expert_reads: of its target. */
void sd_throughput_start(sd_throughput* throughput, sd_expert_reads expert_reads);

/* Begin a round of n_open sequences. */
void sd_throughput_begin(sd_throughput* throughput, int n_open);

/* Consider a possible round: raises λ if it is the best so far. */
void sd_throughput_plan(sd_throughput* throughput, double tokens, double seconds);

/* Has plain decoding of about so many sequences been measured? */
int sd_throughput_knows_plain(const sd_throughput* throughput);

/* λ: tokens per second of the batch, as planned and as the last rounds were. */
double sd_throughput_rate(const sd_throughput* throughput);

/* Expected tokens per second of the best round planned, relative to plain decoding; 1 if not known. */
double sd_throughput_gain(const sd_throughput* throughput);

/* Learn from a round with n_rows rows of the target. draft_s: measured seconds of proposing; rest_s: of
 * everything else. expected_draft_s: by the drafters' cost models; 0 without drafting, below 0 if not known
 * yet. Call before sd_throughput_add of the same round. */
void sd_throughput_measure(sd_throughput* throughput, int n_rows, double draft_s, double rest_s,
                           double expected_draft_s);

/* Learn from a round that drafted, for draft_s seconds at the machine's usual speed, and added n_tokens. Its
 * other seconds are those of the cost model, so that λ and the costs that it weighs agree however noisy times
 * are. */
void sd_throughput_add(sd_throughput* throughput, int n_rows, int n_tokens, double draft_s);
