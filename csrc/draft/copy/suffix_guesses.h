/* What a node of a suffix tree lets expect: guesses below it, the most frequent first. */
#ifndef SD_SUFFIX_GUESSES_H
#define SD_SUFFIX_GUESSES_H

#include "suffix_order.h"

/* Of more occurrences of a piece than these so many count, evenly spread over its range. */
#define SD_SUFFIX_OCCURRENCES 256

typedef struct sd_suffix_guess {
    int32_t token;
    int parent;   /* index of the guess before it; -1: it comes first */
    int depth;    /* 1: it comes first */
    double share; /* how many of the occurrences of all before it go on with it */
    double value; /* product of the shares down to it */
} sd_suffix_guess;

/* Which guesses are wanted. */
typedef struct sd_suffix_wish {
    int n;            /* at most */
    int depth;        /* in a row at most */
    double min_value; /* of each guess, > 0 */
    int branches;     /* 0: a chain */
} sd_suffix_wish;

/* Guesses that are not made yet, and what they rest on. The occurrences of different ones are different. */
typedef struct sd_suffix_branch {
    sd_suffix_guess guess;
    int begin, end; /* its occurrences, in `found` */
} sd_suffix_branch;

typedef struct sd_suffix_search {
    int32_t* found;         /* [SD_SUFFIX_OCCURRENCES] places */
    sd_suffix_branch* open; /* [SD_SUFFIX_OCCURRENCES] in the order in which they were found */
    int n_open;
    sd_suffix_guess* guesses; /* [n] of the last search, parents first */
    int n;
    double expected; /* Σ value: the tokens that they are expected to bring */
} sd_suffix_search;

/* A search for at most `room` guesses, its arrays pieces of the arena. */
sd_suffix_search sd_suffix_search_take(sd_arena* arena, int room);

/* Search below the occurrences in a range of an order of `tokens` [n_tokens]; a negative token ends what
 * follows an occurrence. One after the other the guess of the highest value is made, of equal ones that which
 * was found first; those that follow one guess are found in the order of their tokens. */
void sd_suffix_search_run(sd_suffix_search* search, const sd_suffix_order* order, sd_suffix_range range,
                          const int32_t* tokens, int n_tokens, const sd_suffix_wish* wish);

#endif
