#include "weights.h"

#include <assert.h>
#include <string.h>

#include "adapter.h"
#include "blocks.h"
#include "interrupt.h"
#include "kernels.h"
#include "pack.h"

int sd_keys_column(const sd_layer_config* l) { return sd_whole_panels(sd_query_width(l)); }
int sd_values_column(const sd_layer_config* l) {
    return sd_keys_column(l) + sd_whole_panels(sd_key_width(l));
}
int sd_qkv_width(const sd_layer_config* l) {
    return l->shares_kv ? sd_query_width(l) : sd_values_column(l) + sd_key_width(l);
}
int sd_gate_column(const sd_layer_config* l) { return sd_whole_panels(sd_qkv_width(l)); }
int sd_qkv_outputs(const sd_config* c, const sd_layer_config* l) {
    if (l->values_from_keys) return sd_keys_column(l) + sd_key_width(l);
    return c->attn_gate == SD_ATTN_GATE_NONE ? sd_qkv_width(l) : sd_gate_column(l) + sd_gate_width(c, l);
}
int sd_cross_values_column(const sd_layer_config* l) { return sd_whole_panels(sd_key_width(l)); }
int sd_cross_outputs(const sd_layer_config* l) { return sd_cross_values_column(l) + sd_key_width(l); }
int sd_shared_gate_output(const sd_config* c) { return sd_whole_panels(c->experts.n); }

static float* take_vector(sd_arena* arena, int n, int there) {
    return there ? sd_arena_take(arena, (size_t)n, sizeof(float)) : NULL;
}

/* Copy a configuration; its arrays are taken from the arena. */
static sd_config take_config(sd_arena* arena, const sd_config* from) {
    sd_config c = *from;
    c.layers = sd_arena_copy(arena, from->layers, c.n_layer, sizeof *c.layers);
    c.alibi = sd_arena_copy(arena, from->alibi, from->layers[0].n_head, sizeof *c.alibi);
    c.bucket_starts = sd_arena_copy(arena, from->bucket_starts, c.n_buckets, sizeof *c.bucket_starts);
    sd_rotation* rotations = sd_arena_copy(arena, from->rotations, c.n_rotations, sizeof *rotations);
    for (int r = 0; r < c.n_rotations; r++) {
        const sd_rotation* rotation = &from->rotations[r];
        const double* inv_freq = sd_arena_copy(arena, rotation->inv_freq, rotation->n_freq, sizeof *inv_freq);
        if (arena->base != NULL) rotations[r].inv_freq = inv_freq;
    }
    c.rotations = rotations;
    return c;
}

/* How matrices are stored: of a layer, -1 outside the layers, and of one of its experts, -1 for none or the
 * shared one. */
typedef struct packing {
    const sd_config* config;
    sd_format format;
    const sd_format* by_tensor;
    sd_layout layout, of_sources; /* of its matrices; of those multiplied with rows of a source */
    int layer, expert;
} packing;

static packing packing_of(const sd_config* c, sd_numbers numbers) {
    int blas = numbers.prefill == SD_ENGINE_BLAS;
    sd_layout of_sources = blas ? SD_LAYOUT_PLAIN : SD_LAYOUT_PANELS;
    sd_layout of_texts = blas && c->encoder == NULL ? SD_LAYOUT_BOTH : SD_LAYOUT_PANELS;
    return SD_MAKE(packing, .config = c, .format = numbers.weights, .by_tensor = numbers.by_tensor,
                   .layout = c->bidirectional ? of_sources : of_texts, .of_sources = of_sources, .layer = -1,
                   .expert = -1);
}

/* Format of a tensor that has one by name; SD_N_FORMATS: none. */
static sd_format named_format(packing p, sd_tensor_role role) {
    if (p.by_tensor == NULL) return SD_N_FORMATS;
    return p.by_tensor[sd_tensor_index(p.config, role, p.layer, p.expert)];
}

static sd_matrix_part part_of(packing p, sd_tensor_role role, sd_rows rows, int n_rows) {
    sd_format named = named_format(p, role);
    return (sd_matrix_part){rows, n_rows, named == SD_N_FORMATS ? p.format : named};
}

static sd_matrix take_matrix(sd_arena* arena, packing p, sd_tensor_role role, int n_out, int n_in) {
    const sd_matrix_part all = part_of(p, role, (sd_rows){0, 1}, n_out);
    return sd_matrix_take_parts(arena, &all, 1, p.layout, n_out, n_in, 1);
}

