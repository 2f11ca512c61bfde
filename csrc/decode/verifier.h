/* Verifies the tree of a sequence by the target's logits: answers what sd_verify asks about its nodes. */
#pragma once

#include "adjustment.h"
#include "constraint.h"
#include "forward.h"
#include "memory.h"
#include "rng.h"
#include "verify.h"

/* The caller's own change of the target's distribution. */
typedef struct sd_transform {
    /* probs [n_vocab] of the token after tokens [n_tokens] are changed in place and stay a distribution
     * up to a factor, whose argmax is taken at temperature 0. NULL: there is none. */
    sd_status (*apply)(void* context, const int32_t* tokens, int n_tokens, double* probs, int n_vocab);
    void* context; /* borrowed; must outlive the sequence */
    /* In place of `apply`, for a change that depends on a state: probs behind state `state` of `states`. */
    sd_status (*apply_state)(void* context, int state, double* probs, int n_vocab);
    sd_state_tree* states; /* borrowed; must outlive the sequence */
} sd_transform;

/* How a target judges the guesses for a sequence. */
typedef struct sd_verifier_options {
    const sd_sampling* sampling; /* of the target. Borrowed; must outlive the sequence */
    sd_transform transform;
    /* The form that the text must have: logits of tokens that may not come are −infinity, and a transform
     * gives them no probability. Borrowed; must outlive the sequence. NULL: any form. */
    sd_constraint* constraint;
    sd_rule rule;
    double lenience;
} sd_verifier_options;

typedef struct sd_verifier {
    int n_vocab;
    /* scratch, taken from an arena */
    sd_distribution target; /* after the node being verified */
    int32_t* nodes;         /* [2 · max_nodes] of the rule */
    int32_t* tokens;        /* [longest text + max_nodes] what a transform is told */
    double* uniforms;       /* [max_nodes + 1] */
    double* scratch;        /* [2 · n_vocab] of sd_standardize */
    double* residual;       /* [2 · n_vocab] of the rule */
    double* noise;          /* [n_vocab] of the coupled rule */
    sd_adjustment adjustment;
} sd_verifier;

/* Take the scratch for trees of max_nodes on texts of n_text tokens from the arena (which may be
 * counting). */
void sd_verifier_take(sd_verifier* verifier, sd_arena* arena, int max_nodes, int n_text);

/* A tree and what the target says of it. */
typedef struct sd_verification {
    const sd_verifier_options* options; /* of the sequence; borrowed, as all else */
    const int32_t* text;                /* [n_text] up to the root */
    int n_text;
    int n_prompt;     /* of them the prompt */
    sd_stream stream; /* random numbers of the sequence */
    const sd_tree* tree;
    const int32_t* node_rows; /* [tree.n_nodes] node i: logits [n_vocab] from node_rows[i] · stride on */
    const float* logits;
    ptrdiff_t stride;
    sd_workspace* forward; /* these logits are rows of its last forward, from first_row on */
    int first_row;
} sd_verification;

/* Fill the verdict (its arrays are the caller's). Each distribution that the rule asks for is made once.
 * Fails where a transform or a constraint does, where the logits of a node that is asked for are not finite,
 * and where settings leave no token or make the logit of one infinite. What is not asked for cannot fail:
 * plain decoding does not meet it. */
sd_status sd_verifier_run(sd_verifier* verifier, const sd_verification* verification, sd_verdict* verdict);

/* The target's distribution after a node, as the rules see it: *distribution, borrowed until another is asked
 * for. Fails as sd_verifier_run does. */
sd_status sd_verifier_distribute(sd_verifier* verifier, const sd_verification* verification, int node,
                                 const sd_distribution** distribution);
