/* What a drafter is asked for and what it fills: one sequence's tree of guesses in a round. */
#pragma once

#include "cache.h"
#include "constraint.h"
#include "rng.h"
#include "verify.h"

typedef struct sd_drafter_policy sd_drafter_policy; /* drafter_policy.h */

/* All drafters of several may draft. */
#define SD_EVERY_DRAFTER UINT64_MAX

/* May the drafter with index i of several draft, and how many of n may? (sd_proposal.drafters) */
static inline int sd_may_draft(uint64_t drafters, int i) { return i >= 64 || (drafters >> i & 1) != 0; }
int sd_count_drafters(uint64_t drafters, int n);

/* One sequence's part of a round. */
typedef struct sd_proposal {
    int sequence;        /* index in the session */
    const int32_t* text; /* [n_text] tokens so far; text[n_text - 1] is the root. Borrowed */
    int n_text;
    int n_prompt; /* tokens of the prompt; those behind it are new */
    /* The settings of whatever drafts for this sequence. Borrowed. */
    const sd_sampling* sampling;
    /* The form that the text must have; NULL: any. Guesses are drawn from what may come, and others are
     * wasted. Borrowed. */
    sd_constraint* constraint;
    /* The rule that judges the guesses. SD_RULE_COUPLED: guesses are drawn with its noise. */
    sd_rule rule;
    /* Bit i: the drafter with index i of several may draft (ensemble_drafter.h); those from index 64 on may
     * in any case. */
    uint64_t drafters;
    int budget;       /* most guesses, ≥ 0 */
    int depth;        /* most guesses in a row: the text must not pass its length */
    sd_stream stream; /* random numbers of this sequence */
    /* The target's cache, which holds the text without the root. Only drafters that begin the target's own
     * work use it. Borrowed. */
    sd_cache* cache;
    /* Says when another guess does not pay; NULL: only budget and depth limit the guesses. */
    const sd_drafter_policy* policy;
    /* Out: node 0 is set, and there is room for `budget` more nodes. Each of their drawn_from has room for
     * [n_vocab] weights, or NULL where the drafter says `points`. */
    sd_tree tree;
    int32_t* depths; /* [budget + 1] out: depth of each node, 0 for the root */
    /* [budget + 1] out: estimated chance that a node and all above it are accepted; 1 for the root, or less
     * where a part of what is accepted is another drafter's too (sd_drafter_policy_new_share). */
    double* path_prob;
    /* [budget + 1] out, with a policy only: the confidence that sd_proposal_add was given. */
    double* confidences;
    /* [budget + 1] out: which drafter of several a node is of; NULL: nobody asks. */
    int32_t* origins;
    int origin; /* which of several drafters sd_proposal_add adds for */
    /* Failures of this sequence alone, such as of its numbers or of a function of the caller's: one ends the
     * sequence, and leaves no room for further draft tokens. Borrowed. */
    sd_failure* failure;
    /* Out: depth of the last guess that sd_proposal_worth_verifying refused; 0: none. */
    int rejected_at;
    double rejected_confidence; /* out: confidence of the guess at rejected_at */
} sd_proposal;

/* Is there room for another guess after `node`? */
int sd_proposal_has_capacity(const sd_proposal* proposal, int node);

/* May a guess be drafted after `node`: is there room, and with a policy, does it pay? To be asked before the
 * guess is drawn. */
int sd_proposal_may_draft(const sd_proposal* proposal, int node);

/* The same where the guess has been drafted already, with others before it, so that only its row is to be
 * paid for. To be asked before a look at the guess. */
int sd_proposal_may_add(const sd_proposal* proposal, int node);

/* Is a guess after `node`, whose confidence is known by now, worth a row of the target? Always without a
 * policy. May be asked after sd_proposal_may_draft, and only where the answer may depend on the guess (the
 * condition of drafter.h): the guess is a point mass, or drawn with the noise of SD_RULE_COUPLED. A guess
 * that is refused must not be added, and no other instead of it. */
int sd_proposal_worth_verifying(sd_proposal* proposal, int node, double confidence);

/* Does the text go on behind `node`, by its form? Not behind a token that may not come, nor where it is
 * complete. */
int sd_proposal_goes_on(const sd_proposal* proposal, int node);

/* What may follow `node`, by the form of the text. */
sd_mask sd_proposal_mask(const sd_proposal* proposal, int node);

/* May this token follow `node`? */
int sd_proposal_allows(const sd_proposal* proposal, int node, int32_t token);

/* Append a guess, whose drawn_from the caller sets before or after. confidence: the draft's own estimate that
 * the target agrees, in [0, 1]; only a policy uses it. Returns the node. */
int sd_proposal_add(sd_proposal* proposal, int parent, int32_t token, double confidence);

/* The same for a draft token that was chosen, not drawn: a point mass. */
int sd_proposal_add_point(sd_proposal* proposal, int parent, int32_t token, double confidence);

/* Reduce the budgets of n proposals until guesses and roots are n_rows in all: the largest first, so that all
 * that get less than they want have equally many. The remainder goes to some of these in turn; *turn (≥ 0) is
 * the first of them in the next round. */
void sd_proposals_share(sd_proposal* proposals, int n, int n_rows, int* turn);
