/* Copying as a way to draft: which text is copied from where on, and how often that was right before. */
#pragma once

#include "drafter.h"

/* Lengths of a match that are told apart; longer ones count as the longest. */
#define SD_COPY_LENGTHS 33
/* The most texts that are copied in one round. */
#define SD_MAX_COPIES 16

/* How often the token after a match of each length was foretold: what a copy's confidence comes from. */
typedef struct sd_odds {
    double tried[SD_COPY_LENGTHS], right[SD_COPY_LENGTHS];
} sd_odds;

void sd_odds_clear(sd_odds* odds);
/* A match of this length has, or has not, foretold the next token. Old cases count less. */
void sd_odds_learn(sd_odds* odds, int length, int right);
/* Chance that a match of this length foretells the next token, in (0, 1). */
double sd_odds_of(const sd_odds* odds, int length);

/* Something to copy. */
typedef struct sd_copy {
    const int32_t* text; /* [n_text] borrowed; a negative token ends the copy */
    int n_text;
    int at;              /* index of the next token, up to n_text */
    int periodic;        /* behind the text comes what is copied from it: it is the drafted text itself */
    int length;          /* tokens before `at` that match */
    const sd_odds* odds; /* borrowed */
} sd_copy;

/* The i-th token that a copy gives; -1 where it ends. */
int32_t sd_copy_token(const sd_copy* copy, int i);

/* Append guesses to a proposal: each copy, at most SD_MAX_COPIES, is a chain from the root. As long as there
 * is room and another guess pays, the chain grows whose next guess is likeliest to be accepted. Of copies
 * that begin with the same token only the first is made. */
void sd_copies_grow(sd_proposal* proposal, const sd_copy* copies, int n);
