/* The second half of a layer with experts. */
#ifndef SD_MIXTURE_H
#define SD_MIXTURE_H

#include "pass.h"

/* hidden += what the experts of each row say, for all rows of the pass. rows [n_rows, d_model]: the input of
 * the layer's second half; input: the same, prepared. Each expert that a row goes through is read once for
 * all of its rows; the others are not read. */
void sd_mixture_run(sd_pass* pass, int layer, const float* rows, const void* input);

#endif
