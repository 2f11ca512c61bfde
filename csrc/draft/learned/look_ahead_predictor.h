/* Look-ahead embeddings (PaSS, Monea et al. 2023): the target guesses several tokens ahead in its own forward
 * pass, after vectors behind the text that were learnt for this.
 *
 * They follow every row that the target verifies (session_state.h). What it says after those behind the last
 * accepted node is the law of the next round's guesses: row k − 1 of the k-th behind the root, whatever the
 * guesses before it are. Where a round before had none, as before the first, nothing is predicted. */
#ifndef SD_LOOK_AHEAD_PREDICTOR_H
#define SD_LOOK_AHEAD_PREDICTOR_H

#include "predictor.h"

/* Make a predictor; options: sd_extra_queries, whose embeddings must outlive the predictor. */
sd_status sd_look_ahead_predictor_make(const void* options, const sd_prediction* prediction,
                                       sd_predictor** predictor);

#endif
