/* The second half of a layer: the feed-forward block. */
#ifndef SD_FEED_FORWARD_H
#define SD_FEED_FORWARD_H

#include "pass.h"

/* hidden += feed-forward block of a layer, for all rows of the pass; input: the rows, prepared, which
 * w->normed holds as they were before, where they are normalised. */
void sd_feed_forward_run(sd_pass* pass, int layer, const void* input);

#endif
