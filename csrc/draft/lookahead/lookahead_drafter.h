/* Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target itself drafts, by Jacobi iteration.
 *
 * A window of guesses runs ahead of the text: n - 1 rows of w columns. Cell (r, c) guesses the token at
 * offset r + c + 1 after the root. Row 0 is a chain from the root; the other rows of column c follow node c
 * of that chain. The target's argmax after the last row of a column makes a new row, and with the column an
 * n-gram, which goes into a pool. After a step the rows shift up by one: row 1 becomes row 0, one position
 * on. N-grams of the pool that begin with the text's last token follow the root as candidates. All these are
 * nodes of one tree: guesses that were chosen, not drawn. */
#ifndef SD_LOOKAHEAD_DRAFTER_H
#define SD_LOOKAHEAD_DRAFTER_H

#include "drafter.h"

/* Rounds whose n-grams the pool keeps. */
#define SD_LOOKAHEAD_ROUNDS 256

typedef struct sd_lookahead_options {
    int window;     /* columns, ≥ 1 */
    int ngram;      /* tokens of an n-gram, ≥ 2 */
    int candidates; /* most n-grams of the pool in a round, ≥ 0 */
} sd_lookahead_options;

/* Create a drafter. Owned by the caller, who hands it to a session. A round of fewer guesses than (window +
 * candidates) · (ngram - 1) takes columns off the window's end and then cuts the last candidates. */
sd_status sd_lookahead_drafter_create(const sd_drafting* drafting, const sd_lookahead_options* options,
                                      sd_drafter** drafter);

#endif
