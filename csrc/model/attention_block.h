/* The first half of a layer: projections to queries, keys and values, attention, the projection back. */
#ifndef SD_ATTENTION_BLOCK_H
#define SD_ATTENTION_BLOCK_H

#include "pass.h"

/* hidden += attention of a layer, for all rows of the pass; input: the rows, prepared; it may be w->prepared,
 * which is used again. */
void sd_attention_block_run(const sd_pass* pass, int layer, const void* input);

#endif
