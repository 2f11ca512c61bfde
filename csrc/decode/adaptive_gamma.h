/* A gamma that chooses itself (section 3.5 of Leviathan et al. 2023: varying gamma during the run).
 *
 * Rounds are a renewal process: over many of them the tokens per second are E(tokens) / E(seconds) of one,
 * and the policy with the most of them drafts another guess iff the tokens it is expected to bring are at
 * least λ times the seconds it costs, λ being these tokens per second themselves (Dinkelbach). All three are
 * learnt from the rounds: what a guess brings, from its draft's confidence and its depth; what it costs, from
 * the times of draft and target; and λ, which is never below that of plain decoding, as a round without
 * guesses is among the choices.
 *
 * Where drafting does not pay there are rounds without it, in stretches that double, and then a few trial
 * rounds; where it pays, now and then one without it, and one with more than pays, so that a change is seen.
 *
 * Only numbers: it may be copied, and kept from one session to the next. The sequences of a session share
 * it, and with several of them seconds and tokens are those of the whole batch. */
#ifndef SD_ADAPTIVE_GAMMA_H
#define SD_ADAPTIVE_GAMMA_H

#include "cost_model.h"
#include "proposal.h"

#define SD_ADAPTIVE_GAMMA_CONFIDENCES 14 /* bins of the draft's confidence */
#define SD_ADAPTIVE_GAMMA_DEPTHS 10      /* depths told apart; deeper guesses count as the last */
#define SD_ADAPTIVE_GAMMA_HORIZON 64     /* longest chain that is planned */

/* A rate that forgets: `yes` of `n` cases, both decaying. Begins as zeros. */
typedef struct sd_share {
    double yes, n;
} sd_share;

/* Only doubles, so that it is an array in Python. */
struct sd_adaptive_gamma {
    /* How much slower than usual the machine is now. All seconds below are measured seconds over this. */
    double slowness;
    /* Seconds of a round's forward pass of the target and all that follows it, by rows of the batch. */
    sd_cost_model target;
    /* Seconds of drafting, by steps of the batch: guesses in a row. */
    sd_cost_model draft;

    /* Acceptance rate of the last FEW guesses. */
    sd_share lately;
    /* Acceptance rate of the last MANY guesses. */
    sd_share whole;
    /* Acceptance rate of the first guess at each depth. */
    sd_share by_depth[SD_ADAPTIVE_GAMMA_DEPTHS];
    /* Acceptance rate by the draft's confidence. */
    sd_share by_confidence[SD_ADAPTIVE_GAMMA_CONFIDENCES];
    /* Acceptance rate by confidence and depth. */
    sd_share by_both[SD_ADAPTIVE_GAMMA_CONFIDENCES][SD_ADAPTIVE_GAMMA_DEPTHS];
    /* How often each confidence occurs: at depth 1, and deeper. */
    double confidences[2][SD_ADAPTIVE_GAMMA_CONFIDENCES];
    /* 1: the confidence of a guess is known before its row is spent (sd_proposal_worth_verifying). */
    double looks;

    /* Tokens and seconds of the last rounds with drafting, and the weight of these rounds. */
    double tokens, seconds, n_drafted;
    /* Tokens behind plain decoding since the last time level with it; of a sequence. */
    double loss;
    /* Tokens ahead of plain decoding since drafting was given up last; of a sequence. */
    double won;
    /* Mean rows and steps of a sequence in a round. */
    double rows, steps;
    /* Tokens still to come without drafting. */
    double plain_left;
    /* Tokens without drafting when drafting is given up next time. */
    double stretch;
    /* Rounds still to come that guess whatever is expected. */
    double trial_left;
    /* Rounds so far. */
    double n_rounds;
    /* Round of the next exploration, and the gap to the one after it. */
    double explore_at, explore_gap;
    /* Round of the next control round without drafting, and the gap to the one after it. */
    double plain_at, plain_gap;
    /* Rounds since the last one with drafting. */
    double idle;

    /* The fields below are of the round that has begun. */

    /* Sequences. */
    double n_open;
    /* Guesses of one sequence for which the arrays below are filled. */
    double horizon;
    /* 1: the round drafts. */
    double drafting;
    /* 1: it is the session's first round. */
    double starting;
    /* Guesses that are made whatever is expected, to learn what they cost. */
    double explore_to;
    /* λ: tokens per second of the batch. */
    double rate;
    /* Tokens per second of plain decoding. */
    double plain_rate;
    /* Seconds of the target by guesses of one sequence, the other sequences making their usual number. */
    double target_s[SD_ADAPTIVE_GAMMA_HORIZON + 1];
    /* Seconds of drafting by steps of one sequence, the other sequences making their usual number. */
    double draft_s[SD_ADAPTIVE_GAMMA_HORIZON + 1];
    /* Chance that the guess at a depth is accepted if its parent is, before its confidence is known; [0] is
     * 1. */
    double chance[SD_ADAPTIVE_GAMMA_HORIZON + 1];
};

#define SD_ADAPTIVE_GAMMA_SIZE (sizeof(sd_adaptive_gamma) / sizeof(double))

/* What a round of the batch took. */
typedef struct sd_adaptive_gamma_round {
    int n_rows, n_steps, n_tokens;
    double draft_s, rest_s; /* seconds of proposing, and of all else */
} sd_adaptive_gamma_round;

/* A policy that has learnt nothing. */
void sd_adaptive_gamma_reset(sd_adaptive_gamma* policy);

/* Is each of the numbers [SD_ADAPTIVE_GAMMA_SIZE] f64 (borrowed) in the range of its field? Then all calls
 * below are defined for them. */
sd_status sd_adaptive_gamma_check(const double* numbers);

/* A session begins with what an earlier one has learnt. */
void sd_adaptive_gamma_start(sd_adaptive_gamma* policy);

/* A round of n_open sequences begins. Returns whether it drafts: 0 also where gamma, the most guesses of a
 * sequence, is. */
int sd_adaptive_gamma_begin(sd_adaptive_gamma* policy, int n_open, int gamma);

/* One sequence's verdict in a round that drafted. */
void sd_adaptive_gamma_observe(sd_adaptive_gamma* policy, const sd_proposal* proposal, const int32_t* path,
                               int n_path);

void sd_adaptive_gamma_end(sd_adaptive_gamma* policy, const sd_adaptive_gamma_round* round);

/* Does a guess pay after a node of this path_prob and depth, in a proposal of n_guesses? known: the chance
 * that the guess is accepted if its parent is, or below 0 if the guess has not been drafted yet. */
int sd_adaptive_gamma_pays(const sd_adaptive_gamma* policy, double path_prob, int depth, int n_guesses,
                           double known);

/* The middle of a bin of confidences. */
double sd_adaptive_gamma_confidence(int bin);

/* The chance that a guess of this confidence and depth (≥ 1) is accepted if its parent is. */
double sd_adaptive_gamma_chance(const sd_adaptive_gamma* policy, double confidence, int depth);

/* Accepted tokens that one more row of verification, one more forward pass of the draft must bring to pay;
 * 0 for NULL. */
double sd_adaptive_gamma_node_price(const sd_adaptive_gamma* policy);
double sd_adaptive_gamma_step_price(const sd_adaptive_gamma* policy);

#endif
