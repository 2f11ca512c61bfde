/* Architecture of a decoder or encoder: one description for all model families, made of switches. */
#pragma once

#include <stddef.h>

#include "status.h"

typedef enum sd_norm { SD_NORM_RMS, SD_NORM_LAYER } sd_norm;
/* Where norms are applied: to the input of a half of a layer, to its output before it is added, to both, or
 * to the stream after the addition. */
typedef enum sd_norm_position {
    SD_NORM_BEFORE,
    SD_NORM_AFTER,
    SD_NORM_BOTH,
    SD_NORM_RESIDUAL,
} sd_norm_position;
typedef enum sd_position { SD_POSITION_ROTARY, SD_POSITION_LEARNED, SD_POSITION_NONE } sd_position;
typedef enum sd_activation {
    SD_ACT_SILU,
    SD_ACT_GELU,
    SD_ACT_GELU_TANH,
    SD_ACT_RELU,
    SD_ACT_RELU2,        /* the square of relu */
    SD_ACT_XIELU,        /* with three factors of the layer (arXiv 2411.13010) */
    SD_ACT_SILU_CLAMPED, /* gated only: g · sigmoid(1.702 g) · (u + 1), g and u clamped */
    SD_N_ACTIVATIONS
} sd_activation;
/* Norms of queries and keys before rotation, or those of heads after it; without biases. */
typedef enum sd_qk_norm {
    SD_QK_NORM_NONE,
    SD_QK_NORM_HEAD,      /* of each head, with one weight [d_head] for all heads */
    SD_QK_NORM_EACH_HEAD, /* of each head, with its own weights of [n_head · d_head] */
    SD_QK_NORM_WHOLE      /* of all heads together, with weights [n_head · d_head] */
} sd_qk_norm;
/* Gates of attention: each head's output is multiplied by the sigmoid or softplus of a projection of the
 * input. */
typedef enum sd_attn_gate {
    SD_ATTN_GATE_NONE,
    SD_ATTN_GATE_HEAD, /* one number for each head of queries */
    SD_ATTN_GATE_WHOLE /* one for each of its dimensions */
} sd_attn_gate;
/* Whether both halves of a layer read the residual stream from before the layer. */
typedef enum sd_parallel {
    SD_PARALLEL_NO,
    SD_PARALLEL_ONE_NORM, /* and share its norm */
    SD_PARALLEL_TWO_NORMS
} sd_parallel;

/* How router logits become weights of the chosen experts. */
typedef enum sd_router {
    SD_ROUTER_SOFTMAX,        /* over all experts */
    SD_ROUTER_SOFTMAX_CHOSEN, /* over the chosen ones */
    SD_ROUTER_SIGMOID
} sd_router;

#define SD_MOST_GROUPS 64

/* Mixture of experts: each row passes n_chosen of n_experts blocks, those with its largest router logits or,
 * with corrections, scores, and a shared block if there is one. The layer adds the sum of their outputs times
 * their weights. */
typedef struct sd_experts {
    int n;            /* 0: no mixtures; the fields below are ignored */
    int n_chosen;     /* for each row */
    int width;        /* of an expert */
    int shared_width; /* of the shared expert; 0: none */
    int shared_gate;  /* the shared expert's weight is the sigmoid of a logit, else 1 */
    sd_router router;
    int router_bias; /* the logits have biases */
    int correction;  /* choose by score + correction of the expert; weights are scores (DeepSeek-V3) */
    /* Choose among experts of the groups whose best 2 sum to most; 0: one group. */
    int n_groups, n_chosen_groups;
    int renormalize; /* divide weights by the sum of the chosen experts' weights */
    float eps;       /* added to that sum */
    float scale;     /* factor of these weights, except the shared expert's */
    /* The dense block runs too, and the sum of both is the half's output. Dense output, input and output of
     * the experts, and the router's input have norms of their own; the router's is divided by √d_model.
     * Weights are multiplied by a number of each expert, last (Gemma 4). */
    int with_dense;
} sd_experts;

/* How rows start if each has a feature as well as a token: a vector that another model computed from the text
 * before the token, or that the model itself computed in the row before (EAGLE, Li et al. 2024; multi-token
 * prediction, DeepSeek-V3). */
typedef enum sd_feature_use {
    SD_FEATURE_NONE,   /* rows start with the embedding of their token */
    SD_FEATURE_JOINED, /* with a projection of embedding and feature, concatenated */
    SD_FEATURE_ASIDE /* with the feature; the first layer's queries, keys and values read the embedding too */
} sd_feature_use;

