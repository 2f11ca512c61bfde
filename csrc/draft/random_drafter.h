/* Random tokens: what is accepted of them is the floor of every drafting method. */
#ifndef SD_RANDOM_DRAFTER_H
#define SD_RANDOM_DRAFTER_H

#include "drafter.h"

/* Create a drafter of chains whose every token is drawn uniformly, whatever the temperature. Owned by the
 * caller, who hands it to a session. */
sd_status sd_random_drafter_create(const sd_drafting* drafting, sd_drafter** drafter);

#endif
