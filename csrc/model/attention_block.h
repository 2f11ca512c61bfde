/* The first half of a layer: projections to queries, keys and values, attention, the projection back. */
#ifndef SD_ATTENTION_BLOCK_H
#define SD_ATTENTION_BLOCK_H

#include "pass.h"

/* hidden += attention of a layer, for all rows of the pass. */
void sd_attention_block_run(const sd_pass* pass, int layer);

#endif