/* Features of another model have `width` numbers, a model's own sd_own_width. */
typedef struct sd_features {
    sd_feature_use use; /* SD_FEATURE_NONE: the fields below are ignored */
    int width;          /* if joined, of embeddings too, and d_model unless `output` is set */
    int output;   /* joined: own features are a projection of the stream after the last norm to `width` */
    int bias;     /* does the projection have a bias? */
    int norms;    /* joined: normalize embedding and feature first; aside they always are */
    int n_pieces; /* aside: equal pieces of another model's feature to normalize first; 0: none */
    int normed_stream; /* aside: rows start with the normalized feature */
} sd_features;

/* One table of rotary position embeddings. */
typedef struct sd_rotation {
    int n_freq;             /* rotated pairs: (x[i], x[i + n_freq]); at most d_head / 2 of its layers */
    const double* inv_freq; /* [n_freq] radians per position */
    double factor;          /* of cosines and sines: 1, or the attention factor of a scaling */
} sd_rotation;

/* What mixes a layer's rows with earlier ones in its first half, next to attention or without it. */
typedef enum sd_mixer {
    SD_MIXER_NONE,
    SD_MIXER_CONVOLUTION, /* gated short convolution (LFM2): out(C ⊙ conv(B ⊙ x)), (B, C, x) = in(row) */
    SD_MIXER_DELTA,       /* gated delta rule (arXiv 2412.06464) after a convolution with SiLU */
    SD_MIXER_MAMBA2,      /* Mamba-2 (arXiv 2405.21060) after a convolution with SiLU */
    SD_N_MIXERS
} sd_mixer;

/* Most inputs of a convolution. */
#define SD_MOST_CONV_WIDTH 16

/* Sizes of mixers; they agree in all layers of a model. */
typedef struct sd_mixer_sizes {
    int conv_width; /* inputs of the convolution, the row's own included; 0: no layer has a mixer */
    int conv_bias;  /* does the convolution have a bias? */
    int bias;       /* do the projections into and out of the mixer? */
    /* Of recurrent layers. Each key head serves n_value_head / n_key_head value heads: every n_key_head-th
     * one or, if grouped, consecutive ones. Mamba-2 calls the keys B, the queries C, the values x */
    int n_key_head, n_value_head, d_key, d_value, grouped;
    /* Of Mamba-2: groups of values that are normalized together, 0: none are; before the gate or after it */
    int n_norm_groups, norm_first;
    /* Of recurrent layers, if scaled: factors of queries, keys, values, gates, and decays or time steps, as
     * projected */
    int scaled;
    float query_scale, key_scale, value_scale, gate_scale, decay_scale;
} sd_mixer_sizes;

/* The key head of a value head. */
static inline int sd_key_head(const sd_mixer_sizes* s, int value_head) {
    return s->grouped ? value_head / (s->n_value_head / s->n_key_head) : value_head % s->n_key_head;
}

/* Settings that may differ between layers. A layer has a first half, which adds the outputs of a mixer and of
 * attention, which read the same rows, or of one of them; a second half, the feed-forward block; or both. */
typedef struct sd_layer_config {
    sd_mixer mixer;
    int attends;                   /* does it have attention? */
    int n_head, n_kv_head, d_head; /* heads of queries; of keys and values; dimensions of each; the model's
                                    * in layers without attention, which do not use them */
    int d_ff;                      /* width of a dense feed-forward block; 0: none */
    int window;                    /* positions that a row attends to, including its own; 0: all */
    int rotation;                  /* index of the rotation; -1: queries and keys are not rotated */
    float score_scale;             /* factor of query · key */
    int mixture;                   /* the feed-forward block is a mixture of experts */
    int input_norm;                /* normalize the attention's input, if norm_position says so */
    int reads_token;               /* queries, keys and values read embedding and feature, 2 d_model inputs */
    int values_from_keys;          /* values are keys before their norms and rotation */
    /* The layer whose keys and values rows attend to: their own or, if shares_kv, an earlier one or, if
     * borrows_kv, one of the target. It has the same sizes and window. */
    int kv_layer, shares_kv;
} sd_layer_config;

