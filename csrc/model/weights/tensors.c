#include "tensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* const names[SD_N_ROLES] = {
    [SD_TOKEN_EMBEDDING] = "token_embedding",
    [SD_POSITION_EMBEDDING] = "position_embedding",
    [SD_EMBEDDING_NORM] = "embedding_norm.weight",
    [SD_EMBEDDING_NORM_BIAS] = "embedding_norm.bias",
    [SD_RELATIVE_BIAS] = "relative_bias",
    [SD_HEAD] = "head",
    [SD_HEAD_BIAS] = "head_bias",
    [SD_OUTPUT_NORM] = "output_norm.weight",
    [SD_OUTPUT_NORM_BIAS] = "output_norm.bias",
    [SD_FEATURE_INPUT_NORM] = "feature_input_norm.weight",
    [SD_FEATURE_PROJECTION] = "feature_projection.weight",
    [SD_FEATURE_PROJECTION_BIAS] = "feature_projection.bias",
    [SD_TOKEN_NORM] = "token_norm.weight",
    [SD_FEATURE_NORM] = "feature_norm.weight",
    [SD_ATTN_NORM] = "attn_norm.weight",
    [SD_ATTN_NORM_BIAS] = "attn_norm.bias",
    [SD_ATTN_Q] = "attn_q.weight",
    [SD_ATTN_K] = "attn_k.weight",
    [SD_ATTN_V] = "attn_v.weight",
    [SD_ATTN_Q_BIAS] = "attn_q.bias",
    [SD_ATTN_K_BIAS] = "attn_k.bias",
    [SD_ATTN_V_BIAS] = "attn_v.bias",
    [SD_ATTN_Q_NORM] = "attn_q_norm.weight",
    [SD_ATTN_K_NORM] = "attn_k_norm.weight",
    [SD_ATTN_SINKS] = "attn_sinks",
    [SD_ATTN_OUT] = "attn_out.weight",
    [SD_ATTN_OUT_BIAS] = "attn_out.bias",
    [SD_ATTN_POST_NORM] = "attn_post_norm.weight",
    [SD_ATTN_POST_NORM_BIAS] = "attn_post_norm.bias",
    [SD_LAYER_RELATIVE_BIAS] = "relative_bias",
    [SD_CROSS_NORM] = "cross_norm.weight",
    [SD_CROSS_NORM_BIAS] = "cross_norm.bias",
    [SD_CROSS_Q] = "cross_q.weight",
    [SD_CROSS_K] = "cross_k.weight",
    [SD_CROSS_V] = "cross_v.weight",
    [SD_CROSS_Q_BIAS] = "cross_q.bias",
    [SD_CROSS_K_BIAS] = "cross_k.bias",
    [SD_CROSS_V_BIAS] = "cross_v.bias",
    [SD_CROSS_OUT] = "cross_out.weight",
    [SD_CROSS_OUT_BIAS] = "cross_out.bias",
    [SD_CROSS_POST_NORM] = "cross_post_norm.weight",
    [SD_CROSS_POST_NORM_BIAS] = "cross_post_norm.bias",
    [SD_MLP_NORM] = "mlp_norm.weight",
    [SD_MLP_NORM_BIAS] = "mlp_norm.bias",
    [SD_MLP_GATE] = "mlp_gate.weight",
    [SD_MLP_UP] = "mlp_up.weight",
    [SD_MLP_DOWN] = "mlp_down.weight",
    [SD_MLP_GATE_BIAS] = "mlp_gate.bias",
    [SD_MLP_UP_BIAS] = "mlp_up.bias",
    [SD_MLP_DOWN_BIAS] = "mlp_down.bias",
    [SD_MLP_POST_NORM] = "mlp_post_norm.weight",
    [SD_MLP_POST_NORM_BIAS] = "mlp_post_norm.bias",
    [SD_ROUTER] = "router.weight",
    [SD_ROUTER_BIAS] = "router.bias",
    [SD_SHARED_GATE] = "shared_gate.weight",
    [SD_SHARED_EXPERT_GATE] = "shared_expert.mlp_gate.weight",
    [SD_SHARED_EXPERT_UP] = "shared_expert.mlp_up.weight",
    [SD_SHARED_EXPERT_DOWN] = "shared_expert.mlp_down.weight",
    [SD_SHARED_EXPERT_GATE_BIAS] = "shared_expert.mlp_gate.bias",
    [SD_SHARED_EXPERT_UP_BIAS] = "shared_expert.mlp_up.bias",
    [SD_SHARED_EXPERT_DOWN_BIAS] = "shared_expert.mlp_down.bias",
    [SD_EXPERT_GATE] = "mlp_gate.weight",
    [SD_EXPERT_UP] = "mlp_up.weight",
    [SD_EXPERT_DOWN] = "mlp_down.weight",
    [SD_EXPERT_GATE_BIAS] = "mlp_gate.bias",
    [SD_EXPERT_UP_BIAS] = "mlp_up.bias",
    [SD_EXPERT_DOWN_BIAS] = "mlp_down.bias",
};

