/* The first half of a feed-forward block: from rows to activations. */
#ifndef SD_MLP_H
#define SD_MLP_H

#include "workspace.h"

/* The bands of n_rows rows as inputs of a block, for an engine that is not OpenBLAS. */
sd_bands sd_mlp_bands(const sd_mlp* mlp, sd_engine engine, int n_rows);

/* Groups [first, end) of act(gate) · up, or of act(up), of the rows of a band. input: all rows, prepared,
 * borrowed; activated: all rows of `width`, prepared for the product with `down`. `thread` computes, with
 * scratch of its own in the workspace. */
void sd_mlp_activate(const sd_workspace* workspace, const sd_mlp* mlp, sd_engine engine, sd_bands bands,
                     int band, const void* input, int thread, int first, int end, void* activated);

/* The same by OpenBLAS, in slices that are a function of n_rows and the block alone: how many there are, and
 * slices [first, end) of them. input [n_rows, d_model], activated [n_rows, width], borrowed. */
int sd_mlp_slices(const sd_mlp* mlp, int n_rows);
void sd_mlp_activate_slices(const sd_workspace* workspace, const sd_mlp* mlp, int n_rows, const float* input,
                            int thread, int first, int end, float* activated);

#endif
