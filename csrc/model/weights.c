#include "weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

int sd_mlp_in_outputs(const sd_config* config) {
    return config->gated ? 2 * SD_PANEL * sd_matrix_panels(config->d_ff) : config->d_ff;
}

static float* take_vector(sd_arena* arena, int n, int there) {
    return there ? sd_arena_take(arena, (size_t)n, sizeof(float)) : NULL;
}

static float* take_table(sd_arena* arena, int n_rows, int n_cols, int there) {
    return there ? sd_arena_take(arena, (size_t)n_rows, (size_t)n_cols * sizeof(float)) : NULL;
}

/* Hand every array of the model out of the arena; run once counting and once for real. */
static void lay_out(sd_model* model, sd_arena* arena) {
    const sd_config* c = &model->config;
    int layer_norm = c->norm == SD_NORM_LAYER, rotary = c->position == SD_POSITION_ROTARY;
    int d_q = c->n_head * c->d_head, d_qkv = d_q + 2 * c->n_kv_head * c->d_head;
    model->is_set = sd_arena_take(arena, (size_t)sd_tensor_count(c), 1);
    model->layers = sd_arena_take(arena, (size_t)c->n_layer, sizeof(sd_layer));
    for (int i = 0; i < c->n_layer; i++) {
        sd_layer layer = {
            .attn_norm = take_vector(arena, c->d_model, 1),
            .attn_norm_bias = take_vector(arena, c->d_model, layer_norm),
            .mlp_norm = take_vector(arena, c->d_model, 1),
            .mlp_norm_bias = take_vector(arena, c->d_model, layer_norm),
            .qkv = sd_matrix_take(arena, d_qkv, c->d_model, 1),
            .attn_out = sd_matrix_take(arena, c->d_model, d_q, 1),
            .mlp_in = sd_matrix_take(arena, sd_mlp_in_outputs(c), c->d_model, c->gated ? 2 : 1),
            .mlp_down = sd_matrix_take(arena, c->d_model, c->d_ff, 1),
            .qkv_bias = take_vector(arena, d_qkv, c->qkv_bias),
            .attn_out_bias = take_vector(arena, c->d_model, c->out_bias),
            .mlp_in_bias = take_vector(arena, sd_mlp_in_outputs(c), c->mlp_bias),
            .mlp_down_bias = take_vector(arena, c->d_model, c->mlp_bias),
        };
        if (model->layers) model->layers[i] = layer;
    }
    model->head = sd_matrix_take(arena, c->n_vocab, c->d_model, 1);
    model->token_embedding = take_table(arena, c->n_vocab, c->d_model, !c->tied);
    model->position_embedding = take_table(arena, c->n_ctx, c->d_model, !rotary);
    model->cosine = take_table(arena, c->n_ctx, c->d_head / 2, rotary);
    model->sine = take_table(arena, c->n_ctx, c->d_head / 2, rotary);
    model->output_norm = take_vector(arena, c->d_model, 1);
    model->output_norm_bias = take_vector(arena, c->d_model, layer_norm);
}

sd_status sd_model_create(const sd_config* config, const double* inv_freq, sd_model** out) {
    sd_status status = sd_config_check(config);
    if (status != SD_OK) return status;
    sd_model* model = sd_alloc(sizeof *model);
    if (model == NULL) return SD_ERR_MEMORY;
    model->config = *config;
    lay_out(model, &model->arena);
    status = sd_arena_commit(&model->arena);
    if (status != SD_OK) goto fail;
    lay_out(model, &model->arena);
    if (config->position == SD_POSITION_ROTARY) {
        int half = config->d_head / 2;
        for (int i = 0; i < half; i++) {
            if (!(inv_freq[i] >= 0.0 && inv_freq[i] <= 1e6)) {
                status =
                    sd_fail(SD_ERR_VALUE, "config: inv_freq[%d] is %g, expected a frequency of 0 or more", i,
                            inv_freq[i]);
                goto fail;
            }
        }
        for (int p = 0; p < config->n_ctx; p++) {
            for (int i = 0; i < half; i++) {
                model->cosine[(size_t)p * half + i] = (float)cos(p * inv_freq[i]);
                model->sine[(size_t)p * half + i] = (float)sin(p * inv_freq[i]);
            }
        }
    }
    *out = model;
    return SD_OK;
fail:
    sd_model_free(model);
    return status;
}

void sd_model_free(sd_model* model) {
    if (model == NULL) return;
    sd_arena_free(&model->arena);
    sd_free(model);
}

/* Where a tensor goes: a vector, a row-major table, or rows of a packed matrix. */
typedef struct place {
    float* array;
    sd_matrix* matrix;
    sd_rows rows;
} place;