/* Shape of the tensors of a feed-forward block of this width, by their place among the roles of a block; 0 if
 * there is none. */
static int mlp_shape(const sd_config* c, int place, int width, int* n_rows, int* n_cols) {
    const int rows[] = {width, width, c->d_model, width, width, c->d_model};
    const int cols[] = {c->d_model, c->d_model, width, 0, 0, 0};
    int is_gate = place == 0 || place == 3, is_bias = place >= 3;
    *n_rows = rows[place], *n_cols = cols[place];
    return width > 0 && (c->gated || !is_gate) && (c->mlp_bias || !is_bias);
}

/* Shape of the tensors of a role in a layer, or outside the layers, which all have as many heads as `layer`
 * then; 0 if there are none. Whether there are does not depend on its heads. */
static int shape_of(const sd_config* c, const sd_layer_config* layer, sd_tensor_role role, int* n_rows,
                    int* n_cols) {
    int d_q = sd_query_width(layer), d_kv = sd_key_width(layer), mixture = layer->mixture;
    int qk_norm = c->qk_norm != SD_QK_NORM_NONE, of_head = c->qk_norm == SD_QK_NORM_HEAD;
    int own_mlp_norm = sd_norms_input(c) && c->parallel != SD_PARALLEL_ONE_NORM;
    int crosses = c->encoder != NULL, d_source = crosses ? c->encoder->d_model : 0;
    int features = c->features.use != SD_FEATURE_NONE, aside = c->features.use == SD_FEATURE_ASIDE;
    int of_inputs = features && (aside || c->features.norms);
    int rows = 0, cols = 0, there = 1;
    switch (role) {
    case SD_TOKEN_EMBEDDING: rows = c->n_vocab, cols = c->d_model, there = !c->shared_embedding; break;
    case SD_POSITION_EMBEDDING:
        rows = c->n_ctx, cols = c->d_model, there = c->position == SD_POSITION_LEARNED;
        break;
    case SD_EMBEDDING_NORM: rows = c->d_model, there = c->embedding_norm && c->norm_weight; break;
    case SD_EMBEDDING_NORM_BIAS: rows = c->d_model, there = c->embedding_norm && c->norm_bias; break;
    case SD_RELATIVE_BIAS:
        rows = sd_bucket_rows(c), cols = layer->n_head, there = rows > 0 && !c->bias_by_layer;
        break;
    case SD_LAYER_RELATIVE_BIAS:
        rows = sd_bucket_rows(c), cols = layer->n_head, there = c->bias_by_layer;
        break;
    case SD_HEAD:
        rows = sd_head_rows(c), cols = c->d_model, there = !c->tied && !c->bidirectional && !c->shared_head;
        break;
    case SD_HEAD_BIAS:
        rows = sd_head_rows(c), there = c->head_bias && !c->bidirectional && !c->shared_head;
        break;
    case SD_FEATURE_INPUT_NORM: rows = c->features.width, there = features && c->features.n_pieces > 0; break;
    case SD_FEATURE_PROJECTION: rows = c->d_model, cols = sd_feature_inputs(c), there = features; break;
    case SD_FEATURE_PROJECTION_BIAS: rows = c->d_model, there = features && c->features.bias; break;
    case SD_TOKEN_NORM:
    case SD_FEATURE_NORM: rows = c->d_model, there = of_inputs; break;
    case SD_OUTPUT_NORM: rows = c->d_model, there = c->output_norm && c->norm_weight; break;
    case SD_OUTPUT_NORM_BIAS: rows = c->d_model, there = c->output_norm && c->norm_bias; break;
    case SD_ATTN_NORM:
        rows = c->d_model, there = sd_norms_input(c) && layer->input_norm && c->norm_weight;
        break;
    case SD_ATTN_NORM_BIAS:
        rows = c->d_model, there = sd_norms_input(c) && layer->input_norm && c->norm_bias;
        break;
    case SD_MLP_NORM: rows = c->d_model, there = own_mlp_norm && c->norm_weight; break;
    case SD_MLP_NORM_BIAS: rows = c->d_model, there = own_mlp_norm && c->norm_bias; break;
    case SD_ATTN_POST_NORM:
    case SD_MLP_POST_NORM: rows = c->d_model, there = sd_has_post_norm(c) && c->norm_weight; break;
    case SD_ATTN_POST_NORM_BIAS:
    case SD_MLP_POST_NORM_BIAS: rows = c->d_model, there = sd_has_post_norm(c) && c->norm_bias; break;
    case SD_CROSS_NORM: rows = c->d_model, there = crosses && sd_norms_input(c) && c->norm_weight; break;
    case SD_CROSS_NORM_BIAS: rows = c->d_model, there = crosses && sd_norms_input(c) && c->norm_bias; break;
    case SD_CROSS_POST_NORM:
        rows = c->d_model, there = crosses && sd_has_post_norm(c) && c->norm_weight;
        break;
    case SD_CROSS_POST_NORM_BIAS:
        rows = c->d_model, there = crosses && sd_has_post_norm(c) && c->norm_bias;
        break;
    case SD_CROSS_Q: rows = d_q, cols = c->d_model, there = crosses; break;
    case SD_CROSS_K:
    case SD_CROSS_V: rows = d_kv, cols = d_source, there = crosses; break;
    case SD_CROSS_Q_BIAS: rows = d_q, there = crosses && c->qkv_bias; break;
    case SD_CROSS_K_BIAS:
    case SD_CROSS_V_BIAS: rows = d_kv, there = crosses && c->qkv_bias; break;
    case SD_CROSS_OUT: rows = c->d_model, cols = d_q, there = crosses; break;
    case SD_CROSS_OUT_BIAS: rows = c->d_model, there = crosses && c->out_bias; break;
    case SD_ATTN_Q: rows = d_q, cols = sd_layer_inputs(c, layer); break;
    case SD_ATTN_K:
    case SD_ATTN_V: rows = d_kv, cols = sd_layer_inputs(c, layer); break;
    case SD_ATTN_Q_BIAS: rows = d_q, there = c->qkv_bias; break;
    case SD_ATTN_K_BIAS:
    case SD_ATTN_V_BIAS: rows = d_kv, there = c->qkv_bias; break;
    case SD_ATTN_Q_NORM: rows = of_head ? layer->d_head : d_q, there = qk_norm; break;
    case SD_ATTN_K_NORM: rows = of_head ? layer->d_head : d_kv, there = qk_norm; break;
    case SD_ATTN_SINKS: rows = layer->n_head, there = c->attn_sinks; break;
    case SD_ATTN_OUT: rows = c->d_model, cols = d_q; break;
    case SD_ATTN_OUT_BIAS: rows = c->d_model, there = c->out_bias; break;
    case SD_MLP_GATE:
    case SD_MLP_UP:
    case SD_MLP_DOWN:
    case SD_MLP_GATE_BIAS:
    case SD_MLP_UP_BIAS:
    case SD_MLP_DOWN_BIAS:
        return mlp_shape(c, (int)role - SD_MLP_GATE, mixture ? 0 : c->d_ff, n_rows, n_cols);
    case SD_ROUTER: rows = c->experts.n, cols = c->d_model, there = mixture; break;
    case SD_ROUTER_BIAS: rows = c->experts.n, there = mixture && c->experts.router_bias; break;
    case SD_SHARED_GATE: rows = 1, cols = c->d_model, there = mixture && c->experts.shared_gate; break;
    case SD_SHARED_EXPERT_GATE:
    case SD_SHARED_EXPERT_UP:
    case SD_SHARED_EXPERT_DOWN:
    case SD_SHARED_EXPERT_GATE_BIAS:
    case SD_SHARED_EXPERT_UP_BIAS:
    case SD_SHARED_EXPERT_DOWN_BIAS:
        return mlp_shape(c, (int)role - SD_SHARED_EXPERT_GATE, mixture ? c->experts.shared_width : 0, n_rows,
                         n_cols);
    case SD_EXPERT_GATE:
    case SD_EXPERT_UP:
    case SD_EXPERT_DOWN:
    case SD_EXPERT_GATE_BIAS:
    case SD_EXPERT_UP_BIAS:
    case SD_EXPERT_DOWN_BIAS:
        return mlp_shape(c, (int)role - SD_EXPERT_GATE, mixture ? c->experts.width : 0, n_rows, n_cols);
    case SD_N_ROLES: there = 0; break;
    }
    *n_rows = rows, *n_cols = cols;
    return there;
}

