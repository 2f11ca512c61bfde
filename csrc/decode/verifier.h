/* Verification of a sequence's tree: supplies sd_verify with the target's distributions after its nodes. */
#pragma once

#include "adjustment.h"
#include "constraint.h"
#include "forward.h"
#include "memory.h"
#include "rng.h"
#include "verify.h"

/* A user's change of the target's distribution. */
typedef struct sd_transform {
    /* Change probs [n_vocab] of the token after tokens [n_tokens] in place. The result is a distribution up
     * to a factor; at temperature 0 its argmax is taken. NULL: none. */
    sd_status (*apply)(void* context, const int32_t* tokens, int n_tokens, double* probs, int n_vocab);
    void* context; /* borrowed; must outlive the sequence */
    /* Instead of `apply`, for a change that depends on a state: probs after state `state` of `states`. */
    sd_status (*apply_state)(void* context, int state, double* probs, int n_vocab);
    sd_state_tree* states; /* borrowed; must outlive the sequence */
} sd_transform;

/* How a target verifies draft tokens of a sequence. */
typedef struct sd_verifier_options {
    const sd_sampling* sampling; /* of the target; borrowed, must outlive the sequence */
    sd_transform transform;
    /* Constraint of the text: forbidden tokens have logits of −infinity, and no probability after a
     * transform. Borrowed, must outlive the sequence; NULL: none. */
    sd_constraint* constraint;
    sd_rule rule;
    double lenience;
} sd_verifier_options;

typedef struct sd_verifier {
    int n_vocab;
    /* scratch, taken from an arena */
    sd_distribution target; /* after the node being verified */
    int32_t* nodes;         /* [2 · max_nodes] of the rule */
    int32_t* tokens;        /* [longest text + max_nodes] tokens passed to a transform */
    double* uniforms;       /* [max_nodes + 1] */
    double* scratch;        /* [2 · n_vocab] of sd_standardize */
    double* residual;       /* [3 · n_vocab] of the rule */
    double* chances;        /* [max_nodes] of the rule */
    double* noise;          /* [n_vocab] of the coupled rule */
    sd_adjustment adjustment;
} sd_verifier;

/* Take the scratch for trees of max_nodes on texts of n_text tokens from the arena (which may be
 * counting). */
void sd_verifier_take(sd_verifier* verifier, sd_arena* arena, int max_nodes, int n_text);

/* A tree and the target's logits for it. */
typedef struct sd_verification {
    const sd_verifier_options* options; /* of the sequence; borrowed, as everything below */
    const int32_t* text;                /* [n_text] up to the root */
    int n_text;
    int n_prompt;     /* tokens of the prompt */
    sd_stream stream; /* random numbers of the sequence */
    const sd_tree* tree;
    const int32_t* node_rows; /* [tree.n_nodes] node i: logits [n_vocab] from node_rows[i] · stride on */
    const float* logits;
    ptrdiff_t stride;
    sd_workspace* forward; /* the logits are rows of its last forward pass, from first_row on */
    int first_row;
    int branch; /* of this pass */
    /* 1: the caller holds a team: do not check for an interrupt, and fail without a message. Without a
     * transform or constraint no user function is called. */
    int in_team;
} sd_verification;

/* Fill the verdict (its arrays are the caller's). Computes each distribution that the rule requests once.
 * Fails if a transform or a constraint fails, if logits of a requested node are not finite, or if settings
 * leave no token or make a logit infinite. Nodes that are not requested cannot fail: plain decoding never
 * reaches them. */
sd_status sd_verifier_run(sd_verifier* verifier, const sd_verification* verification, sd_verdict* verdict);

/* The target's distribution after a node, as the rules see it: *distribution, borrowed until the next call.
 * Fails as sd_verifier_run does. */
sd_status sd_verifier_distribute(sd_verifier* verifier, const sd_verification* verification, int node,
                                 const sd_distribution** distribution);
