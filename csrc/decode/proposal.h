/* What a drafter is asked for and what it fills: one sequence's tree of guesses in a round. */
#ifndef SD_PROPOSAL_H
#define SD_PROPOSAL_H

#include "cache.h"
#include "rng.h"
#include "verify.h"

typedef struct sd_adaptive_gamma sd_adaptive_gamma; /* adaptive_gamma.h */

/* One sequence's part of a round. */
typedef struct sd_proposal {
    int sequence;        /* index in the session */
    const int32_t* text; /* [n_text] all tokens so far; text[n_text - 1] is the root. Borrowed. */
    int n_text;
    int budget;          /* guesses wanted at most, ≥ 0 */
    int depth;           /* guesses in a row at most: the text must not pass its length */
    sd_stream stream;    /* random numbers of this sequence */
    sd_cache* cache;     /* the target's; it holds the text but for the root. For drafters that begin the
                          * target's own work; others leave it alone. Borrowed */
    const sd_adaptive_gamma* policy; /* says when another guess does not pay; NULL: budget and depth alone do */
    sd_tree tree;        /* out: node 0 is set; room for budget more nodes, and each of their drawn_from
                          * has room for [n_vocab] weights, NULL where the drafter says `points` */
    int32_t* depths;     /* [budget + 1] out: of the nodes; 0 for the root */
    double* path_prob;       /* [budget + 1] out: estimated chance that a node is accepted; 1 for the root */
    double* confidences; /* [budget + 1] out, where there is a policy: as they were given to sd_proposal_add */
    int rejected_at;     /* out: depth of the guess that sd_proposal_worth_verifying declined last, 0: none, */
    double rejected_confidence;     /* and its confidence */
} sd_proposal;

/* Is there room for another guess that hangs on `node`? */
int sd_proposal_has_room(const sd_proposal* proposal, int node);

/* May another guess hang on `node`? To be asked before it is drawn. With a policy: does it pay? */
int sd_proposal_may_draft(const sd_proposal* proposal, int node);

/* Is a guess after `node` worth a row of the target, now that its confidence is known? May be asked, after
 * sd_proposal_may_draft, only where looking at the guess does not break the condition of drafter.h: it is certain (a
 * point mass), or drawn with the noise of SD_RULE_COUPLED. Without a policy always. A guess that is declined
 * must not be added, nor any other in its place. */
int sd_proposal_worth_verifying(sd_proposal* proposal, int node, double confidence);

/* Append a guess, whose drawn_from the caller sets (before or after). confidence: the draft's own
 * estimate that the target agrees, in [0, 1]; it is looked at only where there is a policy. Returns the node. */
int sd_proposal_add(sd_proposal* proposal, int parent, int32_t token, double confidence);

/* Lessen the budgets of n proposals until there are n_rows guesses and roots in all: the largest first, so
 * that all that are left wanting have equally many. What cannot be shared equally goes to one after the
 * other; *turn (≥ 0) remembers whose turn it is. */
void sd_proposals_share(sd_proposal* proposals, int n, int n_rows, int* turn);

#endif