static int count_roles(const sd_config* config, int mixture, int input_norm, int first, int end) {
    sd_layer_config layer = {.mixture = mixture, .input_norm = input_norm};
    int n = 0, rows, cols;
    for (int role = first; role < end; role++) n += shape_of(config, &layer, role, &rows, &cols);
    return n;
}

/* How many tensors there are outside the layers; in a layer by whether it has experts, of which each has
 * per_expert, and whether its attention has a norm of the input. The tensors of a layer lie in the order of
 * the roles, expert by expert. */
typedef struct counts {
    int outside, per_expert, per_layer[2][2];
} counts;

static counts count_tensors(const sd_config* c) {
    counts n = {.outside = count_roles(c, 0, 0, 0, SD_ATTN_NORM),
                .per_expert = count_roles(c, 1, 0, SD_EXPERT_GATE, SD_N_ROLES)};
    for (int norm = 0; norm < 2; norm++) {
        n.per_layer[0][norm] = count_roles(c, 0, norm, SD_ATTN_NORM, SD_EXPERT_GATE);
        n.per_layer[1][norm] =
            count_roles(c, 1, norm, SD_ATTN_NORM, SD_EXPERT_GATE) + c->experts.n * n.per_expert;
    }
    return n;
}

/* Those of a layer. */
static int count_of(const counts* n, const sd_layer_config* layer) {
    return n->per_layer[layer->mixture != 0][layer->input_norm != 0];
}

