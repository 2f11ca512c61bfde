/* What a decoder, or an encoder, looks like: one description for all families, made of switches. */
#pragma once

#include <stddef.h>

#include "status.h"

typedef enum sd_norm { SD_NORM_RMS, SD_NORM_LAYER } sd_norm;
/* Norms of the input of a half of a layer, of its output before it is added, of both, or of the stream after
 * it has been added. */
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
    SD_ACT_SILU_CLAMPED, /* gated only: g · sigmoid(1.702 g) · (u + 1), g and u clamped */
    SD_N_ACTIVATIONS
} sd_activation;
/* Norms of queries and keys, before they are rotated; without biases. */
typedef enum sd_qk_norm {
    SD_QK_NORM_NONE,
    SD_QK_NORM_HEAD,      /* of each head, with one weight [d_head] for all heads */
    SD_QK_NORM_EACH_HEAD, /* of each head, with weights [n_head · d_head] of its own */
    SD_QK_NORM_WHOLE      /* of all heads together, with weights [n_head · d_head] */
} sd_qk_norm;
/* Both halves of a layer read the residual stream as it was before the layer. */
typedef enum sd_parallel {
    SD_PARALLEL_NO,
    SD_PARALLEL_ONE_NORM, /* and share the norm of it */
    SD_PARALLEL_TWO_NORMS
} sd_parallel;

/* From a router's logits to the weights of the experts that are chosen. */
typedef enum sd_router {
    SD_ROUTER_SOFTMAX,        /* over all experts */
    SD_ROUTER_SOFTMAX_CHOSEN, /* over those that are chosen */
    SD_ROUTER_SIGMOID
} sd_router;

/* Mixtures of experts: each row goes through n_chosen of n_experts blocks, those of its largest router
 * logits, and through a shared one where there is one. What it adds is the sum of their outputs times their
 * weights. */
typedef struct sd_experts {
    int n;            /* 0: the model has no mixtures, and the fields below do not count */
    int n_chosen;     /* for each row */
    int width;        /* of an expert */
    int shared_width; /* of the shared expert; 0: none */
    int shared_gate;  /* the shared expert's weight is the sigmoid of a logit, else 1 */
    sd_router router;
    int router_bias; /* the logits have biases */
    int renormalize; /* weights are divided by the sum of those of the chosen experts */
    float scale;     /* factor of these weights, less the shared expert's */
} sd_experts;

/* How rows begin where each comes with a feature beside its token: a vector that another model made of the
 * text before the token, or that the model itself made in the row before (EAGLE, Li et al. 2024; multi-token
 * prediction, DeepSeek-V3). */
typedef enum sd_feature_use {
    SD_FEATURE_NONE,   /* rows begin with the embedding of their token */
    SD_FEATURE_JOINED, /* with the projection of embedding and feature, one behind the other */
    SD_FEATURE_ASIDE /* with the feature; the first layer's queries, keys and values read the embedding too */
} sd_feature_use;

/* Features of another model are `width` wide, a model's own d_model. */
typedef struct sd_features {
    sd_feature_use use; /* SD_FEATURE_NONE: the fields below do not count */
    int width;         /* d_model where embedding and feature are joined; else the projection makes it that */
    int bias;          /* of the projection */
    int norms;         /* joined: embedding and feature are normalized first. Aside they always are */
    int n_pieces;      /* aside: equal pieces of another model's feature that are normalized first; 0: none */
    int normed_stream; /* aside: rows begin with the normalized feature */
} sd_features;

/* One table of rotary positions. */
typedef struct sd_rotation {
    int n_freq;             /* pairs that turn: (x[i], x[i + n_freq]); at most d_head / 2 of its layers */
    const double* inv_freq; /* [n_freq] radians per position */
    double factor;          /* of cosines and sines: 1, or the attention factor of a scaling */
} sd_rotation;

/* What may differ from layer to layer. */
typedef struct sd_layer_config {
    int n_head, n_kv_head, d_head; /* heads of queries; of keys and values; dimensions of each */
    int window;                    /* positions that a row attends to, itself included; 0: all */
    int rotation;                  /* index of the rotation; -1: queries and keys are not rotated */
    float score_scale;             /* factor of query · key */
    int mixture;                   /* the feed-forward block is a mixture of experts */
    int input_norm;                /* the attention's input is normalized, where norm_position says so */
    int reads_token;               /* queries, keys and values read embedding and feature, 2 d_model inputs */
} sd_layer_config;

