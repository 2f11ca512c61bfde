/* The tensors a model needs, by canonical name: the contract between loaders and core. */
#pragma once

#include "config.h"

/* Every tensor of a model in order, as T(role, name, rows, columns, there, destination). tensors.c reads
 * rows, columns (0: a vector) and whether a configuration has the tensor. It uses the names that it declares:
 * c, the configuration; e and f, its experts and features; layer, the layer's configuration. weights.c reads
 * where the numbers go: a vector, a table, rows of a matrix. */
/* clang-format off */
#define SD_NORM_TENSORS(T, ROLE, name, there, vector)                        \
    T(ROLE, name ".weight", d, 0, (there) && c->norm_weight, VECTOR(vector)) \
    T(ROLE##_BIAS, name ".bias", d, 0, (there) && c->norm_bias, VECTOR(vector##_bias))

#define SD_QKV_TENSORS(T, ROLE, name, inputs, kv_inputs, there, k_there, v_there, q, kv, keys, values) \
    T(ROLE##_Q, name "_q.weight", d_q, inputs, there, MATRIX(q, all))                                  \
    T(ROLE##_K, name "_k.weight", d_kv, kv_inputs, k_there, MATRIX(kv, keys))                          \
    T(ROLE##_V, name "_v.weight", d_kv, kv_inputs, v_there, MATRIX(kv, values))                        \
    T(ROLE##_Q_BIAS, name "_q.bias", d_q, 0, (there) && c->qkv_bias, VECTOR_ROWS(q##_bias, all))       \
    T(ROLE##_K_BIAS, name "_k.bias", d_kv, 0, (k_there) && c->qkv_bias, VECTOR_ROWS(kv##_bias, keys))  \
    T(ROLE##_V_BIAS, name "_v.bias", d_kv, 0, (v_there) && c->qkv_bias, VECTOR_ROWS(kv##_bias, values))

#define SD_MLP_TENSORS(T, ROLE, prefix, width, there)                                                        \
    T(ROLE##_GATE, prefix "mlp_gate.weight", width, d, (there) && c->gated, MATRIX(mlp->in, gate))           \
    T(ROLE##_UP, prefix "mlp_up.weight", width, d, there, MATRIX(mlp->in, up))                               \
    T(ROLE##_DOWN, prefix "mlp_down.weight", d, width, there, MATRIX(mlp->down, all))                        \
    T(ROLE##_GATE_BIAS, prefix "mlp_gate.bias", width, 0, (there) && c->gated && c->mlp_bias,                \
      VECTOR_ROWS(mlp->in_bias, gate))                                                                       \
    T(ROLE##_UP_BIAS, prefix "mlp_up.bias", width, 0, (there) && c->mlp_bias, VECTOR_ROWS(mlp->in_bias, up)) \
    T(ROLE##_DOWN_BIAS, prefix "mlp_down.bias", d, 0, (there) && c->mlp_bias, VECTOR(mlp->down_bias))

#define SD_TENSORS(T)                                                                                       \
    T(TOKEN_EMBEDDING, "token_embedding", c->n_vocab, sd_own_width(c), !c->shared_embedding, EMBEDDING)     \
    T(POSITION_EMBEDDING, "position_embedding", c->n_ctx, d, learned, TABLE(model->position_embedding))     \
    SD_NORM_TENSORS(T, EMBEDDING_NORM, "embedding_norm", c->embedding_norm, model->embedding_norm)          \
    T(RELATIVE_BIAS, "relative_bias", buckets, layer->n_head, buckets && !c->bias_by_layer,                 \
      TABLE(model->relative_bias))                                                                          \
    T(HEAD, "head", sd_head_rows(c), d, own_head && !c->tied, MATRIX(model->head, all))                     \
    T(HEAD_BIAS, "head_bias", sd_head_rows(c), 0, own_head && c->head_bias, VECTOR(model->head_bias))       \
    SD_NORM_TENSORS(T, OUTPUT_NORM, "output_norm", c->output_norm, model->output_norm)                      \
    T(FEATURE_INPUT_NORM, "feature_input_norm.weight", f->width, 0, features && f->n_pieces,                \
      VECTOR(model->feature_input_norm)) /* of the pieces of a feature, one after the other \*/             \
    T(FEATURE_PROJECTION, "feature_projection.weight", d, sd_feature_inputs(c), features,                   \
      MATRIX(model->feature_projection, all))                                                               \
    T(FEATURE_PROJECTION_BIAS, "feature_projection.bias", d, 0, features && f->bias,                        \
      VECTOR(model->feature_projection_bias))                                                               \
    T(FEATURE_OUTPUT, "feature_output.weight", f->width, d, features && f->output,                          \
      MATRIX(model->feature_output, all))                                                                   \
    T(HEAD_CENTROIDS, "head_centroids.weight", c->n_clusters, d, c->n_clusters,                             \
      MATRIX(model->head_centroids, all))                                                                   \
    T(TOKEN_NORM, "token_norm.weight", d, 0, normed_features, VECTOR(model->token_norm))                    \
    T(FEATURE_NORM, "feature_norm.weight", d, 0, normed_features, VECTOR(model->feature_norm))              \
    T(PER_LAYER_EMBEDDING, "per_layer_embedding", c->n_vocab, c->n_layer* d_per_layer, d_per_layer,         \
      TABLE(model->per_layer_embedding)) /* layer after layer, like their projection */                     \
    T(PER_LAYER_PROJECTION, "per_layer_projection.weight", c->n_layer* d_per_layer, d, d_per_layer,         \
      MATRIX(model->per_layer_projection, all))                                                             \
    T(PER_LAYER_PROJECTION_NORM, "per_layer_projection_norm.weight", d_per_layer, 0, d_per_layer,           \
      VECTOR(model->per_layer_projection_norm))                                                             \
    /* from here on: one per layer */                                                                       \
    SD_NORM_TENSORS(T, ATTN_NORM, "attn_norm", input && layer->input_norm && first, to->attn_norm)          \
    SD_QKV_TENSORS(T, ATTN, "attn", inputs, inputs, attends, stores, stores && !layer->values_from_keys,    \
                   to->qkv, to->qkv, keys, values)                                                          \
    T(ATTN_GATE, "attn_gate.weight", sd_gate_width(c, layer), inputs, attends && c->attn_gate,              \
      MATRIX(to->qkv, attn_gate))                                                                           \
    T(ATTN_Q_NORM, "attn_q_norm.weight", of_head ? layer->d_head : d_q, 0, attends && c->qk_norm,           \
      VECTOR(to->q_norm))                                                                                   \
    T(ATTN_K_NORM, "attn_k_norm.weight", of_head ? layer->d_head : d_kv, 0, stores && c->qk_norm,           \
      VECTOR(to->k_norm))                                                                                   \
    T(ATTN_SINKS, "attn_sinks", layer->n_head, 0, attends && c->attn_sinks, VECTOR(to->sinks))              \
    T(ATTN_OUT, "attn_out.weight", d, d_q, attends, MATRIX(to->attn_out, all))                              \
    T(ATTN_OUT_BIAS, "attn_out.bias", d, 0, attends && c->out_bias, VECTOR(to->attn_out_bias))              \
    T(MIXER_IN, "mixer_in.weight", recurs ? channels : mixer_outputs, d, mixes, MATRIX(to->mixer_in, all))  \
    T(MIXER_IN_BIAS, "mixer_in.bias", mixer_outputs, 0, biased, VECTOR(to->mixer_in_bias))                  \
    T(MIXER_GATE, "mixer_gate.weight", mixer_width, d, recurs, MATRIX(to->mixer_in, mixer_gate))            \
    T(MIXER_BETA, "mixer_beta.weight", n_value_head, d, delta, MATRIX(to->rates, all))                      \
    T(MIXER_DECAY, "mixer_decay.weight", n_value_head, d, recurs, MATRIX(to->rates, decay))                 \
    T(MIXER_DECAY_BIAS, "mixer_decay.bias", n_value_head, 0, recurs, VECTOR(to->decay_bias))                \
    T(MIXER_DECAY_RATE, "mixer_decay.rate", n_value_head, 0, recurs, VECTOR(to->decay_rate))                \
    T(MIXER_SKIP, "mixer_skip", n_value_head, 0, mamba2, VECTOR(to->mixer_skip))                            \
    T(MIXER_NORM, "mixer_norm.weight", delta ? c->mixers.d_value : mixer_width, 0,                          \
      delta || (mamba2 && c->mixers.n_norm_groups), VECTOR(to->mixer_norm))                                 \
    T(MIXER_CONV, "mixer_conv", c->mixers.conv_width, channels, mixes, TABLE(to->conv))                     \
    T(MIXER_CONV_BIAS, "mixer_conv_bias", channels, 0, mixes && c->mixers.conv_bias,                        \
      VECTOR(to->conv_bias))                                                                                \
    T(MIXER_OUT, "mixer_out.weight", d, mixer_width, mixes, MATRIX(to->mixer_out, all))                     \
    T(MIXER_OUT_BIAS, "mixer_out.bias", d, 0, biased, VECTOR(to->mixer_out_bias))                           \
    SD_NORM_TENSORS(T, ATTN_POST_NORM, "attn_post_norm", post && first, to->attn_post_norm)                 \
    T(LAYER_RELATIVE_BIAS, "relative_bias", buckets, layer->n_head, attends && c->bias_by_layer,            \
      TABLE(to->relative_bias))                                                                             \
    SD_NORM_TENSORS(T, CROSS_NORM, "cross_norm", crosses && input, to->cross_norm)                          \
    SD_QKV_TENSORS(T, CROSS, "cross", d, d_source, crosses, crosses, crosses, to->cross_q, to->cross_kv,    \
                   all, cross_values)                                                                       \
    T(CROSS_OUT, "cross_out.weight", d, d_q, crosses, MATRIX(to->cross_out, all))                           \
    T(CROSS_OUT_BIAS, "cross_out.bias", d, 0, crosses && c->out_bias, VECTOR(to->cross_out_bias))           \
    SD_NORM_TENSORS(T, CROSS_POST_NORM, "cross_post_norm", crosses && post, to->cross_post_norm)            \
    SD_NORM_TENSORS(T, MLP_NORM, "mlp_norm", input && second && c->parallel != SD_PARALLEL_ONE_NORM,        \
                    to->mlp_norm)                                                                           \
    SD_MLP_TENSORS(T, MLP, "", layer->d_ff, dense)                                                          \
    T(MLP_XIELU, "mlp_xielu", 3, 0, dense && c->activation == SD_ACT_XIELU, VECTOR(mlp->xielu))             \
    SD_NORM_TENSORS(T, MLP_POST_NORM, "mlp_post_norm", post && second, to->mlp_post_norm)                   \
    T(PER_LAYER_GATE, "per_layer_gate.weight", d_per_layer, d, d_per_layer, MATRIX(to->per_layer_gate, all))\
    T(PER_LAYER_OUT, "per_layer_out.weight", d, d_per_layer, d_per_layer, MATRIX(to->per_layer_out, all))   \
    T(PER_LAYER_POST_NORM, "per_layer_post_norm.weight", d, 0, d_per_layer, VECTOR(to->per_layer_post_norm))\
    T(LAYER_SCALE, "layer_scale", 1, 0, c->layer_scale, VECTOR(to->scale))                                  \
    T(ROUTER, "router.weight", e->n, d, mixture, MATRIX(to->router, all))                                   \
    T(ROUTER_BIAS, "router.bias", e->n, 0, mixture && e->router_bias, VECTOR(to->router_bias))              \
    T(ROUTER_CORRECTION, "router_correction", e->n, 0, mixture && e->correction,                            \
      VECTOR(to->router_correction))                                                                        \
    T(ROUTER_NORM, "router_norm.weight", d, 0, with_dense, VECTOR(to->router_norm))                         \
    T(EXPERT_SCALE, "expert_scale", e->n, 0, with_dense, VECTOR(to->expert_scale))                          \
    T(EXPERTS_NORM, "experts_norm.weight", d, 0, with_dense, VECTOR(to->experts_norm))                      \
    T(EXPERTS_POST_NORM, "experts_post_norm.weight", d, 0, with_dense, VECTOR(to->experts_post_norm))       \
    T(DENSE_POST_NORM, "dense_post_norm.weight", d, 0, with_dense, VECTOR(to->dense_post_norm))             \
    T(SHARED_GATE, "shared_gate.weight", 1, d, mixture && e->shared_gate, MATRIX(to->router, shared_gate))  \
    SD_MLP_TENSORS(T, SHARED_EXPERT, "shared_expert.", e->shared_width, mixture && e->shared_width)         \
    /* from here on: one per expert of a layer */                                                           \
    SD_MLP_TENSORS(T, EXPERT, "", e->width, mixture && e->width)
/* clang-format on */

/* SD_TOKEN_EMBEDDING, … */
typedef enum sd_tensor_role {
#define SD_ROLE_OF(role, ...) SD_##role,
    SD_TENSORS(SD_ROLE_OF) SD_N_ROLES,
} sd_tensor_role;

typedef struct sd_tensor_spec {
    sd_tensor_role role;
    int of_encoder; /* layer, expert and role are those of the encoder */
    int layer;      /* -1 outside the layers */
    int expert;     /* -1 if it belongs to no expert, or to the shared one */
    int n_rows;     /* outputs; the length of a vector */
    int n_cols;     /* inputs; 0 for a vector */
    char name[64];  /* "layers.3.attn_q.weight", of an encoder "encoder.layers.3.attn_q.weight" */
} sd_tensor_spec;

/* Number of tensors of a model with this configuration, including those of its encoder, which come last. */
int sd_tensor_count(const sd_config* config);

/* The index-th tensor, 0 ≤ index < count. */
void sd_tensor_at(const sd_config* config, int index, sd_tensor_spec* spec);

/* Index of a role's tensor in a configuration without its encoder; layer, expert as in sd_tensor_spec. The
 * model must have it. */
int sd_tensor_index(const sd_config* config, sd_tensor_role role, int layer, int expert);

/* Number of tensors before those of the encoder. */
int sd_tensor_count_own(const sd_config* config);

/* Index and description of a tensor by name; -1: none. */
int sd_tensor_find(const sd_config* config, const char* name, sd_tensor_spec* spec);