/* Index of the first tensor of a layer. */
static int layer_start(const sd_config* c, const counts* n, int layer) {
    int start = n->outside;
    for (int i = 0; i < layer; i++) start += count_of(n, &c->layers[i]);
    return start;
}

/* Those of the model without its encoder. */
int sd_tensor_count_own(const sd_config* config) {
    counts n = count_tensors(config);
    return layer_start(config, &n, config->n_layer);
}

int sd_tensor_count(const sd_config* config) {
    return sd_tensor_count_own(config) + (config->encoder ? sd_tensor_count_own(config->encoder) : 0);
}

#define OF_ENCODER "encoder."

static void write_name(sd_tensor_spec* spec) {
    char *to = spec->name, *end = spec->name + sizeof spec->name;
    if (spec->of_encoder) to += snprintf(to, (size_t)(end - to), OF_ENCODER);
    if (spec->layer >= 0) to += snprintf(to, (size_t)(end - to), "layers.%d.", spec->layer);
    if (spec->expert >= 0) to += snprintf(to, (size_t)(end - to), "experts.%d.", spec->expert);
    snprintf(to, (size_t)(end - to), "%s", names[spec->role]);
}

void sd_tensor_at(const sd_config* config, int index, sd_tensor_spec* spec) {
    assert(index >= 0 && index < sd_tensor_count(config));
    spec->of_encoder = config->encoder != NULL && index >= sd_tensor_count_own(config);
    if (spec->of_encoder) {
        index -= sd_tensor_count_own(config);
        config = config->encoder;
    }
    counts n = count_tensors(config);
    int layer = -1, expert = -1, role = 0, nth = index;
    if (index >= n.outside) {
        for (nth -= n.outside, layer = 0; nth >= count_of(&n, &config->layers[layer]); layer++)
            nth -= count_of(&n, &config->layers[layer]);
        role = SD_ATTN_NORM;
        int before = count_of(&n, &config->layers[layer]) - config->experts.n * n.per_expert;
        if (config->layers[layer].mixture && nth >= before) {
            expert = (nth - before) / n.per_expert, nth = (nth - before) % n.per_expert;
            role = SD_EXPERT_GATE;
        }
    }
    const sd_layer_config* own = &config->layers[layer < 0 ? 0 : layer];
    for (;; role++)
        if (shape_of(config, own, role, &spec->n_rows, &spec->n_cols) && nth-- == 0) break;
    spec->role = role, spec->layer = layer, spec->expert = expert;
    write_name(spec);
}

