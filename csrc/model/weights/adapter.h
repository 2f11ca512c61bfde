/* Low-rank matrices beside those of a model (LoRA, arXiv 2106.09685): where a matrix W of the model is
 * adapted a row x gives W x + up (down x).
 *
 * A model with an adapter is a model of its own over the weights of another, its base, so whatever decodes a
 * model decodes it. A text belongs to the model of its cache: texts of a base and of models adapted from it
 * may share the forwards of one workspace (adapted_rows.h). */
#pragma once

#include "weights.h"

/* Queries, keys and values are the most tensors of one matrix. */
#define SD_ADAPTED_PARTS 3

/* The low-rank matrices of one tensor. */
typedef struct sd_low_rank {
    sd_rows rows; /* of the model's matrix, that the tensor's are */
    int first;    /* output of `down` that its own begin with: a multiple of SD_PANEL */
    int rank;
    sd_matrix up;         /* [rows of the tensor, rank] f32, owned by the adapter */
    int has_down, has_up; /* what has been given */
    sd_tensor_role role;  /* with the layer, which tensor it is */
    int layer;
} sd_low_rank;

/* Those of one matrix of a model. */
typedef struct sd_adapted_matrix {
    const sd_panel* panels; /* the panels of the model's matrix, by which it is known; borrowed */
    sd_matrix down;         /* [outputs, inputs of the model's matrix] f32, owned by the adapter */
    int beside;             /* it is the first of a feed-forward block: others may be read and multiplied
                             * between the reading of its inputs and its product */
    int n_parts;
    sd_low_rank parts[SD_ADAPTED_PARTS];
} sd_adapted_matrix;

typedef struct sd_adapter {
    sd_arena arena;              /* owns what is below */
    sd_adapted_matrix* matrices; /* [n] by ascending addresses of their panels */
    int n;
    int n_low;    /* the most outputs that a `down` has, in whole panels */
    int n_inputs; /* the most inputs of one */
} sd_adapter;

/* A tensor that an adapter is for, by canonical name, and its rank there, ≥ 1. */
typedef struct sd_adapted_tensor {
    const char* name; /* borrowed */
    int rank;
} sd_adapted_tensor;

/* Create a model over the weights of `base`, a finished decoder-only model that is not adapted itself, with
 * an empty adapter for tensors [n], each at most once: matrices of attention, of dense feed-forward blocks,
 * the head where it is not tied. base: borrowed; must outlive the model. *model is owned by the caller. */
sd_status sd_model_adapt(const sd_model* base, const sd_adapted_tensor* tensors, int n, sd_model** model);

/* Give a matrix of the adapter: "NAME.down" [rank, inputs] or "NAME.up" [outputs, rank] of a tensor that it
 * is for, packed with n_threads threads; its shape must be the expected one, every value finite, and it must
 * not have been given before. */
sd_status sd_model_set_low_rank(sd_model* model, const char* name, const sd_source* source, int n_rows,
                                int n_cols, int n_threads);

/* Check that every matrix of the adapter has been given; after this the model never changes. */
sd_status sd_model_finish_adapted(sd_model* model);

/* The low-rank matrices beside a matrix of the model; NULL: it is not adapted. Borrowed. */
const sd_adapted_matrix* sd_adapter_find(const sd_adapter* adapter, const sd_matrix* matrix);
