#include "weights.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"

int sd_mlp_in_outputs(const sd_config* config) {
    return config->gated ? 2 * SD_PANEL * sd_matrix_panels(config->d_ff) : config->d_ff;
}

static int whole_panels(int n) { return SD_PANEL * sd_matrix_panels(n); }

int sd_keys_column(const sd_config* c) { return whole_panels(c->n_head * c->d_head); }
int sd_values_column(const sd_config* c) {
    return sd_keys_column(c) + whole_panels(c->n_kv_head * c->d_head);
}
int sd_qkv_outputs(const sd_config* c) { return sd_values_column(c) + c->n_kv_head * c->d_head; }

static float* take_vector(sd_arena* arena, int n, int there) {
    return there ? sd_arena_take(arena, (size_t)n, sizeof(float)) : NULL;
}

/* Hand every array of the model out of the arena; run once counting and once for real. */
static void lay_out(sd_model* model, sd_arena* arena) {
    const sd_config* c = &model->config;
    sd_format format = model->numbers.weights;
    int layer_norm = c->norm == SD_NORM_LAYER, learned = c->position == SD_POSITION_LEARNED;
    int d_q = c->n_head * c->d_head;
    model->is_set = sd_arena_take(arena, (size_t)sd_tensor_count(c), 1);
    model->layers = sd_arena_take(arena, (size_t)c->n_layer, sizeof(sd_layer));
    for (int i = 0; i < c->n_layer; i++) {
        sd_layer layer = {
            .attn_norm = take_vector(arena, c->d_model, 1),
            .attn_norm_bias = take_vector(arena, c->d_model, layer_norm),
            .mlp_norm = take_vector(arena, c->d_model, 1),
            .mlp_norm_bias = take_vector(arena, c->d_model, layer_norm),
            .qkv = sd_matrix_take(arena, format, sd_qkv_outputs(c), c->d_model, 1),
            .attn_out = sd_matrix_take(arena, format, c->d_model, d_q, 1),
            .mlp_in = sd_matrix_take(arena, format, sd_mlp_in_outputs(c), c->d_model, c->gated ? 2 : 1),
            .mlp_down = sd_matrix_take(arena, format, c->d_model, c->d_ff, 1),
            .qkv_bias = take_vector(arena, sd_qkv_outputs(c), c->qkv_bias),
            .attn_out_bias = take_vector(arena, c->d_model, c->out_bias),
            .mlp_in_bias = take_vector(arena, sd_mlp_in_outputs(c), c->mlp_bias),
            .mlp_down_bias = take_vector(arena, c->d_model, c->mlp_bias),
        };
        if (model->layers) model->layers[i] = layer;
    }
    model->head = sd_matrix_take(arena, format, c->n_vocab, c->d_model, 1);
    sd_number embedded = format == SD_FORMAT_F32 ? SD_F32 : SD_BF16;
    model->token_embedding = sd_table_take(arena, embedded, c->n_vocab, c->d_model);
    model->position_embedding = sd_table_take(arena, SD_F32, learned ? c->n_ctx : 0, c->d_model);
    if (!learned) model->inv_freq = sd_arena_take(arena, (size_t)(c->d_head / 2), sizeof(double));
    model->output_norm = take_vector(arena, c->d_model, 1);
    model->output_norm_bias = take_vector(arena, c->d_model, layer_norm);
}

