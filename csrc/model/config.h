/* What a decoder looks like: one description for the Llama and the GPT family. */
#ifndef SD_CONFIG_H
#define SD_CONFIG_H

#include "status.h"

typedef enum sd_norm { SD_NORM_RMS, SD_NORM_LAYER } sd_norm;
typedef enum sd_position { SD_POSITION_ROTARY, SD_POSITION_LEARNED } sd_position;
typedef enum sd_activation { SD_ACT_SILU, SD_ACT_GELU, SD_ACT_GELU_TANH } sd_activation;

typedef struct sd_config {
    int n_vocab, n_ctx, n_layer, n_head, n_kv_head, d_model, d_head, d_ff;
    sd_norm norm;
    float norm_eps;
    sd_position position;
    sd_activation activation;
    int gated;                        /* act(gate) · up instead of act(up) */
    int tied;                         /* the head is the token embedding */
    int qkv_bias, out_bias, mlp_bias; /* which projections have a bias */
    int sliding_window;               /* positions a row attends to, itself included; 0: all */
} sd_config;

/* Refuse dimensions that are not positive, do not divide, or overflow. */
sd_status sd_config_check(const sd_config* config);

#endif
