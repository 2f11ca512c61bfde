/* Riders: rows that ride on the target's forward passes for a drafter.
 *
 * Behind every row of a round's tree follow rows, each the parent of the next, whose inputs are vectors and
 * not tokens. They attend to what a node would attend to in their places, have the positions that it would
 * have, and nothing but those behind them attends to them. After the verdict the drafter is told what the
 * target says after those behind the last accepted node. In the target's cache they are pending and never
 * kept. */
#ifndef SD_RIDERS_H
#define SD_RIDERS_H

#include <stdint.h>

typedef struct sd_riders {
    /* Behind a row, at most; 0: there are none. */
    int n;
    int d_model;
    /* [n, d_model] their inputs, in order; owned by the drafter or by whom it borrows from. */
    const float* embeddings;
} sd_riders;

/* Append riders to n_rows rows of a tree, tokens and parents with room for n_rows · (1 + riders->n). depth:
 * most guesses in a row behind the root; a rider whose guess the text has no room for is left out. first
 * [n_rows + 1]: out, where the riders behind each row begin, and where the last end. Returns that end: all
 * rows. */
int sd_riders_append(const sd_riders* riders, int n_rows, int depth, int32_t* tokens, int32_t* parents,
                     int32_t* first);

#endif