int sd_tensor_index(const sd_config* config, sd_tensor_role role, int layer, int expert) {
    counts n = count_tensors(config);
    int index = layer < 0 ? 0 : layer_start(config, &n, layer), rows, cols;
    int first = expert >= 0 ? SD_EXPERT_GATE : layer >= 0 ? SD_ATTN_NORM : 0;
    if (expert >= 0)
        index += count_of(&n, &config->layers[layer]) - (config->experts.n - expert) * n.per_expert;
    const sd_layer_config* own = &config->layers[layer < 0 ? 0 : layer];
    for (int before = first; before < (int)role; before++)
        index += shape_of(config, own, (sd_tensor_role)before, &rows, &cols);
    return index;
}

/* Read "PREFIXnumber." where *name begins with it, and move *name behind it; -1 if it does not, or if the
 * number is not below `end`. */
static int read_number(const char** name, const char* prefix, int end) {
    size_t n = strlen(prefix);
    if (strncmp(*name, prefix, n) != 0) return -1;
    char* rest;
    long number = strtol(*name + n, &rest, 10);
    if (*rest != '.' || number < 0 || number >= end) return -1;
    *name = rest + 1;
    return (int)number;
}

int sd_tensor_find(const sd_config* config, const char* name, sd_tensor_spec* spec) {
    const char* rest = name;
    int before = 0;
    spec->of_encoder = config->encoder != NULL && strncmp(name, OF_ENCODER, strlen(OF_ENCODER)) == 0;
    if (spec->of_encoder) {
        rest += strlen(OF_ENCODER);
        before = sd_tensor_count_own(config);
        config = config->encoder;
    }
    counts n = count_tensors(config);
    int layer = read_number(&rest, "layers.", config->n_layer);
    int mixture = layer >= 0 && config->layers[layer].mixture;
    int expert = mixture ? read_number(&rest, "experts.", config->experts.n) : -1;
    int first = expert >= 0 ? SD_EXPERT_GATE : layer >= 0 ? SD_ATTN_NORM : 0;
    int end = expert >= 0 ? SD_N_ROLES : layer >= 0 ? SD_EXPERT_GATE : SD_ATTN_NORM;
    int index = before + (layer < 0 ? 0 : layer_start(config, &n, layer));
    if (expert >= 0)
        index += count_of(&n, &config->layers[layer]) - (config->experts.n - expert) * n.per_expert;
    const sd_layer_config* own = &config->layers[layer < 0 ? 0 : layer];
    for (int role = first; role < end; role++) {
        if (!shape_of(config, own, role, &spec->n_rows, &spec->n_cols)) continue;
        if (strcmp(names[role], rest) == 0) {
            spec->role = role, spec->layer = layer, spec->expert = expert;
            write_name(spec);
            return strcmp(spec->name, name) == 0 ? index : -1; /* "layers.01" is no name */
        }
        index++;
    }
    return -1;
}
