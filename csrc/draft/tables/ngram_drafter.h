/* An n-gram model drafts a chain: what followed the last tokens in some text, or earlier in this one. A
 * model of negligible cost (section 3.6).
 *
 * Let h be the last k tokens, n(hx) how often x followed h, N = Σ n(hx), and D how many different tokens
 * followed h. The unigram model is k = 0, over the uniform distribution. Of the contexts k = 1 … n − 1 those
 * that were ever followed by anything count, each with the escape probability D / (N + D) of Witten and
 * Bell (IEEE Transactions on Information Theory 37, 1991; method C):
 *
 *     unigrams       P_0(x) = n(x) / (N + D) + D / (N + D) / n_vocab, with D = 1 if nothing was seen
 *     interpolated   P_k(x) = n(hx) / (N + D) + D / (N + D) · P_{k−1}(x)
 *     back-off       P_k(x) = n(hx) / (N + D)                          if n(hx) > 0,
 *                             D / (N + D) · P_{k−1}(x) / max(U, 1e-9)  otherwise,
 *                    with U = 1 − Σ P_{k−1}(x) over the x with n(hx) > 0 (Katz 1987), and what the maximum
 *                    or a vocabulary without other tokens leaves over divided among all in proportion
 *
 * At temperature 0 only tokens that were seen behind these contexts are looked at, and the most frequent
 * one. */
#ifndef SD_NGRAM_DRAFTER_H
#define SD_NGRAM_DRAFTER_H

#include "guess.h"
#include "ngram_table.h"

typedef struct sd_ngram_drafter_options {
    const sd_ngram_table* table; /* borrowed; must outlive the drafter */
    int online; /* count the committed text too, of each sequence by itself, as if it were in the table's */
} sd_ngram_drafter_options;

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_ngram_drafter_create(const sd_drafting* drafting, const sd_ngram_drafter_options* options,
                                  sd_drafter** drafter);

#endif
