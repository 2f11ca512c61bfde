/* One layer: its halves, in sequence or in parallel. Cross-attention belongs to the first. */
#pragma once

#include "pass.h"
#include "workspace.h"

/* Run the rows of a pass through layer i, except what is skipped (workspace.h). The layer's scale is skipped
 * with both halves, its per-layer embeddings with the second. */
void sd_layer_run(sd_pass* pass, int i, unsigned skipped);

/* Project the input, attend, project back and add to the residual stream. Keys and values go to the caches of
 * the branches, or to those of the pass. input: n_rows rows of d_model, prepared; it may be w->prepared,
 * which is overwritten. */
void sd_attention_block_run(sd_pass* pass, int i, const void* input);

/* The same for the gated short convolution (convolution.c), whose inputs go to the caches of the branches. */
void sd_convolution_block_run(sd_pass* pass, int i, const void* input);

/* The same for the gated delta rule and Mamba-2 (recurrent_block.c): convolution inputs and log go to the
 * caches, whose tiles are updated. */
void sd_recurrent_block_run(sd_pass* pass, int i, const void* input);

/* The same for attention to the sources of the branches' caches. */
void sd_cross_attention_run(sd_pass* pass, int i, const void* input);

/* w->qkv = input · matrixᵀ + bias; and w->attended projected back and added to the residual stream, with a
 * norm and scale as in sd_pass_add_product. */
void sd_pass_project(sd_pass* pass, const sd_matrix* matrix, const float* bias, const void* input);
void sd_pass_project_back(sd_pass* pass, const sd_matrix* matrix, const float* bias, sd_norm_weights norm,
                          float scale);

/* hidden += feed-forward block of a layer, for all rows of the pass. input: the rows, prepared; if they are
 * normalized, w->normed holds them unprepared. */
void sd_feed_forward_run(sd_pass* pass, int layer, const void* input);

/* Per-layer embeddings (per_layer.c). Before the first layer, while w->hidden holds the rows' embeddings:
 * compute each row's vectors for all layers, w->per_layer. Then for each layer: hidden += the projection of
 * its vectors, gated. */
void sd_pass_embed_per_layer(sd_pass* pass);
void sd_per_layer_run(sd_pass* pass, int i);

/* gate = act(gate) · up, or act(gate) if up is NULL; gate, up [n], borrowed. `mlp` has the activation's own
 * numbers, if it has any. */
void sd_activate(const sd_config* config, const sd_mlp* mlp, int n, float* gate, const float* up);

/* hidden += weighted outputs of each row's experts, for all rows of the pass. rows [n_rows, d_model]: the
 * input of the layer's second half; input: the same, prepared. Each expert in use is read once for all of its
 * rows; the others are not read. */
void sd_mixture_run(sd_pass* pass, int layer, const float* rows, const void* input);

/* The same for experts with a dense block, whose output is in w->update. */
void sd_mixture_run_with_dense(sd_pass* pass, int layer);

/* The bands of n_rows rows as inputs of a block, for an engine other than OpenBLAS. */
sd_bands sd_mlp_bands(const sd_mlp* mlp, sd_engine engine, int n_rows);

/* Compute groups [first, end) of act(gate) · up, or of act(up), for the rows of a band. input: all rows,
 * prepared, borrowed; activated: all rows of `width`, prepared for the product with `down`. `thread` selects
 * the scratch in the workspace. */
void sd_mlp_activate(const sd_workspace* workspace, const sd_mlp* mlp, sd_engine engine, sd_bands bands,
                     int band, const void* input, int thread, int first, int end, void* activated);

/* The same with OpenBLAS, in slices that depend only on n_rows and the block: their number, and slices
 * [first, end) of them. input [n_rows, d_model], activated [n_rows, width], borrowed. */
int sd_mlp_slices(const sd_mlp* mlp, int n_rows);
void sd_mlp_activate_slices(const sd_workspace* workspace, const sd_mlp* mlp, int n_rows, const float* input,
                            int thread, int first, int end, float* activated);

/* Start the residual stream with features and tokens of the branches' rows, as configured. If the first layer
 * reads tokens as well as features, its input is left in w->joined: [n_rows, 2 d_model]. */
void sd_pass_embed_features(sd_pass* pass);

/* Project the rows of the pass to features of their children, w->own, for a model with feature_output. */
void sd_pass_project_features(sd_pass* pass);

/* Compute the logits of n rows [n, d_model] of the residual stream, into w->logits from row `first` on. Those
 * of a head in clusters are of w->clusters, one cluster after the other. */
void sd_head_run(sd_pass* pass, const float* rows, int n, int first);
