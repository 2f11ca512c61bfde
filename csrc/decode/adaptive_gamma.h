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
#define SD_ADAPTIVE_GAMMA_DEPTHS 10      /* guesses in a row by themselves, those further on together */
#define SD_ADAPTIVE_GAMMA_HORIZON 64     /* guesses in a row that are thought of */

/* How often something was so; forgets. Begins as zeros. */
typedef struct sd_share {
    double yes, n;
} sd_share;

struct sd_adaptive_gamma {
    double slowness; /* of the machine, now: all seconds here are those measured over this */
    sd_cost_model target;  /* by rows of the batch: the forward pass and all that comes after it */
    sd_cost_model draft;   /* by steps of the batch: guesses in a row */

    sd_share lately;                                       /* are the last few guesses accepted, */
    sd_share whole;                                        /* all, */
    sd_share by_depth[SD_ADAPTIVE_GAMMA_DEPTHS];                     /* first guesses at a depth, */
    sd_share by_confidence[SD_ADAPTIVE_GAMMA_CONFIDENCES];           /* those of a confidence, */
    sd_share by_both[SD_ADAPTIVE_GAMMA_CONFIDENCES][SD_ADAPTIVE_GAMMA_DEPTHS]; /* of both? */
    double confidences[2][SD_ADAPTIVE_GAMMA_CONFIDENCES];            /* how often each occurs: at depth 1, further on */
    double looks; /* guesses may be looked at before they are drawn (sd_proposal_worth_verifying) */

    double tokens, seconds, n_drafted; /* of the last rounds with drafting, with how much weight */
    double loss, won;                  /* tokens behind and ahead of plain decoding, of a sequence */
    double rows, steps;                /* of a sequence in a round, means */
    double plain_left, stretch;        /* tokens to come without drafting; next time */
    double trial_left;                 /* rounds that guess in any case */
    double n_rounds, explore_at, explore_gap, plain_at,
        plain_gap; /* rounds so far; when to explore, to be plain */
    double idle;   /* rounds since the last with drafting */

    /* of the round that has begun */
    double n_open, horizon, drafting, starting;
    double explore_to;                    /* guesses to make in any case, to see what they take */
    double rate;                          /* λ: tokens per second of the batch */
    double plain_rate;                    /* of plain decoding */
    double target_s[SD_ADAPTIVE_GAMMA_HORIZON + 1]; /* by guesses of one sequence, the others as they use to be */
    double draft_s[SD_ADAPTIVE_GAMMA_HORIZON + 1];  /* by its steps */
    double chance[SD_ADAPTIVE_GAMMA_HORIZON + 1];   /* of a guess at a depth before its confidence is known; [0] is 1 */
};

#define SD_ADAPTIVE_GAMMA_SIZE (sizeof(sd_adaptive_gamma) / sizeof(double))

/* What a round of the batch took. */
typedef struct sd_adaptive_gamma_round {
    int n_rows, n_steps, n_tokens;
    double draft_s, rest_s; /* seconds of proposing, and of all else */
} sd_adaptive_gamma_round;

/* A policy that knows nothing. */
void sd_adaptive_gamma_reset(sd_adaptive_gamma* policy);

/* Could a policy have learnt these numbers [SD_ADAPTIVE_GAMMA_SIZE]? Each is in the range of its field: whatever a policy does
 * with them is then defined. */
sd_status sd_adaptive_gamma_check(const double* numbers);

/* A session begins with what an earlier one has learnt. */
void sd_adaptive_gamma_start(sd_adaptive_gamma* policy);

/* A round of n_open sequences begins. Returns whether it drafts: 0 also where gamma, the most guesses of a
 * sequence, is. */
int sd_adaptive_gamma_begin(sd_adaptive_gamma* policy, int n_open, int gamma);

/* One sequence's verdict in a round that drafted. */
void sd_adaptive_gamma_observe(sd_adaptive_gamma* policy, const sd_proposal* proposal, const int32_t* path, int n_path);

void sd_adaptive_gamma_end(sd_adaptive_gamma* policy, const sd_adaptive_gamma_round* round);

/* Does a guess pay that hangs on a node of this path_prob and depth, in a proposal of n_guesses? known: the
 * guess's chance to be accepted if its parent is, or below 0 when nothing has been spent on it yet. */
int sd_adaptive_gamma_pays(const sd_adaptive_gamma* policy, double path_prob, int depth, int n_guesses, double known);

/* The middle of a bin of confidences. */
double sd_adaptive_gamma_confidence(int bin);

/* The chance that a guess of this confidence and depth (≥ 1) is accepted if its parent is. */
double sd_adaptive_gamma_chance(const sd_adaptive_gamma* policy, double confidence, int depth);

/* Accepted tokens that one more row of verification, one more forward pass of the draft must bring to pay;
 * 0 for NULL. */
double sd_adaptive_gamma_node_price(const sd_adaptive_gamma* policy);
double sd_adaptive_gamma_step_price(const sd_adaptive_gamma* policy);

#endif