/* `gate`: role of the gate's matrix; those of up and down follow. */
static sd_mlp take_mlp(sd_arena* arena, const sd_config* c, packing p, sd_tensor_role gate, int width) {
    int outputs = c->gated ? 2 * sd_whole_panels(width) : width, n = c->gated ? 2 : 1;
    const sd_rows up = c->gated ? (sd_rows){SD_PANEL, 2} : (sd_rows){0, 1};
    sd_matrix_part parts[2] = {part_of(p, gate + 1, up, width)};
    if (c->gated) parts[1] = part_of(p, gate, (sd_rows){0, 2}, width);
    return SD_MAKE(sd_mlp, .width = width,
                   .in = sd_matrix_take_parts(arena, parts, n, p.layout, outputs, c->d_model, n),
                   .down = take_matrix(arena, p, gate + 2, c->d_model, width),
                   .in_bias = take_vector(arena, outputs, c->mlp_bias),
                   .down_bias = take_vector(arena, c->d_model, c->mlp_bias),
                   .xielu = take_vector(arena, 3, c->activation == SD_ACT_XIELU));
}

static void take_experts(sd_arena* arena, const sd_config* c, packing p, sd_layer* layer) {
    const sd_experts* e = &c->experts;
    int n = e->n + (e->shared_width > 0), outputs = e->shared_gate ? sd_shared_gate_output(c) + 1 : e->n;
    layer->router = sd_matrix_take(arena, SD_FORMAT_F32, SD_LAYOUT_PANELS, outputs, c->d_model, 1);
    layer->router_bias = take_vector(arena, outputs, e->router_bias);
    layer->router_correction = take_vector(arena, e->n, e->correction);
    layer->router_norm = take_vector(arena, c->d_model, e->with_dense);
    layer->experts_norm = take_vector(arena, c->d_model, e->with_dense);
    layer->experts_post_norm = take_vector(arena, c->d_model, e->with_dense);
    layer->dense_post_norm = take_vector(arena, c->d_model, e->with_dense);
    layer->expert_scale = take_vector(arena, e->n, e->with_dense);
    layer->experts = sd_arena_take(arena, (size_t)n, sizeof *layer->experts);
    for (int i = 0; i < n; i++) {
        p.expert = i < e->n ? i : -1;
        sd_mlp expert = i < e->n ? take_mlp(arena, c, p, SD_EXPERT_GATE, e->width)
                                 : take_mlp(arena, c, p, SD_SHARED_EXPERT_GATE, e->shared_width);
        if (layer->experts) layer->experts[i] = expert;
    }
}

static void take_cross_attention(sd_arena* arena, const sd_config* c, packing p, const sd_layer_config* own,
                                 sd_layer* layer) {
    int d = c->d_model, d_q = sd_query_width(own), outputs = sd_cross_outputs(own);
    int layer_norm = c->norm == SD_NORM_LAYER, input = sd_norms_input(c), post = sd_has_post_norm(c);
    layer->cross_norm = take_vector(arena, d, input);
    layer->cross_norm_bias = take_vector(arena, d, input && layer_norm);
    layer->cross_post_norm = take_vector(arena, d, post);
    layer->cross_post_norm_bias = take_vector(arena, d, post && layer_norm);
    int width = sd_key_width(own);
    const sd_rows values = {sd_cross_values_column(own), 1};
    const sd_matrix_part parts[] = {part_of(p, SD_CROSS_K, (sd_rows){0, 1}, width),
                                    part_of(p, SD_CROSS_V, values, width)};
    layer->cross_q = take_matrix(arena, p, SD_CROSS_Q, d_q, d);
    layer->cross_kv = sd_matrix_take_parts(arena, parts, 2, p.of_sources, outputs, c->encoder->d_model, 1);
    layer->cross_out = take_matrix(arena, p, SD_CROSS_OUT, d, d_q);
    layer->cross_q_bias = take_vector(arena, d_q, c->qkv_bias);
    layer->cross_kv_bias = take_vector(arena, outputs, c->qkv_bias);
    layer->cross_out_bias = take_vector(arena, d, c->out_bias);
}

