/* One layer: its halves, one after the other or side by side. Cross-attention belongs to the first. */
#pragma once

#include "pass.h"
#include "workspace.h"

/* Run the rows of a pass through layer i, less what is skipped (workspace.h). */
void sd_layer_run(sd_pass* pass, int i, unsigned skipped);

/* Project the input, attend, project back and add to the residual stream. Keys and values go to the caches of
 * the branches, or to those of the pass. input: n_rows rows of d_model, prepared; it may be w->prepared,
 * which is used again. */
void sd_attention_block_run(sd_pass* pass, int i, const void* input);

/* The same for attention to the sources that the branches' caches refer to. */
void sd_cross_attention_run(sd_pass* pass, int i, const void* input);

/* hidden += feed-forward block of a layer, for all rows of the pass; input: the rows, prepared, which
 * w->normed holds as they were before, where they are normalized. */
void sd_feed_forward_run(sd_pass* pass, int layer, const void* input);

/* hidden += what the experts of each row say, for all rows of the pass. rows [n_rows, d_model]: the input of
 * the layer's second half; input: the same, prepared. Each expert that a row goes through is read once for
 * all of its rows; the others are not read. */
void sd_mixture_run(sd_pass* pass, int layer, const float* rows, const void* input);

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

/* Begin the residual stream with features and tokens of the branches' rows, as the configuration has it.
 * Where the first layer reads tokens beside features, its input is left in w->joined: [n_rows, 2 d_model]. */
void sd_pass_begin_with_features(sd_pass* pass);
