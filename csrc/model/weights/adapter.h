/* LoRA adapters (arXiv 2106.09685): where a matrix W of the model is adapted, a row x gives W x + up (down
 * x).
 *
 * A model with an adapter is a model over the weights of another, its base, so whatever decodes a model
 * decodes it. A text belongs to the model of its cache: texts of a base and of models adapted from it may
 * share the forward passes of one workspace (adapted_rows.h). */
#pragma once

#include "weights.h"

/* Most tensors in one matrix: queries, keys, values and gates. */
#define SD_ADAPTED_PARTS 4

/* Low-rank matrices of one tensor. */
typedef struct sd_low_rank {
    sd_rows rows; /* the tensor's rows in the model's matrix */
    int first;    /* first of its outputs of `down`: a multiple of SD_PANEL */
    int rank;
    sd_matrix up;         /* [rows of the tensor, rank] f32, owned by the adapter */
    int has_down, has_up; /* which of them are set */
    sd_tensor_role role;  /* with the layer it identifies the tensor */
    int layer;
} sd_low_rank;

/* Low-rank matrices of one matrix of a model. */
typedef struct sd_adapted_matrix {
    const sd_panel* panels; /* panels of the model's matrix, which identify it; borrowed */
    sd_matrix down;         /* [outputs, inputs of the model's matrix] f32, owned by the adapter */
    /* It is the first matrix of a feed-forward block: other matrices may be read and multiplied between the
     * reading of its inputs and its product. */
    int mlp_input;
    int n_parts;
    sd_low_rank parts[SD_ADAPTED_PARTS];
} sd_adapted_matrix;

typedef struct sd_adapter {
    sd_arena arena;              /* owns the arrays below */
    sd_adapted_matrix* matrices; /* [n] in ascending order of panel addresses */
    int n;
    int n_low;    /* most outputs of a `down`, in whole panels */
    int n_inputs; /* most inputs of a `down` */
} sd_adapter;

/* Canonical name of a tensor to adapt, and its rank, ≥ 1. */
typedef struct sd_adapted_tensor {
    const char* name; /* borrowed */
    int rank;
} sd_adapted_tensor;

/* Create a model over the weights of `base`, a finished decoder-only model without an adapter, with an empty
 * adapter for tensors [n], each at most once: matrices of attention, other mixers and dense feed-forward
 * blocks, and an untied head. base: borrowed; must outlive the model. *model is owned by the caller. */
sd_status sd_model_adapt(const sd_model* base, const sd_adapted_tensor* tensors, int n, sd_model** model);

/* Create a finished model over the weights and the adapter of another, borrowed, which must outlive it: rows
 * attend to the last `window` positions at most in each layer of the decoder. On success *windowed is owned
 * by the caller. */
sd_status sd_model_windowed(const sd_model* model, int window, sd_model** windowed);

/* Set a matrix of the adapter: "NAME.down" [rank, inputs] or "NAME.up" [outputs, rank] of an adapted tensor,
 * packed with n_threads threads. Its shape must match, every value must be finite, and it must not be set
 * already. */
sd_status sd_model_set_low_rank(sd_model* model, const char* name, const sd_source* source, int n_rows,
                                int n_cols, int n_threads);

/* Check that every matrix of the adapter is set; after this the model never changes. */
sd_status sd_model_finish_adapted(sd_model* model);

/* Low-rank matrices for a matrix of the model; NULL: it is not adapted. Borrowed. */
const sd_adapted_matrix* sd_adapter_find(const sd_adapter* adapter, const sd_matrix* matrix);