sd_status sd_model_create(const sd_config* config, sd_numbers numbers, const double* inv_freq,
                          sd_model** out) {
    sd_status status = sd_config_check(config);
    if (status != SD_OK) return status;
    sd_model* model = sd_alloc(sizeof *model);
    if (model == NULL) return SD_ERR_MEMORY;
    model->config = *config;
    model->numbers = numbers;
    status = SD_ARENA_BUILD(&model->arena, lay_out(model, &model->arena));
    if (status != SD_OK) goto fail;
    if (config->position == SD_POSITION_ROTARY) {
        int half = config->d_head / 2;
        for (int i = 0; i < half; i++) {
            if (!(inv_freq[i] >= 0.0 && inv_freq[i] <= 1e6)) {
                status =
                    sd_fail(SD_ERR_VALUE, "config: inv_freq[%d] is %g, expected a frequency of 0 or more", i,
                            inv_freq[i]);
                goto fail;
            }
            model->inv_freq[i] = inv_freq[i];
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

/* Where a tensor goes: a vector, a table, rows of a packed matrix; the embedding of a tied model to
 * both of the latter. */
typedef struct destination {
    float* vector;
    sd_table* table;
    sd_matrix* matrix;
    sd_rows rows;
} destination;

static destination destination_of(sd_model* model, const sd_tensor_spec* spec) {
    const sd_config* c = &model->config;
    sd_layer* layer = spec->layer < 0 ? NULL : &model->layers[spec->layer];
    sd_rows all = {0, 1}, keys = {sd_keys_column(c), 1}, values = {sd_values_column(c), 1};
    sd_rows gate = {0, 2}, up = {c->gated ? SD_PANEL : 0, c->gated ? 2 : 1};
    switch (spec->role) {
    case SD_TOKEN_EMBEDDING:
        return (destination){
            .table = &model->token_embedding, .matrix = c->tied ? &model->head : NULL, .rows = all};
    case SD_POSITION_EMBEDDING: return (destination){.table = &model->position_embedding};
    case SD_HEAD: return (destination){.matrix = &model->head, .rows = all};
    case SD_OUTPUT_NORM: return (destination){.vector = model->output_norm};
    case SD_OUTPUT_NORM_BIAS: return (destination){.vector = model->output_norm_bias};
    case SD_ATTN_NORM: return (destination){.vector = layer->attn_norm};
    case SD_ATTN_NORM_BIAS: return (destination){.vector = layer->attn_norm_bias};
    case SD_ATTN_Q: return (destination){.matrix = &layer->qkv, .rows = all};
    case SD_ATTN_K: return (destination){.matrix = &layer->qkv, .rows = keys};
    case SD_ATTN_V: return (destination){.matrix = &layer->qkv, .rows = values};
    case SD_ATTN_Q_BIAS: return (destination){.vector = layer->qkv_bias, .rows = all};
    case SD_ATTN_K_BIAS: return (destination){.vector = layer->qkv_bias, .rows = keys};
    case SD_ATTN_V_BIAS: return (destination){.vector = layer->qkv_bias, .rows = values};
    case SD_ATTN_OUT: return (destination){.matrix = &layer->attn_out, .rows = all};
    case SD_ATTN_OUT_BIAS: return (destination){.vector = layer->attn_out_bias};
    case SD_MLP_NORM: return (destination){.vector = layer->mlp_norm};
    case SD_MLP_NORM_BIAS: return (destination){.vector = layer->mlp_norm_bias};
    case SD_MLP_GATE: return (destination){.matrix = &layer->mlp_in, .rows = gate};
    case SD_MLP_UP: return (destination){.matrix = &layer->mlp_in, .rows = up};
    case SD_MLP_DOWN: return (destination){.matrix = &layer->mlp_down, .rows = all};
    case SD_MLP_GATE_BIAS: return (destination){.vector = layer->mlp_in_bias, .rows = gate};
    case SD_MLP_UP_BIAS: return (destination){.vector = layer->mlp_in_bias, .rows = up};
    case SD_MLP_DOWN_BIAS: return (destination){.vector = layer->mlp_down_bias};
    case SD_N_ROLES: break;
    }
    assert(!"unknown role");
    return (destination){0};
}

static sd_status copy_vector(float* to, const sd_source* source, const sd_tensor_spec* spec, sd_rows rows) {
    int step = rows.step > 0 ? rows.step : 1;
    for (int r = 0; r < spec->n_rows; r++) {
        float value;
        sd_source_read(source, r, 0, 1, &value);
        if (!isfinite(value))
            return sd_fail(SD_ERR_NOT_FINITE, "tensor %s: element [%d] is %g, expected a finite number",
                           spec->name, r, (double)value);
        to[rows.first + r / SD_PANEL * SD_PANEL * step + r % SD_PANEL] = value;
    }
    return SD_OK;
}

sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                       int n_threads) {
    assert(!model->finished);
    sd_tensor_spec spec;
    int i = sd_tensor_find(&model->config, name, &spec);
    if (i < 0) return sd_fail(SD_ERR_SHAPE, "tensor %.64s: not part of a model of this configuration", name);
    if (model->is_set[i]) return sd_fail(SD_ERR_SHAPE, "tensor %s: given twice", name);
    if (n_rows != spec.n_rows || n_cols != spec.n_cols) {
        if (spec.n_cols == 0 && n_cols == 0)
            return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d,), expected (%d,)", name, n_rows,
                           spec.n_rows);
        return sd_fail(SD_ERR_SHAPE, "tensor %s: shape is (%d, %d), expected (%d, %d)", name, n_rows, n_cols,
                       spec.n_rows, spec.n_cols);
    }
    destination to = destination_of(model, &spec);
    sd_status status = sd_pool_reserve(n_threads);
    if (status == SD_OK && to.vector) status = copy_vector(to.vector, source, &spec, to.rows);
    if (status == SD_OK && to.table) status = sd_table_fill(to.table, source, spec.name, n_threads);
    if (status == SD_OK && to.matrix)
        status = sd_matrix_pack(to.matrix, source, n_rows, to.rows, spec.name, n_threads);
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

sd_status sd_model_rows(const sd_model* model, const char* name, int first, int n, float* out) {
    sd_tensor_spec spec;
    destination at = {0};
    if (sd_tensor_find(&model->config, name, &spec) >= 0) at = destination_of((sd_model*)model, &spec);
    if (at.matrix == NULL) return sd_fail(SD_ERR_VALUE, "tensor %.64s: not a matrix of this model", name);
    for (int r = first; r < first + n; r++, out += spec.n_cols) {
        int row = at.rows.first + r / SD_PANEL * SD_PANEL * at.rows.step + r % SD_PANEL;
        sd_matrix_row(at.matrix, row, out);
        sd_status status = sd_interrupted();
        if (status != SD_OK) return status;
    }
    return SD_OK;
}

void sd_model_embed(const sd_model* model, int token, int position, float* out) {
    sd_table_row(&model->token_embedding, token, out);
    if (model->position_embedding.n_rows == 0) return;
    const float* at = (const float*)(const void*)model->position_embedding.data;
    int d = model->config.d_model;
    sd_kernels_get()->add(1, d, out, d, at + (size_t)position * (size_t)d, d);
}
