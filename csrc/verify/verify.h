/* Verification: which guesses are accepted, and what the target says next. A pure function. */
#pragma once

#include "tree.h"

/* How guesses are judged. Each leaves the target's distribution as it is, but for lenience. */
typedef enum sd_rule {
    SD_RULE_REJECTION,    /* Leviathan's Algorithm 1; on siblings the iterative form of SpecInfer */
    SD_RULE_GREEDY,       /* the most probable token */
    SD_RULE_COUPLED,      /* the token that plain decoding would draw with the same random numbers */
    SD_RULE_BLOCK,        /* a chain judged as a whole (Sun et al. 2024, Algorithm 2) */
    SD_RULE_K_SEQUENTIAL, /* SpecTr's selection from k draws of one distribution (Sun et al. 2023) */
    SD_RULE_CLASSICAL,    /* rejection sampling without its loop (appendix A.2), to compare with */
    SD_N_RULES
} sd_rule;

/* The rule of a name. */
sd_status sd_rule_find(const char* name, sd_rule* rule);

/* A rule and its lenience l: in (0, 1], and 1 for rules other than rejection and greedy. */
sd_status sd_rule_check(sd_rule rule, double lenience);

/* Can the rule judge trees of this kind? This is the one place that knows. SD_ERR_SETTING if not; `argument`
 * is what the caller's argument for the rule is called, for the message. SD_TREE_UNKNOWN passes. */
sd_status sd_rule_check_trees(sd_rule rule, sd_tree_type kind, const char* argument);

/* What a rule amounts to where the target is sampled at this temperature. At 0 all mass is on one token, and
 * each rule accepts that one alone: those that do not take every tree give way to rejection, which does. */
sd_rule sd_rule_at(sd_rule rule, double temperature);

typedef struct sd_verdict {
    int n_path;    /* accepted nodes, the root not counted */
    int32_t* path; /* [n_nodes] room; the accepted nodes from the root down */
    int32_t token; /* the token after the path: a correction, or a bonus when a leaf was reached */
    int n_betas;   /* positions at which guesses were tested */
    /* [n_nodes] room; at each of them the chance that a guess is accepted. Of a single guess it is computed
     * from the distributions: Σ min(target / l, draft), greedy Σ draft over what is accepted, classical
     * 1 / max(target / draft). Of several guesses, and of coupled ones, it is the outcome, 1 or 0, whose mean
     * is that chance. Block judges no guess alone: Σ min(target, draft), which is at most what it accepts. */
    double* betas;
} sd_verdict;

/* A tree to verify, and how the target is asked about it. All pointers are borrowed. */
typedef struct sd_verify_input {
    sd_rule rule;
    double lenience;
    const sd_tree* tree;
    int n_vocab;
    /* Find the target's distribution after a node: *target is read until the next is asked for. */
    sd_status (*target_after)(void* context, int node, sd_distribution* target);
    /* Coupled only: the token that the target's own draw gives there. */
    int32_t (*token_after)(void* context, int node, const sd_distribution* target);
    void* context;
    const double* uniforms; /* [n_nodes + 1] in [0, 1): one for each node (entry 0 unused), the last
                             * one draws the token */
    const double* order;    /* [n_nodes] siblings are tried in ascending order of these (entry 0 unused);
                             * NULL: as they stand. It must not depend on the tokens */
    double* residual;       /* [2 · n_vocab] scratch */
    int32_t* nodes;         /* [2 · n_nodes] scratch */
} sd_verify_input;

/* Walk from the root down. At each row the rule accepts one of the guesses for the next token,
 * and the walk goes on there, or says the token itself, and the walk ends; where there is no guess
 * the token is the target's.
 *
 * Nodes with the same tokens from the root are one row: the guesses after it are the children of
 * all of them. So chains from several drafts may share their beginnings, each counting as a draw.
 *
 * SD_RULE_BLOCK takes chains only. Fails where target_after does; the verdict has no meaning then. */
sd_status sd_verify(const sd_verify_input* input, sd_verdict* verdict);

/* The uniforms of a tree whose root is token `position` − 1 of a text: uniforms [n_nodes + 1], out. */
void sd_verify_uniforms(sd_stream stream, uint32_t position, int n_nodes, double* uniforms);

/* Is each node the child of the one before it? */
int sd_tree_is_chain(const sd_tree* tree);
