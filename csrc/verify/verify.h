/* Verification: which draft tokens are accepted, and the token that follows them. A pure function.
 *
 * Terms, as in vLLM's rejection sampler; T is the target's distribution of a token, D the draft's (p and q
 * in the paper):
 *   draft token      a token that the draft proposes, drawn from D or chosen
 *   accepted token   a draft token that the rule keeps
 *   recovered token  sampled in place of a rejected draft token: by rejection from norm(max(0, T − D))
 *   bonus token      sampled from T after the last draft token, if all on the path are accepted
 *   beta (β)         probability that a draft token is accepted, given its text: Σ min(T, D) (Theorem 3.5)
 *   alpha (α)        the acceptance rate, E(β) over texts
 *   lenience (l)     accept up to T / l instead of T; below 1 the output is no longer exact */
#pragma once

#include "tree.h"

/* Verification rules. Each preserves the target's distribution, unless lenience is below 1. */
typedef enum sd_rule {
    SD_RULE_REJECTION,    /* Leviathan's Algorithm 1; for siblings SpecInfer's multi-step version */
    SD_RULE_GREEDY,       /* the most probable token */
    SD_RULE_COUPLED,      /* the token that plain decoding would draw from the same random numbers */
    SD_RULE_BLOCK,        /* judges a chain as a whole (Sun et al. 2024, Algorithm 2) */
    SD_RULE_K_SEQUENTIAL, /* SpecTr's selection from k draws of one distribution (Sun et al. 2023) */
    SD_RULE_TRAVERSAL,    /* judges a tree as a whole, from its leaves (Weng et al. 2025) */
    SD_RULE_CLASSICAL,    /* non-iterative rejection sampling (appendix A.2), for comparison */
    SD_RULE_AUTO,         /* the best of these for a sequence (sd_rule_for); judges nothing itself */
    SD_N_RULES
} sd_rule;

/* Look up a rule by name. */
sd_status sd_rule_find(const char* name, sd_rule* rule);

/* Name of a rule. */
const char* sd_rule_name(sd_rule rule);

/* Check a rule and its lenience l: in (0, 1], and 1 for rules other than rejection, greedy and auto. */
sd_status sd_rule_check(sd_rule rule, double lenience);

/* Check that a rule can judge trees of this type; nothing else decides this. SD_ERR_SETTING if not;
 * `argument` is the name of the caller's argument in the message. SD_TREE_UNKNOWN passes. */
sd_status sd_rule_check_trees(sd_rule rule, sd_tree_type type, const char* argument);

/* Rule to apply if the target is sampled at this temperature, to trees of this type. draws: some draft tokens
 * are sampled, not chosen. At temperature 0 all mass is on one token and every rule accepts that token alone:
 * rules that do not take every tree, or look at more of it, become rejection. Auto becomes block for chains
 * and traversal for other trees, which accept more sampled draft tokens. Where none are sampled, or with a
 * lenience, it becomes rejection: no rule accepts more chosen tokens. */
sd_rule sd_rule_for(sd_rule rule, double lenience, double temperature, sd_tree_type type, int draws);

typedef struct sd_verdict {
    int n_path;    /* number of accepted nodes, without the root */
    int32_t* path; /* [n_nodes] capacity; accepted nodes from the root down */
    int32_t token; /* the token after the path: recovered, or bonus after a leaf */
    int n_betas;   /* number of rows at which draft tokens were judged */
    /* [n_nodes] capacity; β at each of these rows. For one draft token it is computed from the distributions:
     * Σ min(target / l, draft), greedy Σ draft over accepted tokens, classical 1 / max(target / draft). For
     * several or coupled draft tokens it is the outcome, 1 or 0, whose mean is β. Block and traversal judge
     * no single token: Σ min(target, draft), a lower bound of what they accept. */
    double* betas;
} sd_verdict;

/* A tree to verify, and callbacks about the target. All pointers borrowed. */
typedef struct sd_verify_input {
    sd_rule rule;
    double lenience;
    const sd_tree* tree;
    int n_vocab;
    /* Set *target to the distribution after a node; it is read until the next call. */
    sd_status (*target_after)(void* context, int node, sd_distribution* target);
    /* Coupled only: the token that the target's own draw gives there. */
    int32_t (*token_after)(void* context, int node, const sd_distribution* target);
    void* context;
    /* [n_nodes + 1] in [0, 1): one per node (entry 0 unused); the last draws the recovered or bonus token. */
    const double* uniforms;
    /* [n_nodes] siblings are tried in ascending order of these (entry 0 unused); NULL: in node order. They
     * must not depend on the tokens. */
    const double* order;
    double* residual; /* scratch: [2 · n_vocab], with block and traversal [3 · n_vocab] */
    double* chances;  /* [n_nodes] scratch of block and traversal; NULL with others */
    int32_t* nodes;   /* [2 · n_nodes] scratch */
} sd_verify_input;

/* Walk from the root down. At each row the rule accepts one draft token and the walk continues there, or it
 * ends with a recovered token. Without draft tokens it ends with a bonus token from the target.
 *
 * Nodes with the same tokens from the root are one row: its draft tokens are the children of all of them. So
 * chains from several drafts may share prefixes, and each node counts as its own draw.
 *
 * Block and traversal judge the tree as a whole instead (rules.h). Fails if target_after fails; the verdict
 * is then undefined. */
sd_status sd_verify(const sd_verify_input* input, sd_verdict* verdict);

/* Write the uniforms of a tree whose root is token `position` − 1 of a text: uniforms [n_nodes + 1]. */
void sd_verify_uniforms(sd_stream stream, uint32_t position, int n_nodes, double* uniforms);

/* Is every node the child of the node before it? */
int sd_tree_is_chain(const sd_tree* tree);
