/* A model: configuration and packed weights, immutable once finished, shared between threads. */
#pragma once

#include "config.h"
#include "matrix.h"
#include "pack.h"
#include "tensors.h"

/* A feed-forward block of some width: of [width] activations. */
typedef struct sd_mlp {
    int width;
    sd_matrix in;               /* [width, d_model]; gated: gate and up in alternate panels */
    sd_matrix down;             /* [d_model, width] */
    float *in_bias, *down_bias; /* [outputs of in], [d_model]; NULL: none */
} sd_mlp;

/* Groups of panels that the activations of a block are computed in. */
static inline int sd_mlp_groups(const sd_mlp* mlp) { return sd_matrix_panels(mlp->in.n_out) / mlp->in.group; }

typedef struct sd_layer {
    /* [d_model] each, NULL where the layer has no such norm; a LayerNorm without weights or biases has ones
     * and zeros, an RMSNorm no bias */
    float *attn_norm, *attn_norm_bias, *attn_post_norm, *attn_post_norm_bias;
    float *mlp_norm, *mlp_norm_bias, *mlp_post_norm, *mlp_post_norm_bias;
    float *q_norm, *k_norm; /* [d_head], or [heads · d_head]; NULL: none */
    float* sinks;           /* [n_head]; NULL: none */
    sd_table relative_bias; /* [bucket rows, n_head] f32: its own, or that of the model */
    /* Cross-attention, of a model with an encoder; vectors as above. Queries [n_head · d_head, d_model]; keys
     * and values, each from a whole panel on, [outputs, d_model of the encoder]; [d_model, n_head ·
     * d_head] */
    float *cross_norm, *cross_norm_bias, *cross_post_norm, *cross_post_norm_bias;
    sd_matrix cross_q, cross_kv, cross_out;
    float *cross_q_bias, *cross_kv_bias, *cross_out_bias;
    sd_matrix qkv;      /* queries, keys, values, each from a whole panel on: [outputs, sd_layer_inputs] */
    sd_matrix attn_out; /* [d_model, n_head · d_head] */
    float *qkv_bias, *attn_out_bias; /* [outputs of qkv], [d_model] */
    sd_mlp mlp;                      /* of a dense layer */
    /* Of a layer with experts; its inputs are not rounded. The shared expert's logit is the output
     * sd_shared_gate_output. */
    sd_matrix router;
    float* router_bias; /* [outputs of router]; NULL: none */
    sd_mlp* experts;    /* [n_experts], and the shared one, if there is one; NULL in a dense layer */
} sd_layer;

/* The feed-forward block that the rows of a layer are prepared for: the dense one, or that of the shared
 * expert, or that of the first expert. */
static inline const sd_mlp* sd_layer_mlp(const sd_config* config, const sd_layer* layer) {
    if (layer->experts == NULL) return &layer->mlp;
    return &layer->experts[config->experts.shared_width > 0 ? config->experts.n : 0];
}

/* Which numbers a model computes with, and by what. */
typedef struct sd_numbers {
    sd_format weights; /* of the matrices */
    /* [sd_tensor_count] the formats of tensors as a file has them: of matrices, and of the table of
     * embeddings; where one is SD_N_FORMATS, `weights`, and NULL: all are. Borrowed until the model is
     * created. */
    const sd_format* by_tensor;
    sd_format cache; /* of keys and values: SD_FORMAT_F32 or SD_FORMAT_BF16 */
    /* What multiplies the rows of prompts; of an encoder-decoder, whose texts are short, those of sources:
     * the encoder, keys and values of cross-attention among it. SD_ENGINE_TILES needs weights in another
     * format than f32, SD_ENGINE_BLAS in f32, and no mixtures. */
    sd_engine prefill;
} sd_numbers;

typedef struct sd_model {
    sd_config config;
    sd_numbers numbers; /* by_tensor is NULL */
    int mixed;          /* tensors have formats of their own */
    int row_slice;      /* tokens of a prompt that the row kernels read at a time */
    sd_arena arena;     /* owns everything below */
    sd_layer* layers;   /* [n_layer] */
    sd_matrix head;     /* [sd_head_rows, d_model]; its own or its target's */
    /* [n_vocab, d_model] f32 in an f32 model, else bf16, or as a file has it; of an encoder its own, or its
     * decoder's; or its target's */
    sd_table token_embedding;
    sd_table position_embedding;                 /* [n_ctx, d_model] f32, no rows where none are learned */
    sd_table relative_bias;                      /* [bucket rows, n_head] f32; no rows where layers have
                                                  * their own */
    float *embedding_norm, *embedding_norm_bias; /* [d_model]; NULL: none */
    float *output_norm, *output_norm_bias;       /* [d_model]; NULL: none */
    float* head_bias;                            /* [sd_head_rows]; NULL: none */
    /* Of a model with features; vectors [width] and [d_model], NULL where there is none */
    sd_matrix feature_projection; /* [d_model, sd_feature_inputs] */
    float *feature_input_norm, *feature_projection_bias, *token_norm, *feature_norm;
    /* [d_head], [n_head · d_head] of the layer with the most, for norms of heads without weight or bias */
    float *ones, *zeros;
    unsigned char* is_set; /* [sd_tensor_count] which tensors have been given */
    int finished;
    struct sd_model* encoder; /* owned; NULL: none. It has no head */
    /* Of a model that is adapted (adapter.h): the model whose weights it has, borrowed, which owns all of the
     * above; its low-rank matrices, owned. NULL: it is not adapted. */
    const struct sd_model* base;
    struct sd_adapter* adapter;
} sd_model;

