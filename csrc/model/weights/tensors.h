/* The tensors a model needs, by canonical name: the contract between loaders and core. */
#ifndef SD_TENSORS_H
#define SD_TENSORS_H

#include "config.h"

typedef enum sd_tensor_role {
    SD_TOKEN_EMBEDDING,
    SD_POSITION_EMBEDDING,
    SD_EMBEDDING_NORM,
    SD_EMBEDDING_NORM_BIAS,
    SD_RELATIVE_BIAS,
    SD_HEAD,
    SD_HEAD_BIAS,
    SD_OUTPUT_NORM,
    SD_OUTPUT_NORM_BIAS,
    SD_FEATURE_INPUT_NORM, /* of the pieces of another model's feature, one behind the other */
    SD_FEATURE_PROJECTION,
    SD_FEATURE_PROJECTION_BIAS,
    SD_TOKEN_NORM,   /* of the embedding */
    SD_FEATURE_NORM, /* of the feature */
    SD_ATTN_NORM,    /* from here on: one per layer */
    SD_ATTN_NORM_BIAS,
    SD_ATTN_Q,
    SD_ATTN_K,
    SD_ATTN_V,
    SD_ATTN_Q_BIAS,
    SD_ATTN_K_BIAS,
    SD_ATTN_V_BIAS,
    SD_ATTN_Q_NORM,
    SD_ATTN_K_NORM,
    SD_ATTN_SINKS,
    SD_ATTN_OUT,
    SD_ATTN_OUT_BIAS,
    SD_ATTN_POST_NORM,
    SD_ATTN_POST_NORM_BIAS,
    SD_LAYER_RELATIVE_BIAS,
    SD_CROSS_NORM,
    SD_CROSS_NORM_BIAS,
    SD_CROSS_Q,
    SD_CROSS_K,
    SD_CROSS_V,
    SD_CROSS_Q_BIAS,
    SD_CROSS_K_BIAS,
    SD_CROSS_V_BIAS,
    SD_CROSS_OUT,
    SD_CROSS_OUT_BIAS,
    SD_CROSS_POST_NORM,
    SD_CROSS_POST_NORM_BIAS,
    SD_MLP_NORM,
    SD_MLP_NORM_BIAS,
    SD_MLP_GATE,
    SD_MLP_UP,
    SD_MLP_DOWN,
    SD_MLP_GATE_BIAS,
    SD_MLP_UP_BIAS,
    SD_MLP_DOWN_BIAS,
    SD_MLP_POST_NORM,
    SD_MLP_POST_NORM_BIAS,
    SD_ROUTER,
    SD_ROUTER_BIAS,
    SD_SHARED_GATE, /* the shared expert's logit */
    SD_SHARED_EXPERT_GATE,
    SD_SHARED_EXPERT_UP,
    SD_SHARED_EXPERT_DOWN,
    SD_SHARED_EXPERT_GATE_BIAS,
    SD_SHARED_EXPERT_UP_BIAS,
    SD_SHARED_EXPERT_DOWN_BIAS,
    SD_EXPERT_GATE, /* from here on: one per expert of a layer */
    SD_EXPERT_UP,
    SD_EXPERT_DOWN,
    SD_EXPERT_GATE_BIAS,
    SD_EXPERT_UP_BIAS,
    SD_EXPERT_DOWN_BIAS,
    SD_N_ROLES,
} sd_tensor_role;

typedef struct sd_tensor_spec {
    sd_tensor_role role;
    int of_encoder; /* the layer, the expert and the role are those of the encoder */
    int layer;      /* -1 outside the layers */
    int expert;     /* -1 where it belongs to no expert, or to the shared one */
    int n_rows;     /* outputs; the length of a vector */
    int n_cols;     /* inputs; 0 for a vector */
    char name[64];  /* "layers.3.attn_q.weight", of an encoder "encoder.layers.3.attn_q.weight" */
} sd_tensor_spec;

/* How many tensors a model of this configuration needs, those of its encoder, the last, among them. */
int sd_tensor_count(const sd_config* config);

/* The index-th of them, 0 ≤ index < count. */
void sd_tensor_at(const sd_config* config, int index, sd_tensor_spec* spec);

/* Index of the tensor of a role, in a configuration without its encoder; layer, expert: as sd_tensor_spec has
 * them. The model needs it. */
int sd_tensor_index(const sd_config* config, sd_tensor_role role, int layer, int expert);

/* How many tensors come before those of the encoder. */
int sd_tensor_count_own(const sd_config* config);

/* Index and description of the tensor of that name; -1 if there is none. */
int sd_tensor_find(const sd_config* config, const char* name, sd_tensor_spec* spec);

#endif
