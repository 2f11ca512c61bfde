/* A chain of γ guesses a round, or a tree of a given shape, drawn from what a predictor says of each node:
 * drafting by a smaller model, M_q of the paper, and whatever else gives logits. */
#ifndef SD_TREE_DRAFTER_H
#define SD_TREE_DRAFTER_H

#include "predictor.h"
#include "shape.h"

/* Create a drafter. Owned by the caller, who hands it to a session. */
sd_status sd_tree_drafter_create(const sd_drafting* drafting, sd_predictor_maker maker,
                                 const sd_shape_options* shape, sd_drafter** drafter);

#endif
