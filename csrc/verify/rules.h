/* Rules that judge one tree row at a time. */
#pragma once

#include "verify.h"

/* A tree row that verification reached (tree.h), and the draft tokens proposed after it. */
typedef struct sd_tree_row {
    const sd_verify_input* input;
    sd_distribution target;     /* of the token after the row */
    int node;                   /* its first node */
    const int32_t* draft_nodes; /* [n_draft_tokens] their nodes, in the order they are tried; borrowed */
    int n_draft_tokens;
} sd_tree_row;

/* Return the index of the accepted draft token, or n_draft_tokens if there is none: *token is then the
 * recovered or bonus token. */
typedef int (*sd_judge)(const sd_tree_row* row, int32_t* token);

int sd_judge_rejection(const sd_tree_row* row, int32_t* token);
int sd_judge_greedy(const sd_tree_row* row, int32_t* token);
int sd_judge_coupled(const sd_tree_row* row, int32_t* token);
int sd_judge_k_sequential(const sd_tree_row* row, int32_t* token);
int sd_judge_classical(const sd_tree_row* row, int32_t* token);

/* Entry of sd_verdict.betas for a row with at least one draft token; `accepted` is the judge's result. */
double sd_tree_row_beta(const sd_tree_row* row, int accepted);

/* Traversal Verification (Weng et al. 2025, arXiv 2505.12398), for any tree. On a chain it is block
 * verification (Sun, Mendlovic, Leviathan et al. 2024, arXiv 2403.10444, Algorithm 2): in expectation no rule
 * keeps more of a chain. */
sd_status sd_verify_traversal(const sd_verify_input* input, sd_verdict* verdict);
