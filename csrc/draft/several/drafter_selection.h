/* Which of several drafters pay: what each brings beyond those asked before it, and what that costs.
 *
 * Rounds are a renewal process. The policy with the most tokens per second asks a drafter iff the tokens it
 * is expected to add are at least λ times the seconds it adds, λ being the tokens per second of the policy
 * itself. All is learnt from the rounds and forgets; what a drafter adds depends on how much those before it
 * expect to have accepted. Now and then it is left out where it would be asked, so that it is known what the
 * target takes without its rows. Only numbers, no drafters; it never sees a token. */
#ifndef SD_DRAFTER_SELECTION_H
#define SD_DRAFTER_SELECTION_H

#include "cost_model.h"

#define SD_SELECTION_BINS 7 /* of the tokens that are expected already */

/* One drafter. All means forget. */
typedef struct sd_drafter_stats {
    /* Accepted tokens beyond those of the drafters asked before it, by the tokens that were expected
     * already. */
    double added[SD_SELECTION_BINS];
    /* Proposals that `added` is a sum over. */
    double n[SD_SELECTION_BINS];
    /* Tokens that it would have brought by itself, over n_alone proposals. */
    double alone, n_alone;
    /* Seconds and nodes of n_spent proposals. */
    double seconds, nodes, n_spent;
    /* Time of its last proposal. */
    double asked_at;
    /* Wait before a trial, in multiples of its own cost. */
    double retry_after;
    /* Rounds in which it was asked, counted up to the first few. */
    int n_asked;
    /* Rounds still to come in which it is asked whatever is expected. */
    int trial;
    /* Rounds in which it was asked since the last control pause. */
    int streak;
    /* Length of `streak` at which the next control pause begins. */
    int gap;
    /* Rounds of the control pause still to come: it is left out though it would be asked. */
    int pause;
    /* 1: asked in this round, for some sequence. */
    int asked;
    /* 1: left out in this round because of a control pause. */
    int skipped_for_control;
} sd_drafter_stats;

/* What all drafters have in common; begins as zeros. */
typedef struct sd_selection {
    /* Of the last rounds. */
    double tokens, seconds;
    /* Seconds of the target by rows of the batch. */
    sd_cost_model target;
} sd_selection;

/* Shall this drafter be asked for a sequence of which `expected` tokens are expected already? n_rows: of the
 * batch so far. */
int sd_selection_asks(const sd_selection* selection, sd_drafter_stats* stats, double expected, int n_rows,
                      double now);

/* It has been asked, in one call for n sequences, and proposed n_nodes in all. */
void sd_selection_spend(sd_drafter_stats* stats, int n, int n_nodes, double seconds, double now);

/* One of its proposals has been judged: `alone` tokens of it were right, `added` of them beyond what the
 * drafters before it had, from which `expected` had been expected. */
void sd_selection_learn(sd_drafter_stats* stats, double expected, double alone, double added);

/* Tokens that its proposals bring, by themselves; 1 as long as nothing is known. */
double sd_selection_alone(const sd_drafter_stats* stats);

/* A round of the batch is over: so many tokens in so many seconds, target_s of them in the target, on n_rows.
 * And of each drafter. */
void sd_selection_end_round(sd_selection* selection, int n_tokens, double seconds, int n_rows,
                            double target_s);
void sd_selection_end_round_of(sd_drafter_stats* stats);

#endif