/* Take the tensors of attention, without its norms of the stream. */
static void take_attention(sd_arena* arena, const sd_config* c, packing p, const sd_layer_config* own,
                           sd_layer* layer) {
    int d_q = sd_query_width(own), d_kv = sd_key_width(own);
    int shared = c->qk_norm == SD_QK_NORM_HEAD, qk_norm = c->qk_norm != SD_QK_NORM_NONE;
    int gated = sd_gate_width(c, own), outputs = sd_qkv_outputs(c, own), n = 1;
    sd_matrix_part qkv[4] = {part_of(p, SD_ATTN_Q, (sd_rows){0, 1}, d_q)};
    if (!own->shares_kv) qkv[n++] = part_of(p, SD_ATTN_K, (sd_rows){sd_keys_column(own), 1}, d_kv);
    if (!own->shares_kv && !own->values_from_keys)
        qkv[n++] = part_of(p, SD_ATTN_V, (sd_rows){sd_values_column(own), 1}, d_kv);
    if (gated) qkv[n++] = part_of(p, SD_ATTN_GATE, (sd_rows){sd_gate_column(own), 1}, gated);
    layer->q_norm = take_vector(arena, shared ? own->d_head : d_q, qk_norm);
    layer->k_norm = take_vector(arena, shared ? own->d_head : d_kv, qk_norm && !own->shares_kv);
    layer->sinks = take_vector(arena, own->n_head, c->attn_sinks);
    layer->qkv = sd_matrix_take_parts(arena, qkv, n, p.layout, outputs, sd_layer_inputs(c, own), 1);
    layer->attn_out = take_matrix(arena, p, SD_ATTN_OUT, c->d_model, d_q);
    layer->qkv_bias = take_vector(arena, outputs, c->qkv_bias);
    layer->attn_out_bias = take_vector(arena, c->d_model, c->out_bias);
    if (c->bias_by_layer) layer->relative_bias = sd_table_take(arena, SD_F32, sd_bucket_rows(c), own->n_head);
}

/* Take the tensors of a mixer. */
static void take_mixer(sd_arena* arena, const sd_config* c, packing p, const sd_layer_config* own,
                       sd_layer* layer) {
    int outputs = sd_mixer_outputs(c, own), channels = sd_mixer_channels(c, own);
    int recurs = sd_has_state(own), bias = !recurs && c->mixers.bias, n_head = c->mixers.n_value_head;
    int mamba2 = own->mixer == SD_MIXER_MAMBA2;
    const sd_recurrent_columns at = sd_recurrent_columns_of(&c->mixers, own->mixer);
    sd_matrix_part parts[2] = {part_of(p, SD_MIXER_IN, (sd_rows){0, 1}, recurs ? channels : outputs)};
    if (recurs) parts[1] = part_of(p, SD_MIXER_GATE, (sd_rows){at.gate, 1}, at.n_values);
    layer->mixer_in = sd_matrix_take_parts(arena, parts, recurs ? 2 : 1, p.layout, outputs, c->d_model, 1);
    if (recurs) layer->rates = sd_matrix_take(arena, SD_FORMAT_F32, p.layout, at.n_rates, c->d_model, 1);
    layer->mixer_in_bias = take_vector(arena, outputs, bias);
    layer->decay_bias = take_vector(arena, n_head, recurs);
    layer->decay_rate = take_vector(arena, n_head, recurs);
    layer->mixer_skip = take_vector(arena, n_head, mamba2);
    layer->mixer_norm = take_vector(arena, mamba2 ? at.n_values : c->mixers.d_value,
                                    mamba2 ? c->mixers.n_norm_groups : recurs);
    layer->conv = sd_table_take(arena, SD_F32, c->mixers.conv_width, channels);
    layer->conv_bias = take_vector(arena, channels, c->mixers.conv_bias);
    layer->mixer_out = take_matrix(arena, p, SD_MIXER_OUT, c->d_model, sd_mixer_width(c, own));
    layer->mixer_out_bias = take_vector(arena, c->d_model, bias);
}