/* Pointers are borrowed from whoever made the description; those of a model are its own. */
typedef struct sd_config {
    int n_vocab, n_ctx, n_layer, d_model, d_ff;
    sd_norm norm;
    float norm_eps;
    sd_norm_position norm_position;
    int norm_weight, norm_bias; /* have the norms of the stream weights, and biases (LayerNorm only)? */
    int output_norm;            /* a norm of the stream after the last layer */
    sd_qk_norm qk_norm;
    int v_norm; /* values of each head pass an RMSNorm without weight */
    sd_parallel parallel;
    sd_position position;
    sd_activation activation;
    float activation_limit;           /* of the clamped activation */
    int gated;                        /* act(gate) · up instead of act(up) */
    int tied;                         /* the head is the token embedding */
    int qkv_bias, out_bias, mlp_bias; /* which projections have a bias */
    int head_bias;
    int n_draft_tokens; /* tokens that the head knows, with ids of their own; 0: all n_vocab */
    int shared_head;    /* of a model that drafts: the head is its target's, norm and bias aside */
    sd_features features;
    float embedding_scale; /* factor of token embeddings */
    int embedding_norm;    /* a LayerNorm of the embedding */
    float residual_scale;  /* factor of what a half of a layer adds to the stream */
    float logit_scale;     /* factor of the logits */
    float logit_softcap;   /* c: c · tanh(x / c) of the logits; 0: none */
    float attn_softcap;    /* the same of scaled scores */
    float qkv_limit;       /* queries, keys and values are clamped to ± this; 0: they are not */
    int attn_sinks;        /* a learned logit for each head among the scores, without a value */
    /* Queries are multiplied by 1 + growth · ln(1 + ⌊position / span⌋); growth 0: they are not. */
    double query_growth;
    int query_span;
    sd_experts experts;
    /* [n_head] slopes: a score falls by slope · distance; NULL: none. All layers have as many heads. */
    const float* alibi;
    int n_buckets;            /* of distances, each with a learned bias of the scores of a head; 0: none */
    const int* bucket_starts; /* [n_buckets] ascending from 0: distances of a bucket from the start on */
    int bias_by_layer;        /* each layer has biases of its own for the buckets, else as many heads */
    /* This is an encoder: rows attend to all rows of their source, there is no head, n_ctx is the longest
     * source, and keys after a row have n_buckets biases of their own. */
    int bidirectional;
    /* Of an encoder: it embeds by the token table of its decoder. Of a model that drafts: by its target's. */
    int shared_embedding;
    const struct sd_config* encoder; /* layers attend to its output too; NULL: there is none */
    int n_rotations;
    const sd_rotation* rotations;  /* [n_rotations] */
    const sd_layer_config* layers; /* [n_layer] */
} sd_config;

/* Refuse dimensions that are not positive, do not divide, or overflow, and switches that do not fit each
 * other. */
sd_status sd_config_check(const sd_config* config);

/* Rows of the head. */
static inline int sd_head_rows(const sd_config* c) {
    return c->n_draft_tokens > 0 ? c->n_draft_tokens : c->n_vocab;
}

/* Inputs of the projection that features go through, and of a layer's queries, keys and values. */
static inline int sd_feature_inputs(const sd_config* c) {
    return c->features.use == SD_FEATURE_JOINED ? 2 * c->d_model : c->features.width;
}
static inline int sd_layer_inputs(const sd_config* c, const sd_layer_config* layer) {
    return layer->reads_token ? 2 * c->d_model : c->d_model;
}

/* Columns of a layer's queries, and of its keys or values. */
static inline int sd_query_width(const sd_layer_config* layer) { return layer->n_head * layer->d_head; }
static inline int sd_key_width(const sd_layer_config* layer) { return layer->n_kv_head * layer->d_head; }
static inline int sd_head_size(const sd_layer_config* layer) { return layer->d_head; }

/* The largest such width of all layers. */
static inline int sd_widest(const sd_config* config, int (*width)(const sd_layer_config*)) {
    int widest = 0;
    for (int i = 0; i < config->n_layer; i++) {
        int of_layer = width(&config->layers[i]);
        if (of_layer > widest) widest = of_layer;
    }
    return widest;
}

/* Do scores get a bias that depends on the distance of query and key? */
static inline int sd_has_distance_bias(const sd_config* config) {
    return config->alibi != NULL || config->n_buckets > 0;
}

/* Does a half of a layer have a norm of its input, of its output? */
static inline int sd_norms_input(const sd_config* config) {
    return config->norm_position == SD_NORM_BEFORE || config->norm_position == SD_NORM_BOTH;
}
static inline int sd_norms_output(const sd_config* config) {
    return config->norm_position == SD_NORM_AFTER || config->norm_position == SD_NORM_BOTH;
}

/* Has it a norm behind it, of its output or of the stream? */
static inline int sd_has_post_norm(const sd_config* config) {
    return config->norm_position != SD_NORM_BEFORE;
}

/* Rows of a table of biases: in an encoder those of later keys come behind the others. */
static inline int sd_bucket_rows(const sd_config* config) {
    return config->bidirectional ? 2 * config->n_buckets : config->n_buckets;
}
