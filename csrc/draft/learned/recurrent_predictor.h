/* A recurrent network that predicts: it keeps a state for each sequence, which follows the text, and one for
 * each node that it is asked for. It reads tokens alone, so it may be the draft of a draft.
 *
 * States of some last lengths of the text are kept, so that the text may lose its last tokens; where it loses
 * more it is read again. */
#ifndef SD_RECURRENT_PREDICTOR_H
#define SD_RECURRENT_PREDICTOR_H

#include "predictor.h"
#include "recurrent.h"

/* Make a predictor; options: a sd_recurrent, borrowed, which must outlive the predictor. */
sd_status sd_recurrent_predictor_make(const void* options, const sd_prediction* prediction,
                                      sd_predictor** predictor);

#endif
