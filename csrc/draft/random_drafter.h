/* Random tokens: what is accepted of them is the floor of every drafting method. */
#ifndef SD_RANDOM_DRAFTER_H
#define SD_RANDOM_DRAFTER_H

#include "drafter.h"

/* Create a drafter of chains whose every token is drawn uniformly, whatever the temperature. coupled: with
 * the noise of SD_RULE_COUPLED. Owned by the caller, who hands it to a session. */
sd_status sd_random_drafter_create(int n_vocab, int gamma, int coupled, sd_drafter** drafter);

#endif