static place place_of(sd_model* model, const sd_tensor_spec* spec) {
    const sd_config* c = &model->config;
    sd_layer* layer = spec->layer < 0 ? NULL : &model->layers[spec->layer];
    int q_rows = c->n_head * c->d_head, kv_rows = c->n_kv_head * c->d_head;
    sd_rows all = {0, 1}, keys = {q_rows, 1}, values = {q_rows + kv_rows, 1};
    sd_rows gate = {0, 2}, up = {c->gated ? SD_PANEL : 0, c->gated ? 2 : 1};
    switch (spec->role) {
    case SD_TOKEN_EMBEDDING:
        return c->tied ? (place){.matrix = &model->head, .rows = all}
                       : (place){.array = model->token_embedding};
    case SD_POSITION_EMBEDDING: return (place){.array = model->position_embedding};
    case SD_HEAD: return (place){.matrix = &model->head, .rows = all};
    case SD_OUTPUT_NORM: return (place){.array = model->output_norm};
    case SD_OUTPUT_NORM_BIAS: return (place){.array = model->output_norm_bias};
    case SD_ATTN_NORM: return (place){.array = layer->attn_norm};
    case SD_ATTN_NORM_BIAS: return (place){.array = layer->attn_norm_bias};
    case SD_ATTN_Q: return (place){.matrix = &layer->qkv, .rows = all};
    case SD_ATTN_K: return (place){.matrix = &layer->qkv, .rows = keys};
    case SD_ATTN_V: return (place){.matrix = &layer->qkv, .rows = values};
    case SD_ATTN_Q_BIAS: return (place){.array = layer->qkv_bias, .rows = all};
    case SD_ATTN_K_BIAS: return (place){.array = layer->qkv_bias, .rows = keys};
    case SD_ATTN_V_BIAS: return (place){.array = layer->qkv_bias, .rows = values};
    case SD_ATTN_OUT: return (place){.matrix = &layer->attn_out, .rows = all};
    case SD_ATTN_OUT_BIAS: return (place){.array = layer->attn_out_bias};
    case SD_MLP_NORM: return (place){.array = layer->mlp_norm};
    case SD_MLP_NORM_BIAS: return (place){.array = layer->mlp_norm_bias};
    case SD_MLP_GATE: return (place){.matrix = &layer->mlp_in, .rows = gate};
    case SD_MLP_UP: return (place){.matrix = &layer->mlp_in, .rows = up};
    case SD_MLP_DOWN: return (place){.matrix = &layer->mlp_down, .rows = all};
    case SD_MLP_GATE_BIAS: return (place){.array = layer->mlp_in_bias, .rows = gate};
    case SD_MLP_UP_BIAS: return (place){.array = layer->mlp_in_bias, .rows = up};
    case SD_MLP_DOWN_BIAS: return (place){.array = layer->mlp_down_bias};
    case SD_N_ROLES: break;
    }
    assert(!"unknown role");
    return (place){0};
}

static sd_status copy_array(float* to, const sd_source* source, const sd_tensor_spec* spec, sd_rows rows) {
    int n_cols = spec->n_cols > 0 ? spec->n_cols : 1;
    int step = rows.step > 0 ? rows.step : 1;
    for (int r = 0; r < spec->n_rows; r++) {
        size_t row = (size_t)(rows.first + r / SD_PANEL * SD_PANEL * step + r % SD_PANEL);
        for (int k = 0; k < n_cols; k++) {
            float value = sd_source_at(source, r, k);
            if (!isfinite(value))
                return sd_fail(SD_ERR_NOT_FINITE,
                               "tensor %s: element [%d, %d] is %g, expected a finite number", spec->name, r,
                               k, (double)value);
            to[row * (size_t)n_cols + (size_t)k] = value;
        }
    }
    return SD_OK;
}

sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols) {
    assert(!model->finished);
    int n = sd_tensor_count(&model->config);
    sd_tensor_spec spec;
    int i = 0;
    for (; i < n; i++) {
        sd_tensor_at(&model->config, i, &spec);
        if (strcmp(spec.name, name) == 0) break;
    }
    if (i == n) return sd_fail(SD_ERR_SHAPE, "tensor %.64s: not part of a model of this configuration", name);
    if (model->is_set[i]) return sd_fail(SD_ERR_SHAPE, "tensor %s: given twice", name);
    if (n_rows != spec.n_rows || n_cols != spec.n_cols) {
        if (spec.n_cols == 0 && n_cols == 0)
            return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d,), expected (%d,)", name, n_rows,
                           spec.n_rows);
        return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d, %d), expected (%d, %d)", name, n_rows, n_cols,
                       spec.n_rows, spec.n_cols);
    }
    place to = place_of(model, &spec);
    sd_status status = to.matrix ? sd_matrix_pack(to.matrix, source, n_rows, to.rows, spec.name)
                                 : copy_array(to.array, source, &spec, to.rows);
    if (status == SD_OK) model->is_set[i] = 1;
    return status;
}

sd_status sd_model_finish(sd_model* model) {
    int n = sd_tensor_count(&model->config);
    for (int i = 0; i < n; i++) {
        if (model->is_set[i]) continue;
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        return sd_fail(SD_ERR_SHAPE, "tensor %s: missing, expected shape (%d, %d)", spec.name, spec.n_rows,
                       spec.n_cols);
    }
    model->finished = 1;
    return SD_OK;
}

void sd_model_embed(const sd_model* model, int token, int position, float* out) {
    size_t d = (size_t)model->config.d_model;
    if (model->token_embedding)
        memcpy(out, model->token_embedding + (size_t)token * d, d * sizeof *out);
    else
        sd_matrix_row(&model->head, token, out);
    if (model->position_embedding)
        sd_kernels_get()->add((int)d, out, model->position_embedding + (size_t)position * d);
}
