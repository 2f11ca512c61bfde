/* A tree that grows where what predicts, such as a smaller model, is confident. Every guess is a point mass:
 * one of the most probable tokens, or under the coupled rule of the first of the race. */
#ifndef SD_DYNAMIC_TREE_DRAFTER_H
#define SD_DYNAMIC_TREE_DRAFTER_H

#include "predictor.h"

typedef struct sd_dynamic_tree_options {
    int width;        /* nodes of one sequence that are read at once, and children that each may have */
    int steps;        /* forwards of the draft in a round, at most */
    double sharpness; /* > 0, see child_sampler.h */
} sd_dynamic_tree_options;

/* Create a drafter; gamma of `drafting` is the number of nodes. Owned by the caller. */
sd_status sd_dynamic_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                         const sd_dynamic_tree_options* dynamic, sd_drafter** drafter);

#endif
