/* The first half of a layer: attention of all rows of a pass, and cross-attention. */
#ifndef SD_ATTENTION_BLOCK_H
#define SD_ATTENTION_BLOCK_H

#include "pass.h"

/* Project the input, attend, project back and add to the residual stream. Keys and values go to the caches of
 * the branches, or to those of the pass. input: n_rows rows of d_model, prepared; it may be
 * w->prepared, which is used again. */
void sd_attention_block_run(sd_pass* pass, int i, const void* input);

/* The same for attention to the sources that the branches' caches refer to. */
void sd_cross_attention_run(sd_pass* pass, int i, const void* input);

#endif