static sd_layer take_layer(sd_arena* arena, const sd_config* c, packing p, const sd_layer_config* own) {
    int d = c->d_model, layer_norm = c->norm == SD_NORM_LAYER, post = sd_has_post_norm(c);
    int first = sd_has_first_half(own), second = sd_has_second_half(own);
    int attn_norm = first && sd_norms_input(c) && own->input_norm;
    int mlp_norm = second && sd_norms_input(c) && c->parallel != SD_PARALLEL_ONE_NORM;
    sd_layer layer = {
        .attn_norm = take_vector(arena, d, attn_norm),
        .attn_norm_bias = take_vector(arena, d, attn_norm && layer_norm),
        .attn_post_norm = take_vector(arena, d, first && post),
        .attn_post_norm_bias = take_vector(arena, d, first && post && layer_norm),
        .mlp_norm = take_vector(arena, d, mlp_norm),
        .mlp_norm_bias = take_vector(arena, d, mlp_norm && layer_norm),
        .mlp_post_norm = take_vector(arena, d, second && post),
        .scale = take_vector(arena, 1, c->layer_scale),
        .per_layer_post_norm = take_vector(arena, d, c->d_per_layer > 0),
        .mlp_post_norm_bias = take_vector(arena, d, second && post && layer_norm),
    };
    if (own->attends) take_attention(arena, c, p, own, &layer);
    if (own->mixer != SD_MIXER_NONE) take_mixer(arena, c, p, own, &layer);
    if (c->encoder) take_cross_attention(arena, c, p, own, &layer);
    if (own->mixture) take_experts(arena, c, p, &layer);
    if (own->mixture ? c->experts.with_dense : second)
        layer.mlp = take_mlp(arena, c, p, SD_MLP_GATE, own->d_ff);
    if (c->d_per_layer > 0) {
        layer.per_layer_gate = take_matrix(arena, p, SD_PER_LAYER_GATE, c->d_per_layer, d);
        layer.per_layer_out = take_matrix(arena, p, SD_PER_LAYER_OUT, d, c->d_per_layer);
    }
    return layer;
}

static void take_features(sd_arena* arena, const sd_config* c, packing p, sd_model* model) {
    const sd_features* f = &c->features;
    int norms = f->use == SD_FEATURE_ASIDE || f->norms;
    model->feature_projection =
        take_matrix(arena, p, SD_FEATURE_PROJECTION, c->d_model, sd_feature_inputs(c));
    if (f->output) model->feature_output = take_matrix(arena, p, SD_FEATURE_OUTPUT, f->width, c->d_model);
    if (c->n_clusters > 0)
        model->head_centroids = take_matrix(arena, p, SD_HEAD_CENTROIDS, c->n_clusters, c->d_model);
    model->feature_projection_bias = take_vector(arena, c->d_model, f->bias);
    model->feature_input_norm = take_vector(arena, f->width, f->n_pieces > 0);
    model->token_norm = take_vector(arena, c->d_model, norms);
    model->feature_norm = take_vector(arena, c->d_model, norms);
}

/* Number type of an embedding table; with a format by name, as in the file. */
static sd_number embedding_number(packing p, sd_tensor_role role) {
    sd_format named = named_format(p, role);
    for (sd_number n = SD_F32; n < SD_N_NUMBERS; n++)
        if (n != SD_F16 && sd_block_format(n) == named) return n;
    return p.format == SD_FORMAT_F32 ? SD_F32 : SD_BF16;
}

/* Take per-layer embeddings. */
static void take_per_layer(sd_arena* arena, const sd_config* c, packing p, sd_model* model) {
    sd_number number = embedding_number(p, SD_PER_LAYER_EMBEDDING);
    int n = c->n_layer * c->d_per_layer;
    model->per_layer_embedding = sd_table_take(arena, number, c->n_vocab, n);
    model->per_layer_projection = take_matrix(arena, p, SD_PER_LAYER_PROJECTION, n, c->d_model);
    model->per_layer_projection_norm = take_vector(arena, c->d_per_layer, 1);
}

/* Take memory for the rows of the target's head that the model has. */
static void take_shared_head(sd_arena* arena, const sd_config* c, const sd_model* target, sd_model* model) {
    model->head = sd_matrix_take(arena, target->head.panels[0].format, SD_LAYOUT_PANELS, c->n_draft_tokens,
                                 c->d_model, 1);
    model->head_bias = take_vector(arena, c->n_draft_tokens, target->head_bias != NULL);
}

/* Copy those rows, given by number. */
static void copy_shared_head(const sd_model* target, const int32_t* rows, sd_model* model) {
    sd_matrix_gather(&target->head, rows, &model->head);
    for (int i = 0; model->head_bias && i < model->head.n_out; i++)
        model->head_bias[i] = target->head_bias[rows[i]];
}

/* Channels of recurrent layers; 0: there are none. */
static int recurrent_channels(const sd_config* c) {
    if (!sd_any_has_state(c)) return 0;
    return sd_recurrent_columns_of(&c->mixers, SD_MIXER_MAMBA2).n_channels;
}

