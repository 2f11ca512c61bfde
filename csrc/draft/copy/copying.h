/* Drafting by copying: what to copy, from which index, and how often that was right before. */
#pragma once

#include "drafter.h"

/* Bins by length of a match; longer ones fall into the last. */
#define SD_COPY_LENGTHS 33
/* Most copies in one round. */
#define SD_MAX_COPIES 16

/* How often a match of each length predicted the next token: the confidence of copies. */
typedef struct sd_odds {
    double tried[SD_COPY_LENGTHS], right[SD_COPY_LENGTHS];
} sd_odds;

void sd_odds_clear(sd_odds* odds);
/* Learn whether a match of this length predicted the next token. Old cases count less. */
void sd_odds_learn(sd_odds* odds, int length, int right);
/* Chance that a match of this length predicts the next token, in (0, 1). */
double sd_odds_of(const sd_odds* odds, int length);

/* A copy: a text and the index to copy from. */
typedef struct sd_copy {
    const int32_t* text; /* [n_text] borrowed; a negative token ends the copy */
    int n_text;
    int at;              /* index of the next token, up to n_text */
    int periodic;        /* the copy continues with its own tokens: the source is the drafted text itself */
    int length;          /* tokens before `at` that match */
    const sd_odds* odds; /* borrowed */
} sd_copy;

/* The i-th token of a copy; -1 at its end. */
int32_t sd_copy_token(const sd_copy* copy, int i);

/* Append draft tokens to a proposal: each copy, at most SD_MAX_COPIES, is a chain from the root. While there
 * is capacity and another draft token pays, the chain grows whose next token is likeliest to be accepted. Of
 * copies with the same first token only the first is drafted. */
void sd_copies_grow(sd_proposal* proposal, const sd_copy* copies, int n);
