/* The rules that judge one row of a tree at a time. */
#pragma once

#include "verify.h"

/* A row of the tree that was reached (tree.h), and the guesses for its next token. */
typedef struct sd_tree_row {
    const sd_verify_input* input;
    sd_distribution target; /* after the row */
    int node;               /* its first node */
    const int32_t* guesses; /* [n_draft_tokens] nodes, in the order in which they are tried; borrowed */
    int n_draft_tokens;
} sd_tree_row;

/* Index of the guess that is accepted, or n_draft_tokens; then *token is the next token. */
typedef int (*sd_judge)(const sd_tree_row* row, int32_t* token);

int sd_judge_rejection(const sd_tree_row* row, int32_t* token);
int sd_judge_greedy(const sd_tree_row* row, int32_t* token);
int sd_judge_coupled(const sd_tree_row* row, int32_t* token);
int sd_judge_k_sequential(const sd_tree_row* row, int32_t* token);
int sd_judge_classical(const sd_tree_row* row, int32_t* token);

/* sd_verdict.betas of a row with at least one guess; `accepted` is what the judge returned. */
double sd_tree_row_beta(const sd_tree_row* row, int accepted);

/* Sun, Mendlovic, Leviathan et al. 2024, Block Verification Accelerates Speculative Decoding (arXiv
 * 2403.10444), Algorithm 2. The tree is a chain and its lenience 1. Each guess has a chance
 * of its own to be the last one kept, whatever becomes of those before it, so in expectation no other
 * rule keeps more. */
sd_status sd_verify_block(const sd_verify_input* input, sd_verdict* verdict);