/* Take every array of the model from the arena; runs twice, to count and to hand out. */
static void lay_out(sd_model* model, sd_arena* arena, const sd_config* config, sd_shared shared) {
    model->config = take_config(arena, config);
    const sd_config* c = config;
    packing p = packing_of(c, model->numbers);
    int layer_norm = c->norm == SD_NORM_LAYER, learned = c->position == SD_POSITION_LEARNED;
    model->is_set = sd_arena_take(arena, (size_t)sd_tensor_count(c), 1);
    int n_biases = c->bias_by_layer ? 0 : sd_bucket_rows(c);
    model->relative_bias = sd_table_take(arena, SD_F32, n_biases, c->layers[0].n_head);
    model->layers = sd_arena_take(arena, (size_t)c->n_layer, sizeof(sd_layer));
    for (int i = 0; i < c->n_layer; i++) {
        p.layer = i;
        sd_layer layer = take_layer(arena, c, p, &c->layers[i]);
        if (!c->bias_by_layer) layer.relative_bias = model->relative_bias;
        if (model->layers) model->layers[i] = layer;
    }
    p.layer = -1;
    packing of_head = p;
    if (c->tied) of_head.layout = SD_LAYOUT_PANELS; /* the table is plain */
    if (!c->bidirectional && !c->shared_head)
        model->head =
            take_matrix(arena, of_head, c->tied ? SD_TOKEN_EMBEDDING : SD_HEAD, sd_head_rows(c), c->d_model);
    sd_number embedded = c->shared_embedding ? SD_F32 : embedding_number(p, SD_TOKEN_EMBEDDING);
    model->token_embedding =
        sd_table_take(arena, embedded, c->shared_embedding ? 0 : c->n_vocab, sd_own_width(c));
    if (c->tied && p.layout == SD_LAYOUT_BOTH) model->head.plain = (float*)(void*)model->token_embedding.data;
    model->position_embedding = sd_table_take(arena, SD_F32, learned ? c->n_ctx : 0, c->d_model);
    model->embedding_norm = take_vector(arena, c->d_model, c->embedding_norm);
    model->embedding_norm_bias = take_vector(arena, c->d_model, c->embedding_norm && layer_norm);
    model->output_norm = take_vector(arena, c->d_model, c->output_norm);
    model->output_norm_bias = take_vector(arena, c->d_model, c->output_norm && layer_norm);
    model->head_bias =
        take_vector(arena, sd_head_rows(c), c->head_bias && !c->bidirectional && !c->shared_head);
    if (c->shared_head && c->n_draft_tokens > 0) take_shared_head(arena, c, shared.target, model);
    if (c->features.use != SD_FEATURE_NONE) take_features(arena, c, p, model);
    if (c->d_per_layer > 0) take_per_layer(arena, c, p, model);
    model->ones = take_vector(arena, sd_widest(c, sd_head_size), c->v_norm);
    model->channel_scales = take_vector(arena, recurrent_channels(c), c->mixers.scaled);
    model->zeros =
        take_vector(arena, sd_widest(c, sd_query_width), layer_norm && c->qk_norm != SD_QK_NORM_NONE);
}

static void fill_ones(float* vector, int n) {
    for (int i = 0; vector != NULL && i < n; i++) vector[i] = 1.0f;
}

/* Fill the weights of norms that have none. */
static void fill_norms(sd_model* model) {
    const sd_config* c = &model->config;
    fill_ones(model->ones, sd_widest(c, sd_head_size));
    if (c->norm_weight) return;
    fill_ones(model->embedding_norm, c->d_model);
    fill_ones(model->output_norm, c->d_model);
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer* layer = &model->layers[i];
        float* norms[] = {layer->attn_norm,       layer->attn_post_norm, layer->cross_norm,
                          layer->cross_post_norm, layer->mlp_norm,       layer->mlp_post_norm};
        for (int n = 0; n < 6; n++) fill_ones(norms[n], c->d_model);
    }
}

/* Fill the factors of queries, keys and values of recurrent layers. */
static void fill_scales(sd_model* model) {
    const sd_mixer_sizes* s = &model->config.mixers;
    const sd_recurrent_columns at = sd_recurrent_columns_of(s, SD_MIXER_MAMBA2);
    int n = recurrent_channels(&model->config);
    for (int i = 0; model->channel_scales != NULL && i < n; i++)
        model->channel_scales[i] = i < at.n_keys       ? s->query_scale
                                   : i < 2 * at.n_keys ? s->key_scale
                                                       : s->value_scale;
}

