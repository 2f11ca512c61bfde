/* Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target itself drafts, by Jacobi iteration.
 *
 * A window of guesses runs ahead of the text: n - 1 rows of w columns. Row 0 is a chain from the root, and
 * from each of its nodes hang the other rows of its column, so that what stands in row r and column c is
 * guessed for the place r + c + 1 behind the root. The target's argmax behind a column's last row makes a new
 * row, and with the column an n-gram, which goes into a pool. Then the rows move up: row 1 stands where
 * row 0 stood, one place on. N-grams of the pool that begin with the text's last token hang on the root
 * as candidates. All these are nodes of one tree, guesses that were chosen and not drawn. */
#ifndef SD_LOOKAHEAD_DRAFTER_H
#define SD_LOOKAHEAD_DRAFTER_H

#include "drafter.h"

/* The pool keeps the n-grams of so many rounds. */
#define SD_LOOKAHEAD_ROUNDS 256

typedef struct sd_lookahead_options {
    int window;     /* columns, ≥ 1 */
    int ngram;      /* tokens of an n-gram, ≥ 2 */
    int candidates; /* n-grams of the pool in a round at most, ≥ 0 */
    int n_vocab;
    int n_sequences; /* of the session */
} sd_lookahead_options;

/* Create a drafter. Owned by the caller, who hands it to a session. A round of fewer guesses than
 * (window + candidates) · (ngram - 1) takes columns off the window's end and then cuts the last candidates. */
sd_status sd_lookahead_drafter_create(const sd_lookahead_options* options, sd_drafter** drafter);

#endif
