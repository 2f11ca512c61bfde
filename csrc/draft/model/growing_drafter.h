/* A smaller model drafts a tree that grows where the model is confident. Every guess is a point mass: one of
 * the most probable tokens, or under the coupled rule of the first of the race. */
#ifndef SD_GROWING_DRAFTER_H
#define SD_GROWING_DRAFTER_H

#include "model_drafter.h"

typedef struct sd_growing_options {
    int width;        /* nodes of one sequence that are read at once, and children that each may have */
    int steps;        /* forwards of the draft in a round, at most */
    double sharpness; /* > 0, see child_sampler.h */
} sd_growing_options;

/* Create a drafter; gamma of the options is the number of nodes. Owned by the caller. */
sd_status sd_growing_drafter_create(const sd_model_drafter_options* options,
                                    const sd_growing_options* growing, sd_drafter** drafter);

#endif