static void free_model(sd_model* model) {
    sd_arena_free(&model->arena);
    sd_free(model);
}

/* Create a model without its encoder; over a block, unless it is NULL. */
static sd_status create(const sd_config* config, sd_numbers numbers, sd_shared shared,
                        const sd_memory_block* block, sd_model** out) {
    SD_NEW(sd_model, model);
    model->numbers = numbers;
    model->mixed = numbers.by_tensor != NULL;
    lay_out(model, &model->arena, config, shared);
    sd_status status = block ? sd_arena_adopt(&model->arena, *block) : sd_arena_commit(&model->arena);
    if (status == SD_OK) lay_out(model, &model->arena, config, shared);
    if (status != SD_OK) {
        free_model(model);
        return status;
    }
    model->row_slice = sd_row_slice(numbers.weights, sd_prompt_engine(model));
    model->numbers.by_tensor = NULL;
    fill_norms(model);
    fill_scales(model);
    *out = model;
    return SD_OK;
}

static sd_status check_engine(const sd_config* c, sd_numbers numbers) {
    if (numbers.prefill == SD_ENGINE_ROWS) return SD_OK;
    SD_FAIL_IF(numbers.prefill == SD_ENGINE_TILES && numbers.weights == SD_FORMAT_F32, SD_ERR_SETTING,
               "prefill is 'tiles', which needs weights in bf16, int8 or int4, not f32; expected "
               "dtype='bf16', 'int8' or 'int4', or prefill='rows'");
    SD_FAIL_IF(
        numbers.prefill == SD_ENGINE_BLAS && numbers.weights != SD_FORMAT_F32, SD_ERR_SETTING,
        "prefill is 'blas', which needs weights in f32, not %s; expected dtype='f32' or prefill='rows'",
        sd_format_names[numbers.weights]);
    if (numbers.prefill == SD_ENGINE_BLAS && c->experts.n > 0)
        return sd_fail(SD_ERR_SETTING, "prefill is 'blas', which does not support mixtures of experts");
    SD_FAIL_IF(c->features.use != SD_FEATURE_NONE, SD_ERR_SETTING,
               "prefill is '%s', which does not support models with features",
               sd_engine_names[numbers.prefill]);
    return c->encoder ? check_engine(c->encoder, numbers) : SD_OK;
}

static sd_status check_shared(const sd_config* c, sd_shared shared) {
    const sd_model* target = shared.target;
    if (c->bidirectional || (!c->shared_embedding && !c->shared_head)) return SD_OK;
    if (target == NULL)
        return sd_fail(SD_ERR_VALUE, "config: a table or head is shared, expected the target that has it");
    int width = c->shared_embedding ? sd_own_width(c) : c->d_model;
    SD_FAIL_IF(target->config.d_model != width || target->config.n_vocab != c->n_vocab ||
                   (c->shared_head && width != c->d_model),
               SD_ERR_VALUE, "config: a table or head [%d, %d] is shared, expected [%d, %d] as the target's",
               c->n_vocab, width, target->config.n_vocab, target->config.d_model);
    int n = c->shared_head ? c->n_draft_tokens : 0;
    SD_FAIL_IF((n > 0) != (shared.head_rows != NULL), SD_ERR_VALUE,
               "config: n_draft_tokens is %d, expected as many rows of the target's head", n);
    for (int i = 0; i < n; i++)
        if (shared.head_rows[i] < 0 || shared.head_rows[i] >= c->n_vocab)
            return sd_fail(SD_ERR_VALUE, "head_rows[%d] is %d, expected 0 to %d", i, (int)shared.head_rows[i],
                           c->n_vocab - 1);
    return SD_OK;
}

/* Check that all parts of each matrix, and all matrices multiplied with the same rows, need rows of one
 * type. */
