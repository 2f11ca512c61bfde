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
};

/* Length of the weights of queries' or keys' norms, of n_head heads; 0: there are none. */
static int qk_norm_length(const sd_config* c, int n_head) {
    switch (c->qk_norm) {
    case SD_QK_NORM_NONE: return 0;
    case SD_QK_NORM_HEAD: return c->d_head;
    case SD_QK_NORM_EACH_HEAD:
    case SD_QK_NORM_WHOLE: return n_head * c->d_head;
    }
    return 0;
}

/* Shape of a role's tensor in this configuration; 0 if there is none. */
static int shape_of(const sd_config* c, sd_tensor_role role, int* n_rows, int* n_cols) {
    int d_q = c->n_head * c->d_head, d_kv = c->n_kv_head * c->d_head;
    int own_mlp_norm = sd_norms_input(c) && c->parallel != SD_PARALLEL_ONE_NORM;
    int rows = 0, cols = 0, there = 1;
    switch (role) {
    case SD_TOKEN_EMBEDDING: rows = c->n_vocab, cols = c->d_model; break;
    case SD_POSITION_EMBEDDING:
        rows = c->n_ctx, cols = c->d_model, there = c->position == SD_POSITION_LEARNED;
        break;
    case SD_EMBEDDING_NORM: rows = c->d_model, there = c->embedding_norm && c->norm_weight; break;
    case SD_EMBEDDING_NORM_BIAS: rows = c->d_model, there = c->embedding_norm && c->norm_bias; break;
    case SD_RELATIVE_BIAS: rows = c->n_buckets, cols = c->n_head, there = c->n_buckets > 0; break;
    case SD_HEAD: rows = c->n_vocab, cols = c->d_model, there = !c->tied; break;
    case SD_HEAD_BIAS: rows = c->n_vocab, there = c->head_bias; break;
    case SD_OUTPUT_NORM: rows = c->d_model, there = c->norm_weight; break;
    case SD_OUTPUT_NORM_BIAS: rows = c->d_model, there = c->norm_bias; break;
    case SD_ATTN_NORM: rows = c->d_model, there = sd_norms_input(c) && c->norm_weight; break;
    case SD_ATTN_NORM_BIAS: rows = c->d_model, there = sd_norms_input(c) && c->norm_bias; break;
    case SD_MLP_NORM: rows = c->d_model, there = own_mlp_norm && c->norm_weight; break;
    case SD_MLP_NORM_BIAS: rows = c->d_model, there = own_mlp_norm && c->norm_bias; break;
    case SD_ATTN_POST_NORM:
    case SD_MLP_POST_NORM: rows = c->d_model, there = sd_norms_output(c) && c->norm_weight; break;
    case SD_ATTN_POST_NORM_BIAS:
    case SD_MLP_POST_NORM_BIAS: rows = c->d_model, there = sd_norms_output(c) && c->norm_bias; break;
    case SD_ATTN_Q: rows = d_q, cols = c->d_model; break;
    case SD_ATTN_K:
    case SD_ATTN_V: rows = d_kv, cols = c->d_model; break;
    case SD_ATTN_Q_BIAS: rows = d_q, there = c->qkv_bias; break;
    case SD_ATTN_K_BIAS:
    case SD_ATTN_V_BIAS: rows = d_kv, there = c->qkv_bias; break;
    case SD_ATTN_Q_NORM: rows = qk_norm_length(c, c->n_head), there = rows > 0; break;
    case SD_ATTN_K_NORM: rows = qk_norm_length(c, c->n_kv_head), there = rows > 0; break;
    case SD_ATTN_SINKS: rows = c->n_head, there = c->attn_sinks; break;
    case SD_ATTN_OUT: rows = c->d_model, cols = d_q; break;
    case SD_ATTN_OUT_BIAS: rows = c->d_model, there = c->out_bias; break;
    case SD_MLP_GATE: rows = c->d_ff, cols = c->d_model, there = c->gated; break;
    case SD_MLP_UP: rows = c->d_ff, cols = c->d_model; break;
    case SD_MLP_DOWN: rows = c->d_model, cols = c->d_ff; break;
    case SD_MLP_GATE_BIAS: rows = c->d_ff, there = c->mlp_bias && c->gated; break;
    case SD_MLP_UP_BIAS: rows = c->d_ff, there = c->mlp_bias; break;
    case SD_MLP_DOWN_BIAS: rows = c->d_model, there = c->mlp_bias; break;
    case SD_N_ROLES: there = 0; break;
    }
    *n_rows = rows, *n_cols = cols;
    return there;
}

static int count_roles(const sd_config* config, int first, int end) {
    int n = 0, rows, cols;
    for (int role = first; role < end; role++) n += shape_of(config, role, &rows, &cols);
    return n;
}

int sd_tensor_count(const sd_config* config) {
    return count_roles(config, 0, SD_ATTN_NORM) +
           config->n_layer * count_roles(config, SD_ATTN_NORM, SD_N_ROLES);
}

void sd_tensor_at(const sd_config* config, int index, sd_tensor_spec* spec) {
    assert(index >= 0 && index < sd_tensor_count(config));
    int n_outside = count_roles(config, 0, SD_ATTN_NORM);
    int per_layer = count_roles(config, SD_ATTN_NORM, SD_N_ROLES);
    int layer = index < n_outside ? -1 : (index - n_outside) / per_layer;
    int nth = layer < 0 ? index : (index - n_outside) % per_layer;
    int role = layer < 0 ? 0 : SD_ATTN_NORM;
    for (;; role++) {
        if (shape_of(config, role, &spec->n_rows, &spec->n_cols) && nth-- == 0) break;
    }
    spec->role = role;
    spec->layer = layer;
    if (layer < 0)
        snprintf(spec->name, sizeof spec->name, "%s", names[role]);
    else
        snprintf(spec->name, sizeof spec->name, "layers.%d.%s", layer, names[role]);
}

/* Tensors [*first, *end) that a name can be one of: those of the layer that it names, or those outside the
 * layers. */
static void candidates(const sd_config* config, const char* name, int* first, int* end) {
    static const char prefix[] = "layers.";
    int n_outside = count_roles(config, 0, SD_ATTN_NORM);
    int per_layer = count_roles(config, SD_ATTN_NORM, SD_N_ROLES);
    *first = 0, *end = n_outside;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return;
    long layer = strtol(name + sizeof prefix - 1, NULL, 10); /* the whole name is compared afterwards */
    if (layer < 0 || layer >= config->n_layer) return;
    *first = n_outside + (int)layer * per_layer;
    *end = *first + per_layer;
}

int sd_tensor_find(const sd_config* config, const char* name, sd_tensor_spec* spec) {
    int i, end;
    for (candidates(config, name, &i, &end); i < end; i++) {
        sd_tensor_at(config, i, spec);
        if (strcmp(spec->name, name) == 0) return i;
    }
    return -1;
}
