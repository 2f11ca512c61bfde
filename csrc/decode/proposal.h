/* A proposal: one sequence's tree of draft tokens in a round, requested by the session, filled by a
 * drafter. */
#pragma once

#include "cache.h"
#include "constraint.h"
#include "rng.h"
#include "verify.h"

typedef struct sd_drafter_policy sd_drafter_policy; /* drafter_policy.h */

/* Every drafter of an ensemble may draft. */
#define SD_EVERY_DRAFTER UINT64_MAX

/* May drafter i of an ensemble draft, and how many of n may? (sd_proposal.drafters) */
static inline int sd_may_draft(uint64_t drafters, int i) { return i >= 64 || (drafters >> i & 1) != 0; }
int sd_count_drafters(uint64_t drafters, int n);

/* One sequence's part of a round. */
typedef struct sd_proposal {
    int sequence;        /* index in the session */
    const int32_t* text; /* [n_text] tokens so far; text[n_text - 1] is the root; borrowed */
    int n_text;
    int n_prompt; /* tokens of the prompt; the others are new */
    /* Sampling settings of the draft for this sequence; borrowed. */
    const sd_sampling* sampling;
    /* Constraint of the text; NULL: none. Draft only tokens that it allows: others are wasted. Borrowed. */
    sd_constraint* constraint;
    /* The rule that verifies the draft tokens. SD_RULE_COUPLED: draft tokens are drawn with its noise. */
    sd_rule rule;
    /* Bit i: drafter i of an ensemble may draft (ensemble_drafter.h); those from index 64 on always may. */
    uint64_t drafters;
    int budget;       /* most draft tokens, ≥ 0 */
    int depth;        /* most draft tokens in a row: the text must not exceed its length */
    sd_stream stream; /* random numbers of this sequence */
    /* The target's cache, which holds the text without the root; for drafters that start the target's own
     * work. Borrowed. */
    sd_cache* cache;
    /* Decides whether another draft token pays; NULL: only budget and depth limit them. */
    const sd_drafter_policy* policy;
    /* Out: node 0 is set, with capacity for `budget` more nodes. Each of their drawn_from has [n_vocab]
     * weights, or NULL for a drafter with `points`. */
    sd_tree tree;
    int32_t* depths; /* [budget + 1] out: depth of each node, 0 for the root */
    /* [budget + 1] out: estimated chance that a node and all above it are accepted; 1 for the root, or less
     * where other drafters also have a part of what is accepted (sd_drafter_policy_new_share). */
    double* path_prob;
    /* [budget + 1] out, with a policy only: the confidence passed to sd_proposal_add. */
    double* confidences;
    /* [budget + 1] out: index of the drafter of each node; NULL: not recorded. */
    int32_t* origins;
    int origin; /* index of the drafter that sd_proposal_add records */
    /* Failure of this sequence alone, by its numbers or a user callback: it ends the sequence and stops
     * drafting for it. Borrowed. */
    sd_failure* failure;
    /* Out: depth of the last draft token that sd_proposal_worth_verifying rejected; 0: none. */
    int rejected_at;
    double rejected_confidence; /* out: confidence of the draft token at rejected_at */
} sd_proposal;

/* Is there capacity for another draft token after `node`? */
int sd_proposal_has_capacity(const sd_proposal* proposal, int node);

/* May a token be drafted after `node`: is there capacity, and with a policy, does it pay? Ask before drawing
 * it. */
int sd_proposal_may_draft(const sd_proposal* proposal, int node);

/* The same for a token that has been drafted already with others before it, so that only its row costs. Ask
 * before looking at the token. */
int sd_proposal_may_add(const sd_proposal* proposal, int node);

/* Is a draft token after `node`, with known confidence, worth a row of the target? Always without a policy.
 * Ask after sd_proposal_may_draft, and only where the answer may depend on the token (the condition of
 * drafter.h): a point mass, or drawn with the noise of SD_RULE_COUPLED. A rejected token must not be added,
 * nor another in its place. */
int sd_proposal_worth_verifying(sd_proposal* proposal, int node, double confidence);

/* Does the text continue after `node` under its constraint? Not after a forbidden token, nor where it is
 * complete. */
int sd_proposal_goes_on(const sd_proposal* proposal, int node);

/* Tokens that may follow `node` under the constraint. */
sd_mask sd_proposal_mask(const sd_proposal* proposal, int node);

/* May this token follow `node`? */
int sd_proposal_allows(const sd_proposal* proposal, int node, int32_t token);

/* Append a draft token, whose drawn_from the caller sets before or after. confidence: the draft's estimate
 * that the target agrees, in [0, 1]; only a policy uses it. Returns the node. */
int sd_proposal_add(sd_proposal* proposal, int parent, int32_t token, double confidence);

/* The same for a draft token that was chosen, not drawn: a point mass. */
int sd_proposal_add_point(sd_proposal* proposal, int parent, int32_t token, double confidence);

/* Reduce the budgets of n proposals until draft tokens and roots are n_rows in all: the largest first, so
 * that all reduced ones are equal. The remainder goes to some of these in turn; *turn (≥ 0) is the first of
 * them in the next round. */
void sd_proposals_share(sd_proposal* proposals, int n, int n_rows, int* turn);