static sd_status check_rows(sd_model* model) {
    const sd_config* c = &model->config;
    /* The cross-attention of all layers reads the rows of the first. */
    for (int l = 1; l < c->n_layer; l++)
        if (model->layers[l].cross_kv.rows > model->layers[0].cross_kv.rows)
            model->layers[0].cross_kv.rows = model->layers[l].cross_kv.rows;
    for (int i = 0; i < sd_tensor_count(c); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(c, i, &spec);
        const sd_destination to = sd_model_destination(model, &spec);
        if (to.matrix == NULL || to.matrix->panels == NULL) continue;
        sd_row_type row_type = to.matrix->rows;
        if (spec.role == SD_CROSS_K || spec.role == SD_CROSS_V) row_type = model->layers[0].cross_kv.rows;
        sd_format format = to.matrix->panels[to.rows.first / SD_PANEL].format;
        SD_FAIL_IF(
            !sd_rows_suit(row_type, format), SD_ERR_VALUE,
            "tensor %s: is in %s, expected a format with the row type of the tensors that share its inputs",
            spec.name, sd_format_names[format]);
    }
    return SD_OK;
}

/* blocks: as in sd_model_adopt, or NULL. */
static sd_status create_all(const sd_config* config, sd_numbers numbers, sd_shared shared,
                            const sd_memory_block* blocks, sd_model** out) {
    sd_model *model = NULL, *encoder = NULL;
    sd_status status = sd_config_check(config);
    if (status == SD_OK) status = check_engine(config, numbers);
    if (status == SD_OK) status = check_shared(config, shared);
    sd_numbers of_encoder = numbers;
    if (status == SD_OK && numbers.by_tensor) of_encoder.by_tensor += sd_tensor_count_own(config);
    if (status == SD_OK && config->encoder)
        status = create(config->encoder, of_encoder, shared, blocks ? &blocks[1] : NULL, &encoder);
    if (status == SD_OK) status = create(config, numbers, shared, blocks, &model);
    if (status != SD_OK) {
        sd_model_free(encoder);
        return status;
    }
    if (encoder) {
        model->encoder = encoder;
        model->config.encoder = &encoder->config;
        if (encoder->config.shared_embedding) encoder->token_embedding = model->token_embedding;
    }
    const sd_model* target = shared.target;
    if (config->shared_embedding) model->token_embedding = target->token_embedding;
    if (config->shared_head && shared.head_rows != NULL)
        copy_shared_head(target, shared.head_rows, model);
    else if (config->shared_head)
        model->head = target->head, model->head_bias = target->head_bias;
    if (model->mixed && (status = check_rows(model)) != SD_OK) {
        sd_model_free(model);
        return status;
    }
    *out = model;
    return SD_OK;
}

sd_status sd_model_create(const sd_config* config, sd_numbers numbers, sd_shared shared, sd_model** out) {
    return create_all(config, numbers, shared, NULL, out);
}

sd_status sd_model_adopt(const sd_config* config, sd_numbers numbers, const sd_memory_block blocks[2],
                         sd_model** out) {
    sd_status status = create_all(config, numbers, (sd_shared){0}, blocks, out);
    if (status == SD_OK) (*out)->finished = 1;
    return status;
}

int sd_model_blocks(const sd_model* model, sd_memory_block blocks[2]) {
    blocks[0] = (sd_memory_block){model->arena.base, model->arena.size};
    if (model->encoder == NULL) return 1;
    blocks[1] = (sd_memory_block){model->encoder->arena.base, model->encoder->arena.size};
    return 2;
}

uint64_t sd_model_layout(const sd_model* model) {
    uint64_t shape = model->arena.shape ^ SD_PANEL_LAYOUT;
    return model->encoder ? shape * 31 + model->encoder->arena.shape : shape;
}

void sd_model_free(sd_model* model) {
    if (model == NULL) return;
    if (model->windowed) {
        sd_free(model);
        return;
    }
    if (model->base != NULL) {
        sd_arena_free(&model->adapter->arena);
        sd_free(model->adapter);
        sd_free(model);
        return;
    }
    if (model->encoder) free_model(model->encoder);
    free_model(model);
}

size_t sd_model_bytes(const sd_model* model) {
    return model->arena.size + (model->encoder ? model->encoder->arena.size : 0) +
           (model->adapter ? model->adapter->arena.size : 0);
}

/* Feed-forward block of a layer that a tensor belongs to, if any. */
static sd_mlp* mlp_of(const sd_config* c, sd_layer* layer, const sd_tensor_spec* spec) {
    if (layer->experts == NULL || (c->experts.with_dense && spec->expert < 0)) return &layer->mlp;
    return &layer->experts[spec->expert >= 0 ? spec->expert : c->experts.shared_width > 0 ? c->experts.n : 0];
}

/* Destination of a tensor's numbers: a vector, a table, or rows of a packed matrix; for the embedding of a
 * tied model both of the latter. */
