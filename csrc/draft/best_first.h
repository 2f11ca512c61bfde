/* Growing a tree by the draft's own confidence: the best guesses so far, those that have been read and those
 * that may be. (Sequoia, Chen et al. 2024; OPT-Tree, Wang et al. 2024; EAGLE-2, Li et al. 2024.) */
#ifndef SD_BEST_FIRST_H
#define SD_BEST_FIRST_H

#include "memory.h"

/* A guess that may become a node. */
typedef struct sd_candidate {
    int32_t token;
    int32_t parent;    /* the node read that it follows; 0: the root */
    int32_t node;      /* the node read that it is; -1: it has not been read */
    int depth;         /* 1: it follows the root */
    double confidence; /* the draft's confidence in its token */
    /* Product of the confidences down to it: estimated chance that it is accepted. */
    double value;
} sd_candidate;

/* The best candidates. Values never change, and a child's value never exceeds its parent's: so a candidate
 * that was dropped can never return, and the set always contains the parents of its members. */
typedef struct sd_best_first {
    int room; /* most candidates that are kept */
    int n;    /* candidates that are kept */
    /* [room] in descending order of value; of equal values the earlier first. */
    sd_candidate* best;
} sd_best_first;

/* A search that keeps up to `room` candidates, its array a piece of the arena. */
sd_best_first sd_best_first_take(sd_arena* arena, int room);

/* Keep a candidate if it is among the best. */
void sd_best_first_offer(sd_best_first* search, sd_candidate candidate);

/* The next candidates to read, `width` at most: the best that have not been, that may be followed (depth
 * below `depth`), and whose children may be among the best. Their indices in `best`, ascending, to chosen
 * [width]. Returns how many; none if even a sure child of each would not raise the sum of the best values by
 * more than `price`. */
int sd_best_first_choose(const sd_best_first* search, int width, int depth, double price, int32_t* chosen);

#endif
