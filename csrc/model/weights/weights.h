/* A model: configuration and packed weights, immutable once finished, shared by threads. */
#pragma once

#include "config.h"
#include "matrix.h"
#include "pack.h"
#include "tensors.h"

/* A feed-forward block with `width` activations. */
typedef struct sd_mlp {
    int width;
    sd_matrix in;               /* [width, d_model]; gated: gate and up in alternate panels */
    sd_matrix down;             /* [d_model, width] */
    float *in_bias, *down_bias; /* [outputs of in], [d_model]; NULL: none */
    float* xielu;               /* [3] factors of the activation; NULL: none */
} sd_mlp;

/* Groups of panels in which a block's activations are computed. */
static inline int sd_mlp_groups(const sd_mlp* mlp) { return sd_matrix_panels(mlp->in.n_out) / mlp->in.group; }

typedef struct sd_layer {
    /* [d_model] each, NULL if the layer has no such norm; a LayerNorm without weights or biases has ones and
     * zeros, an RMSNorm no bias */
    float *attn_norm, *attn_norm_bias, *attn_post_norm, *attn_post_norm_bias;
    float *mlp_norm, *mlp_norm_bias, *mlp_post_norm, *mlp_post_norm_bias;
    float *q_norm, *k_norm; /* [d_head], or [heads · d_head]; NULL: none */
    float* sinks;           /* [n_head]; NULL: none */
    float* scale;           /* [1] of the stream after the layer; NULL: none */
    sd_table relative_bias; /* [bucket rows, n_head] f32: the layer's own, or the model's */
    /* Cross-attention of a model with an encoder; vectors as above. Queries [n_head · d_head, d_model]; keys
     * and values, each from a whole panel on, [outputs, d_model of the encoder]; output [d_model, n_head ·
     * d_head] */
    float *cross_norm, *cross_norm_bias, *cross_post_norm, *cross_post_norm_bias;
    sd_matrix cross_q, cross_kv, cross_out;
    float *cross_q_bias, *cross_kv_bias, *cross_out_bias;
    /* Projections into and out of attention: queries, keys, values, gates, each from a whole panel on,
     * [outputs, sd_layer_inputs], and [d_model, n_head · d_head] */
    sd_matrix qkv, attn_out;
    float *qkv_bias, *attn_out_bias; /* [outputs of qkv], [d_model] */
    /* The same of the mixer: [sd_mixer_outputs, d_model], [d_model, sd_mixer_width] */
    sd_matrix mixer_in, mixer_out;
    float *mixer_in_bias, *mixer_out_bias;
    /* Of a recurrent layer: beta and decay of each value head, in f32, [n_rates, d_model]; bias and factor of
     * the decay, in Mamba-2 the factor of the value in the output, [n_value_head] each; the norm of a head,
     * [d_value], or in Mamba-2 of all values */
    sd_matrix rates;
    float *decay_bias, *decay_rate, *mixer_skip, *mixer_norm;
    sd_table conv;    /* [conv_width, channels] f32, oldest input first; of the mixer */
    float* conv_bias; /* [channels]; NULL: none */
    sd_mlp mlp;       /* of a dense layer, or with experts */
    /* With per-layer embeddings: gate [d_per_layer, d_model], output [d_model, d_per_layer] and its norm
     * [d_model] */
    sd_matrix per_layer_gate, per_layer_out;
    float* per_layer_post_norm;
    /* Of a layer with experts; inputs are not rounded. The shared expert's logit is the output
     * sd_shared_gate_output. */
    sd_matrix router;
    float* router_bias;       /* [outputs of router]; NULL: none */
    float* router_correction; /* [n_experts]; NULL: none */
    /* With a dense block: [d_model] each, [n_experts]; NULL: none */
    float *router_norm, *experts_norm, *experts_post_norm, *dense_post_norm, *expert_scale;
    sd_mlp* experts; /* [n_experts], then the shared one, if any; NULL in a dense layer */
} sd_layer;

/* Feed-forward block that a layer's rows are prepared for: the dense one, the shared expert, or the first
 * expert. */
static inline const sd_mlp* sd_layer_mlp(const sd_config* config, const sd_layer* layer) {
    if (layer->experts == NULL || config->experts.with_dense) return &layer->mlp;
    return &layer->experts[config->experts.shared_width > 0 ? config->experts.n : 0];
}

