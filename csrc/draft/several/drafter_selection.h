/* Which of several drafters pay: what each brings beyond those asked before it, and what that costs.
 *
 * Rounds are a renewal process. The policy with the most tokens per second asks a drafter iff the tokens it is
 * expected to add are at least λ times the seconds it adds, λ being the tokens per second of the policy
 * itself. All is learnt from the rounds and forgets; what a drafter adds depends on how much those before it
 * expect to have accepted. Now and then it is left out where it would be asked, so that it is known what the
 * target takes without its rows. Only numbers, no drafters; it never sees a token. */
#ifndef SD_DRAFTER_SELECTION_H
#define SD_DRAFTER_SELECTION_H

#include "cost_model.h"

#define SD_SELECTION_BINS 7 /* of the tokens that are expected already */

/* One drafter. */
typedef struct sd_drafter_stats {
    double added[SD_SELECTION_BINS];   /* tokens beyond those of the drafters asked before it, */
    double n[SD_SELECTION_BINS];       /* over so many proposals; both forget */
    double alone, n_alone;          /* tokens that it would have brought without the others */
    double seconds, nodes, n_spent; /* over so many proposals */
    double asked_at;                /* when it was asked last */
    double retry_after;                 /* until a trial, in times of what it takes */
    int n_asked;                    /* rounds in which it was asked: the first few are counted; */
    int trial;                      /* to come in which it is asked whatever is expected of it; */
    int streak, gap;                /* in which it was asked since the last pause; until the next; */
    int pause;                      /* to come in which it is left out, though it would be asked */
    int asked, skipped_for_control;              /* in this round, for any sequence: was it asked, was it left out so? */
} sd_drafter_stats;

/* What is common to all; begins as zeros. */
typedef struct sd_selection {
    double tokens, seconds; /* of the last rounds */
    sd_cost_model target;         /* by rows of the batch */
} sd_selection;

/* Shall this drafter be asked for a sequence of which `expected` tokens are expected already? n_rows: of the
 * batch so far. */
int sd_selection_asks(const sd_selection* selection, sd_drafter_stats* stats, double expected, int n_rows, double now);

/* It has been asked, in one call for n sequences, and proposed n_nodes in all. */
void sd_selection_spend(sd_drafter_stats* stats, int n, int n_nodes, double seconds, double now);

/* One of its proposals has been judged: `alone` tokens of it were right, `added` of them beyond what the
 * drafters before it had, from which `expected` had been expected. */
void sd_selection_learn(sd_drafter_stats* stats, double expected, double alone, double added);

/* Tokens that its proposals bring, by themselves; 1 as long as nothing is known. */
double sd_selection_alone(const sd_drafter_stats* stats);

/* A round of the batch is over: so many tokens in so many seconds, target_s of them in the target, on n_rows.
 * And of each drafter. */
void sd_selection_end_round(sd_selection* selection, int n_tokens, double seconds, int n_rows, double target_s);
void sd_selection_end_round_of(sd_drafter_stats* stats);

#endif