/* Pointers are borrowed from the creator; a model owns those of its own configuration. */
typedef struct sd_config {
    int n_vocab, n_ctx, n_layer, d_model;
    sd_norm norm;
    float norm_eps;
    sd_norm_position norm_position;
    int norm_weight, norm_bias; /* do norms of the stream have weights, and biases (LayerNorm only)? */
    int output_norm;            /* norm of the stream after the last layer */
    sd_qk_norm qk_norm;
    int qk_norm_rotated; /* norms of heads are applied after the rotation */
    sd_attn_gate attn_gate;
    int attn_gate_softplus; /* gates are softplus, not sigmoid */
    int v_norm;             /* RMSNorm without weight of each head's values */
    sd_parallel parallel;
    sd_position position;
    sd_activation activation;
    float activation_limit;           /* of the clamped activation */
    int gated;                        /* act(gate) · up instead of act(up) */
    int tied;                         /* the head is the token embedding */
    int qkv_bias, out_bias, mlp_bias; /* which projections have a bias */
    int head_bias;
    int n_draft_tokens; /* tokens of the head, with ids of their own; 0: all n_vocab */
    /* Draft model: the head with its bias is its target's, or n_draft_tokens rows of it. */
    int shared_head;
    /* Draft model: rows attend to the text in the target's cache alone, not to each other or themselves, and
     * have the position of the token after it. Layers have no keys and values of their own. */
    int borrows_kv;
    /* The head's rows are n_clusters equal clusters, in whole panels. Logits are those of the
     * n_chosen_clusters with the largest products of row and centroid; other tokens are not predicted. 0: of
     * all. */
    int n_clusters, n_chosen_clusters;
    sd_features features;
    float embedding_scale; /* factor of token embeddings */
    int embedding_norm;    /* LayerNorm of the embedding */
    int d_per_layer;       /* width of per-layer embeddings (Gemma 4); 0: none */
    float residual_scale;  /* factor of a half's output before it is added to the stream */
    /* The same of attention, mixers and dense feed-forward blocks alone; of gates before the activation */
    float attn_out_scale, mixer_out_scale, mlp_down_scale, mlp_gate_scale;
    int layer_scale;     /* after each layer the stream is multiplied by a number of its own */
    float logit_scale;   /* factor of the logits */
    float logit_softcap; /* c: c · tanh(x / c) of the logits; 0: none */
    float attn_softcap;  /* the same for scaled scores */
    float qkv_limit;     /* clamp queries, keys and values to ± this; 0: do not */
    int attn_sinks;      /* a learned logit per head among the scores, without a value */
    /* Multiply queries by 1 + growth · ln(1 + ⌊position / span⌋); growth 0: do not. */
    double query_growth;
    int query_span;
    sd_experts experts;
    sd_mixer_sizes mixers;
    /* [n_head] slopes: a score falls by slope · distance; NULL: none. All layers have as many heads. */
    const float* alibi;
    int n_buckets;            /* distance buckets, each with a learned score bias per head; 0: none */
    const int* bucket_starts; /* [n_buckets] ascending from 0: first distance of each bucket */
    int bias_by_layer; /* each layer has its own bucket biases; else they are shared, and heads are as many */
    /* An encoder: rows attend to all rows of their source, and there is no head; n_ctx is the longest source.
     * Keys after a row have n_buckets biases of their own. */
    int bidirectional;
    /* Share the token table: an encoder its decoder's, a draft model its target's. */
    int shared_embedding;
    const struct sd_config* encoder; /* layers attend to its output too; NULL: there is none */
    int n_rotations;
    const sd_rotation* rotations;  /* [n_rotations] */
    const sd_layer_config* layers; /* [n_layer] */
} sd_config;

/* Refuse dimensions that are not positive, do not divide or overflow, and incompatible switches. */
sd_status sd_config_check(const sd_config* config);

/* Rows of the head. */
static inline int sd_head_rows(const sd_config* c) {
    return c->n_draft_tokens > 0 ? c->n_draft_tokens : c->n_vocab;
}

/* Rows of a cluster of the head; numbers that a row of logits has. */
static inline int sd_cluster_rows(const sd_config* c) { return sd_head_rows(c) / c->n_clusters; }
static inline int sd_logit_columns(const sd_config* c) {
    return c->n_clusters > 0 ? c->n_chosen_clusters * sd_cluster_rows(c) : sd_head_rows(c);
}

/* Width of token embeddings, and of a model's own features. */
static inline int sd_own_width(const sd_config* c) {
    return c->features.use == SD_FEATURE_JOINED ? c->features.width : c->d_model;
}

/* Inputs of the projection of features, and of a layer's queries, keys and values. */
static inline int sd_feature_inputs(const sd_config* c) {
    return c->features.use == SD_FEATURE_JOINED ? 2 * c->features.width : c->features.width;
}
static inline int sd_layer_inputs(const sd_config* c, const sd_layer_config* layer) {
    return layer->reads_token ? 2 * c->d_model : c->d_model;
}