/* Number formats of a model, and the engine of its prompts. */
typedef struct sd_numbers {
    sd_format weights; /* of the matrices */
    /* [sd_tensor_count] formats that tensors have in a file: matrices and the embedding table. SD_N_FORMATS:
     * `weights`; NULL: all are `weights`. Borrowed until the model is created. */
    const sd_format* by_tensor;
    sd_format cache; /* of keys and values: SD_FORMAT_F32, SD_FORMAT_BF16 or SD_FORMAT_INT8 */
    /* Engine for the rows of prompts; in an encoder-decoder, whose texts are short, for rows of sources: the
     * encoder, and keys and values of cross-attention. SD_ENGINE_TILES needs weights not in f32;
     * SD_ENGINE_BLAS needs f32 and no mixtures. */
    sd_engine prefill;
} sd_numbers;

typedef struct sd_model {
    sd_config config;
    sd_numbers numbers;       /* by_tensor is NULL */
    int mixed;                /* tensors have their own formats */
    int row_slice;            /* prompt tokens per slice for the row kernels */
    sd_arena arena;           /* owns everything below */
    sd_layer* layers;         /* [n_layer] */
    sd_matrix head;           /* [sd_head_rows, d_model]; its own, with copied rows or not, or its target's */
    sd_matrix head_centroids; /* [n_clusters, d_model]; empty without clusters */
    /* [n_vocab, sd_own_width] f32 in an f32 model, else bf16, or as in a file; an encoder may share its
     * decoder's, a draft model its target's */
    sd_table token_embedding;
    sd_table position_embedding; /* [n_ctx, d_model] f32, no rows where none are learned */
    /* Per-layer embeddings, if any: a table like token_embedding, [n_vocab, n_layer · d_per_layer], a
     * projection [n_layer · d_per_layer, d_model] and its norm [d_per_layer] */
    sd_table per_layer_embedding;
    sd_matrix per_layer_projection;
    float* per_layer_projection_norm;
    /* [bucket rows, n_head] f32; no rows if layers have their own */
    sd_table relative_bias;
    float *embedding_norm, *embedding_norm_bias; /* [d_model]; NULL: none */
    float *output_norm, *output_norm_bias;       /* [d_model]; NULL: none */
    float* head_bias;                            /* [sd_head_rows]; NULL: none */
    /* For models with features; vectors [width] and [d_model], NULL if absent */
    sd_matrix feature_projection; /* [d_model, sd_feature_inputs] */
    sd_matrix feature_output;     /* [width, d_model]; empty: own features are not projected */
    float *feature_input_norm, *feature_projection_bias, *token_norm, *feature_norm;
    float* channel_scales; /* [channels of recurrent layers] factors of convolution inputs; NULL: none */
    /* [d_head], [n_head · d_head] of the layer with the most, for head norms without weight or bias */
    float *ones, *zeros;
    unsigned char* is_set; /* [sd_tensor_count] tensors set so far */
    int finished;
    struct sd_model* encoder; /* owned; NULL: none. It has no head */
    /* An adapted model (adapter.h): its base, borrowed, which owns all of the above, and its low-rank
     * matrices, owned. NULL: not adapted. */
    const struct sd_model* base;
    struct sd_adapter* adapter;
    int windowed; /* the rest, except the configuration's layers, belongs to another model */
} sd_model;

/* The model that owns the weights: the base, or the model itself. */
static inline const sd_model* sd_model_base(const sd_model* model) {
    return model->base ? model->base : model;
}

/* Engine for the rows of prompts or, in an encoder, of sources. */
static inline sd_engine sd_prompt_engine(const sd_model* model) {
    return model->config.encoder == NULL ? model->numbers.prefill : SD_ENGINE_ROWS;
}

/* Do rows of prompts have other bits than decoded tokens? */
static inline int sd_prompts_apart(const sd_model* model) {
    return sd_prompt_engine(model) != SD_ENGINE_ROWS;
}

/* Do a row's bits depend on the rows multiplied with it? Prompts are then read in slices at fixed positions,
 * one text at a time. */
static inline int sd_prompts_in_slices(const sd_model* model) {
    return sd_prompt_engine(model) == SD_ENGINE_BLAS;
}