/* The model whose weights a model has: its base, or itself. */
static inline const sd_model* sd_model_base(const sd_model* model) {
    return model->base ? model->base : model;
}

/* What multiplies the rows of prompts, or, of an encoder, those of sources. */
static inline sd_engine sd_prompt_engine(const sd_model* model) {
    return model->config.encoder == NULL ? model->numbers.prefill : SD_ENGINE_ROWS;
}

/* Do rows of prompts have other bits than tokens that are decoded? */
static inline int sd_prompts_apart(const sd_model* model) {
    return sd_prompt_engine(model) != SD_ENGINE_ROWS;
}

/* Do bits of a row depend on the rows that are multiplied with it? Prompts are then read in slices at fixed
 * places, a slice of one text at a time. */
static inline int sd_prompts_in_slices(const sd_model* model) {
    return sd_prompt_engine(model) == SD_ENGINE_BLAS;
}

/* Tokens of a prompt that a forward reads, of one text or several, at most SD_MOST_SLICE. */
static inline int sd_prompt_slice(const sd_model* model) {
    return sd_prompts_in_slices(model) ? SD_BLAS_SLICE : model->row_slice;
}

/* Allocate an empty model; the arrays of the configuration are copied. target: the finished model whose token
 * table or head the configuration shares, borrowed; must outlive the model; NULL where it shares none. On
 * success *model is owned by the caller. For SD_ENGINE_BLAS the library has been loaded. */
sd_status sd_model_create(const sd_config* config, sd_numbers numbers, const sd_model* target,
                          sd_model** model);

/* The same over blocks as sd_model_blocks gave of a finished model of this configuration and these numbers:
 * they hold the weights, all else in them is written anew. blocks: of the model and of its encoder, if there
 * is one, borrowed; must outlive the model, which is finished. Fails on blocks of other sizes. */
sd_status sd_model_adopt(const sd_config* config, sd_numbers numbers, const sd_memory_block blocks[2],
                         sd_model** model);

/* The memory of a model, and of its encoder: how many blocks, into blocks [2], borrowed. */
int sd_model_blocks(const sd_model* model, sd_memory_block blocks[2]);

/* A number for the layout of these blocks: it differs where what they hold lies elsewhere in them. */
uint64_t sd_model_layout(const sd_model* model);

/* Give one tensor by canonical name, packed with n_threads threads; its shape [n_rows, n_cols] (n_cols 0 for
 * a vector) must be the expected one, every value finite, and it must not have been given before. */
sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                       int n_threads);

/* Check that every tensor has been given; after this the model never changes. */
sd_status sd_model_finish(sd_model* model);

void sd_model_free(sd_model* model);

/* Bytes of its weights, those of its encoder among them. */
size_t sd_model_bytes(const sd_model* model);

/* Where keys and values begin among the outputs of a layer's qkv, and how many outputs there are. */
int sd_keys_column(const sd_layer_config* layer);
int sd_values_column(const sd_layer_config* layer);
int sd_qkv_outputs(const sd_layer_config* layer);

/* The same of the matrix of cross-attention's keys and values. */
int sd_cross_values_column(const sd_layer_config* layer);
int sd_cross_outputs(const sd_layer_config* layer);

/* Where the shared expert's logit is among the outputs of a router. */
int sd_shared_gate_output(const sd_config* config);

/* The matrix that a tensor is or is part of, borrowed; NULL: it is none. */
const sd_matrix* sd_model_matrix(const sd_model* model, const sd_tensor_spec* spec);

/* The same, and which rows of it the tensor's are. */
const sd_matrix* sd_model_matrix_rows(const sd_model* model, const sd_tensor_spec* spec, sd_rows* rows);

/* Rows [first, first + n) of a finished model's matrix of that name, as it is computed with, to out [n,
 * n_cols] f32. Fails on the name of no matrix. */
sd_status sd_model_rows(const sd_model* model, const char* name, int first, int n, float* out);

/* out [n] = the norm of x [n], which may be out, of the model's kind. */
void sd_model_norm(const sd_model* model, int n, const float* x, const float* weight, const float* bias,
                   float* out);

/* out [d_model] = embedding of token, scaled, + of position, normalized, as the configuration has it. */
void sd_model_embed(const sd_model* model, int token, int position, float* out);

/* The same of a vector [d_model] in the place of a token's embedding, which is not scaled. */
void sd_model_begin_with(const sd_model* model, const float* vector, int position, float* out);
