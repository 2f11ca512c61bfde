/* A drafter whose acceptance is set, for benchmarks: another one drafts, and then each of its guesses
 * is replaced, with probability alpha by the token that is right, otherwise by one that is wrong. */
#ifndef SD_DIALLED_DRAFTER_H
#define SD_DIALLED_DRAFTER_H

#include "drafter.h"

/* What decoding will give. */
typedef struct sd_foreseen {
    const int32_t* text; /* [n] prompt and continuation; borrowed while the drafter is created */
    int n;               /* guesses past it stay as they are */
} sd_foreseen;

/* Wrap `inner`, a drafter of chains, whose work and time stay what they are. foreseen [n] of the session's sequences:
 * at temperature 0, what plain decoding gives. Then Algorithm 1 accepts each guess with probability
 * alpha, independently of the others. n_text: tokens of the longest text. The session's output does not depend on any of this.
 * `inner` is owned from the call on, also when the call fails. */
sd_status sd_dialled_drafter_create(sd_drafter* inner, double alpha, int n_vocab, const sd_foreseen* foreseen,
                                    int n, int n_text, sd_drafter** drafter);

#endif
