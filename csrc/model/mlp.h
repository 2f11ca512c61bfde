/* The first half of a feed-forward block: from rows to activations. */
#ifndef SD_MLP_H
#define SD_MLP_H

#include "workspace.h"

/* Groups [first, end) of act(gate) · up, or of act(up), of n_rows rows. input: the rows, prepared, borrowed;
 * activated: n_rows rows of `width`, prepared for the product with `down`. `thread` computes, with scratch of
 * its own in the workspace. */
void sd_mlp_activate(const sd_workspace* workspace, const sd_mlp* mlp, int n_rows, const void* input,
                     int thread, int first, int end, void* activated);

#endif