/* Columns of a layer's queries, and of its own keys or values. */
static inline int sd_query_width(const sd_layer_config* layer) { return layer->n_head * layer->d_head; }
static inline int sd_key_width(const sd_layer_config* layer) {
    return layer->shares_kv ? 0 : layer->n_kv_head * layer->d_head;
}
static inline int sd_head_size(const sd_layer_config* layer) { return layer->d_head; }

/* Columns of a layer's gates of attention; 0: none. */
static inline int sd_gate_width(const sd_config* c, const sd_layer_config* layer) {
    if (c->attn_gate == SD_ATTN_GATE_NONE) return 0;
    return c->attn_gate == SD_ATTN_GATE_HEAD ? layer->n_head : sd_query_width(layer);
}

/* Largest such width of all layers. */
static inline int sd_widest(const sd_config* config, int (*width)(const sd_layer_config*)) {
    int widest = 0;
    for (int i = 0; i < config->n_layer; i++) {
        int of_layer = width(&config->layers[i]);
        if (of_layer > widest) widest = of_layer;
    }
    return widest;
}

/* Does a layer have a first half; a second half? */
static inline int sd_has_first_half(const sd_layer_config* layer) {
    return layer->attends || layer->mixer != SD_MIXER_NONE;
}
static inline int sd_has_second_half(const sd_layer_config* layer) {
    return layer->mixture || layer->d_ff > 0;
}

/* Does a layer have keys and values of its own? */
static inline int sd_has_own_keys(const sd_layer_config* layer) {
    return layer->attends && !layer->shares_kv;
}

/* The last layer with keys and values, or a state, of its own: no other row reads what later layers
 * compute. */
static inline int sd_last_stored(const sd_config* config) {
    int last = config->n_layer - 1;
    while (last > 0 && !sd_has_own_keys(&config->layers[last]) && config->layers[last].mixer == SD_MIXER_NONE)
        last--;
    return last;
}

/* The numbers of a row in a recurrent layer. The input projection gives the channels of the convolution
 * (queries, keys, values of all heads) and, from column `gate` on, the gates of the values. Each value head
 * also has beta and, from column `decay` on, a decay; in Mamba-2 beta is the time step. Another projection
 * gives both, or the time step alone: n_rates outputs, from `rate` on those that become decays. */
typedef struct sd_recurrent_columns {
    int n_keys, n_values, n_channels;
    int n_units; /* panels of the values of each head: tiles of the state */
    int gate, n_outputs;
    int decay, rate, n_rates;
} sd_recurrent_columns;
sd_recurrent_columns sd_recurrent_columns_of(const sd_mixer_sizes* sizes, sd_mixer mixer);

/* Of a layer's mixer: outputs of its input projection, channels of its convolution, and inputs of its output
 * projection; 0 without a mixer. */
int sd_mixer_outputs(const sd_config* config, const sd_layer_config* layer);
int sd_mixer_channels(const sd_config* config, const sd_layer_config* layer);
int sd_mixer_width(const sd_config* config, const sd_layer_config* layer);

/* Does any layer have a mixer? */
static inline int sd_any_has_mixer(const sd_config* config) {
    for (int i = 0; i < config->n_layer; i++)
        if (config->layers[i].mixer != SD_MIXER_NONE) return 1;
    return 0;
}

/* Does a layer keep a state of the whole text? */
static inline int sd_has_state(const sd_layer_config* layer) {
    return layer->mixer == SD_MIXER_DELTA || layer->mixer == SD_MIXER_MAMBA2;
}
static inline int sd_any_has_state(const sd_config* config) {
    for (int i = 0; i < config->n_layer; i++)
        if (sd_has_state(&config->layers[i])) return 1;
    return 0;
}

/* Do scores have a bias that depends on the distance of query and key? */
static inline int sd_has_distance_bias(const sd_config* config) {
    return config->alibi != NULL || config->n_buckets > 0;
}

/* Do the halves of a layer have a norm on their input; on their output? */
static inline int sd_norms_input(const sd_config* config) {
    return config->norm_position == SD_NORM_BEFORE || config->norm_position == SD_NORM_BOTH;
}
static inline int sd_norms_output(const sd_config* config) {
    return config->norm_position == SD_NORM_AFTER || config->norm_position == SD_NORM_BOTH;
}

/* Do they have a norm after them, on their output or on the stream? */
static inline int sd_has_post_norm(const sd_config* config) {
    return config->norm_position != SD_NORM_BEFORE;
}

/* Rows of a bias table: in an encoder those of later keys come after the others. */
static inline int sd_bucket_rows(const sd_config* config) {
    return config->bidirectional ? 2 * config->n_buckets : config->n_buckets;
}