static sd_destination destination_by_role(sd_model* model, const sd_tensor_spec* spec) {
    if (spec->of_encoder) model = model->encoder;
    const sd_config* c = &model->config;
    sd_layer* to = spec->layer < 0 ? NULL : &model->layers[spec->layer];
    const sd_layer_config* own = &c->layers[to ? spec->layer : 0];
    sd_mlp* mlp = to ? mlp_of(c, to, spec) : NULL;
    const sd_rows all = {0, 1}, keys = {sd_keys_column(own), 1}, values = {sd_values_column(own), 1};
    const sd_recurrent_columns at = sd_recurrent_columns_of(&c->mixers, own->mixer);
    const sd_rows mixer_gate = {at.gate, 1}, decay = {at.rate, 1};
    const sd_rows attn_gate = {sd_gate_column(own), 1};
    const sd_rows cross_values = {sd_cross_values_column(own), 1},
                  shared_gate = {sd_shared_gate_output(c), 1};
    const sd_rows gate = {0, 2}, up = {c->gated ? SD_PANEL : 0, c->gated ? 2 : 1};
    switch (spec->role) {
#define VECTOR(at) .vector = at
#define VECTOR_ROWS(at, of) .vector = at, .rows = of
#define TABLE(of) .table = &of
#define MATRIX(of, of_rows) .matrix = &of, .rows = of_rows
#define EMBEDDING                                                                                   \
    .table = &model->token_embedding, .matrix = c->tied && !c->bidirectional ? &model->head : NULL, \
    .rows = all
#define DESTINATION_OF(role, name, rows, columns, there, destination) \
    case SD_##role: return (sd_destination){destination};
        SD_TENSORS(DESTINATION_OF)
    case SD_N_ROLES: break;
    }
    assert(!"unknown role");
    return (sd_destination){0};
}

sd_destination sd_model_destination(sd_model* model, const sd_tensor_spec* spec) {
    sd_destination to = destination_by_role(model, spec);
    to.name = spec->name;
    to.n_rows = spec->n_rows;
    to.n_cols = spec->n_cols;
    return to;
}

sd_status sd_model_set(sd_model* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                       int n_threads) {
    assert(!model->finished);
    sd_tensor_spec spec;
    int i = sd_tensor_find(&model->config, name, &spec);
    if (i < 0) return sd_fail(SD_ERR_SHAPE, "tensor %.64s: not part of a model of this configuration", name);
    const sd_destination to = sd_model_destination(model, &spec);
    if (model->is_set[i]) return sd_destination_fail_twice(&to);
    sd_status status = sd_destination_fill(&to, source, n_rows, n_cols, n_threads);
    if (status == SD_OK) model->is_set[i] = 1;
    return status;
}

sd_status sd_model_finish(sd_model* model) {
    int n = sd_tensor_count(&model->config);
    for (int i = 0; i < n; i++) {
        if (model->is_set[i]) continue;
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        const sd_destination to = sd_model_destination(model, &spec);
        return sd_destination_fail_missing(&to);
    }
    model->finished = 1;
    return SD_OK;
}

const sd_matrix* sd_model_matrix_rows(const sd_model* model, const sd_tensor_spec* spec, sd_rows* rows) {
    const sd_destination to = destination_by_role((sd_model*)model, spec);
    *rows = to.rows;
    return to.matrix;
}

const sd_matrix* sd_model_matrix(const sd_model* model, const sd_tensor_spec* spec) {
    sd_rows rows;
    return sd_model_matrix_rows(model, spec, &rows);
}

sd_status sd_model_rows(const sd_model* model, const char* name, int first, int n, float* out) {
    sd_tensor_spec spec;
    sd_destination at = {0};
    if (sd_tensor_find(&model->config, name, &spec) >= 0) at = sd_model_destination((sd_model*)model, &spec);
    if (at.matrix == NULL) return sd_fail(SD_ERR_VALUE, "tensor %.64s: not a matrix of this model", name);
    for (int r = first, n_here; r < first + n; r += n_here, out += (ptrdiff_t)n_here * spec.n_cols) {
        int lane = r % SD_PANEL, row = at.rows.first + (r - lane) * at.rows.step + lane;
        n_here = SD_PANEL - lane < first + n - r ? SD_PANEL - lane : first + n - r;
        sd_matrix_rows(at.matrix, row, n_here, out);
        SD_TRY(sd_interrupted());
    }
    return SD_OK;
}
