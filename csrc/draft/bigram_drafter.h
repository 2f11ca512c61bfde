/* A table drafts: what followed the last token in some text. A negligible-cost model (section 3.6). */
#ifndef SD_BIGRAM_DRAFTER_H
#define SD_BIGRAM_DRAFTER_H

#include "guess.h"

/* ln P(x | y) of a bigram model. Of the pairs that never occurred only P(x) is known, so their row is
 * that of P(x) with another factor. Without any pairs it is a unigram model. */
typedef struct sd_bigram {
    int n_vocab;
    const float* base;         /* [n_vocab] ln P(x) */
    const float* shifts;       /* [n_vocab] ln P(x | y) − ln P(x) for x that never followed y */
    const int64_t* starts;     /* [n_vocab + 1] where the successors of y begin, from 0 to n_pairs */
    const int32_t* successors; /* [n_pairs] what followed y */
    const float* logits;       /* [n_pairs] ln P(x | y) of these */
} sd_bigram;

/* Are places and successors in their ranges, and all numbers finite? */
sd_status sd_bigram_check(const sd_bigram* bigram, int64_t n_pairs);

/* Create a drafter; `bigram` and its arrays must outlive it. Owned by the caller, who hands it to a
 * session. */
sd_status sd_bigram_drafter_create(const sd_bigram* bigram, const sd_guessing* guessing, int gamma,
                                   sd_drafter** drafter);

#endif
