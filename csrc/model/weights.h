/* A model: configuration and packed weights, immutable once finished, shared between threads. */
#ifndef SD_WEIGHTS_H
#define SD_WEIGHTS_H

#include "config.h"
#include "matrix.h"
#include "tensors.h"

typedef struct sd_layer {
    float *attn_norm, *attn_norm_bias;  /* [d_model] each; a bias is NULL where there is none */
    float *mlp_norm, *mlp_norm_bias;    /* [d_model] */
    sd_matrix qkv;                      /* queries, keys, values: [(n_head + 2 n_kv_head) d_head, d_model] */
    sd_matrix attn_out;                 /* [d_model, n_head · d_head] */
    sd_matrix mlp_in;                   /* [d_ff, d_model]; gated: gate and up in alternate panels */
    sd_matrix mlp_down;                 /* [d_model, d_ff] */
    float *qkv_bias, *attn_out_bias;    /* [outputs of qkv], [d_model] */
    float *mlp_in_bias, *mlp_down_bias; /* [outputs of mlp_in], [d_model] */
} sd_layer;

typedef struct sd_model {
    sd_config config;
    sd_arena arena;                        /* owns everything below */
    sd_layer* layers;                      /* [n_layer] */
    sd_matrix head;                        /* [n_vocab, d_model]; when tied, also the token embedding */
    float* token_embedding;                /* [n_vocab, d_model] f32, NULL when tied */
    float* position_embedding;             /* [n_ctx, d_model] f32, NULL when rotary */
    float *cosine, *sine;                  /* [n_ctx, d_head / 2] f32, NULL when learned */
    float *output_norm, *output_norm_bias; /* [d_model] */
    unsigned char* is_set;                 /* [sd_tensor_count] which tensors have been given */
    int finished;
} sd_model;

/* Allocate an empty model. inv_freq [d_head / 2]: rotary frequencies in radians per position
 * (ignored when positions are learned). On success *model is owned by the caller. */
sd_status sd_model_create(const sd_config* config, const double* inv_freq, sd_model** model);

/* Give one tensor by canonical name; its shape [n_rows, n_cols] (n_cols 0 for a vector) must be
 * the expected one, every value finite, and it must not have been given before. */
sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols);

/* Check that every tensor has been given; after this the model never changes. */
sd_status sd_model_finish(sd_model* model);

void sd_model_free(sd_model* model);

/* Outputs of mlp_in: d_ff, or twice d_ff rounded up to panels when gated. */
int sd_mlp_in_outputs(const sd_config* config);

/* out [d_model] = embedding of token (+ of position). */
void sd_model_embed(const sd_model* model, int token, int position, float* out);

#endif
