/* A drafter whose acceptance rate is given, for tests and benchmarks: another drafter drafts, and then each
 * of its guesses is replaced, with probability alpha by the token that is right, otherwise by one that is
 * wrong. */
#ifndef SD_FIXED_ACCEPTANCE_DRAFTER_H
#define SD_FIXED_ACCEPTANCE_DRAFTER_H

#include "drafter.h"

/* What decoding will give. */
typedef struct sd_known_text {
    const int32_t* tokens; /* [n] prompt and continuation; borrowed while the drafter is created */
    int n;                 /* guesses past it stay as they are */
} sd_known_text;

/* Wrap `inner`, a drafter of chains, whose work and time stay what they are. known [n], of the session's
 * sequences: at temperature 0 what plain decoding gives. Then Algorithm 1 accepts each guess with probability
 * alpha, independently of the others; the session's output does not change. n_text: tokens of the longest
 * text. A sequence whose prompt is not the beginning of its known text is refused. `inner` is owned from the
 * call on, also when the call fails. */
sd_status sd_fixed_acceptance_drafter_create(sd_drafter* inner, double alpha, int n_vocab,
                                             const sd_known_text* known, int n, int n_text,
                                             sd_drafter** drafter);

#endif