/* Prompt tokens per forward pass, of one text or several, at most SD_MOST_SLICE. */
static inline int sd_prompt_slice(const sd_model* model) {
    return sd_prompts_in_slices(model) ? SD_BLAS_SLICE : model->row_slice;
}

/* What a draft model shares with its target; all borrowed. */
typedef struct sd_shared {
    const sd_model* target; /* finished model with the token table or head, outlives the draft; NULL: none */
    /* [n_draft_tokens of the configuration] rows of the target's head, copied in its format; NULL: all */
    const int32_t* head_rows;
} sd_shared;

/* Allocate an empty model; arrays of the configuration are copied. On success *model is owned by the caller.
 * SD_ENGINE_BLAS needs the library to be loaded. */
sd_status sd_model_create(const sd_config* config, sd_numbers numbers, sd_shared shared, sd_model** model);

/* The same over blocks of sd_model_blocks from a finished model with this configuration and these numbers:
 * they hold the weights; all else in them is rewritten. blocks: of the model and of its encoder, if any,
 * borrowed; must outlive the model, which is finished. Fails on blocks of other sizes. */
sd_status sd_model_adopt(const sd_config* config, sd_numbers numbers, const sd_memory_block blocks[2],
                         sd_model** model);

/* Memory blocks of a model and its encoder, into blocks [2], borrowed. Returns their number. */
int sd_model_blocks(const sd_model* model, sd_memory_block blocks[2]);

/* Fingerprint of the blocks' layout: it differs if anything moves in them. */
uint64_t sd_model_layout(const sd_model* model);

/* Add the weights to a digest; of an adapted model, those of the adapter alone. Fails when interrupted. */
sd_status sd_model_digest(const sd_model* model, uint64_t* digest);

/* Destination of a tensor's numbers, with its name and shape; borrows from `spec`. */
sd_destination sd_model_destination(sd_model* model, const sd_tensor_spec* spec);

/* Set one tensor by canonical name, packed with n_threads threads. Its shape [n_rows, n_cols] (n_cols 0: a
 * vector) must match, every value must be finite, and it must not be set already. */
sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                       int n_threads);

/* Check that every tensor is set; after this the model never changes. */
sd_status sd_model_finish(sd_model* model);

void sd_model_free(sd_model* model);

/* Bytes of the weights, including its encoder's. */
size_t sd_model_bytes(const sd_model* model);

/* First columns of keys, of values and of gates in a row of queries, keys and values; the number of columns
 * up to the last value. Outputs of a layer's qkv: without values that are keys, which are copied. */
int sd_keys_column(const sd_layer_config* layer);
int sd_values_column(const sd_layer_config* layer);
int sd_gate_column(const sd_layer_config* layer);
int sd_qkv_width(const sd_layer_config* layer);
int sd_qkv_outputs(const sd_config* config, const sd_layer_config* layer);

/* The same for cross-attention's matrix of keys and values. */
int sd_cross_values_column(const sd_layer_config* layer);
int sd_cross_outputs(const sd_layer_config* layer);

/* Index of the shared expert's logit in the outputs of a router. */
int sd_shared_gate_output(const sd_config* config);

/* The matrix that contains a tensor, borrowed; NULL: none. */
const sd_matrix* sd_model_matrix(const sd_model* model, const sd_tensor_spec* spec);

/* The same, and the tensor's rows in it. */
const sd_matrix* sd_model_matrix_rows(const sd_model* model, const sd_tensor_spec* spec, sd_rows* rows);

/* Read rows [first, first + n) of a finished model's matrix, given by name, as products use them, into out
 * [n, n_cols] f32. Fails if no matrix has the name. */
sd_status sd_model_rows(const sd_model* model, const char* name, int first, int n, float* out);

/* out [n] = norm of x [n], which may be out, by the model's type of norm. */
void sd_model_norm(const sd_model* model, int n, const float* x, const float* weight, const float* bias,
                   float* out);

/* out [sd_own_width] = token embedding, scaled, plus position embedding, normalized, as configured. */
void sd_model_embed(const sd_model* model, int token, int position, float* out);

/* The same with vector [d_model] instead of a token's embedding; it is not scaled. */
void sd_model_embed_vector(const sd_model* model, const float* vector, int position, float* out);
