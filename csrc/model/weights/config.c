#include "config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "matrix.h"

/* Far above any model; products of two fit 64 bits. */
#define LARGEST (1 << 26)

/* Refuse a configuration if a condition holds. */
#define REFUSE_IF(wrong, ...)                                            \
    do {                                                                 \
        if (wrong) return sd_fail(SD_ERR_VALUE, "config: " __VA_ARGS__); \
    } while (0)

static sd_status check_sizes(const sd_config* c) {
    SD_TRY(sd_check_range("config: n_vocab", c->n_vocab, 1, LARGEST));
    SD_TRY(sd_check_range("config: n_ctx", c->n_ctx, 1, LARGEST));
    SD_TRY(sd_check_range("config: n_layer", c->n_layer, 1, LARGEST));
    SD_TRY(sd_check_range("config: d_model", c->d_model, 1, LARGEST));
    return sd_check_range("config: d_per_layer", c->d_per_layer, 0, LARGEST / c->n_layer);
}

static sd_status check_heads(const sd_config* c) {
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* layer = &c->layers[i];
        const struct {
            const char* name;
            int value;
        } sizes[] = {{"n_head", layer->n_head}, {"n_kv_head", layer->n_kv_head}, {"d_head", layer->d_head}};
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
            REFUSE_IF(sizes[s].value < 1 || sizes[s].value > LARGEST,
                      "%s is %d in layer %d, expected 1 to %d", sizes[s].name, sizes[s].value, i, LARGEST);
        REFUSE_IF(layer->d_ff < 0 || layer->d_ff > LARGEST, "d_ff is %d in layer %d, expected 0 to %d",
                  layer->d_ff, i, LARGEST);
        REFUSE_IF(layer->n_head % layer->n_kv_head != 0,
                  "n_head is %d in layer %d, expected a multiple of n_kv_head = %d", layer->n_head, i,
                  layer->n_kv_head);
        REFUSE_IF((long)layer->n_head * layer->d_head > LARGEST,
                  "n_head * d_head is %ld in layer %d, expected at most %d",
                  (long)layer->n_head * layer->d_head, i, LARGEST);
        int shares_biases = c->alibi != NULL || (c->n_buckets > 0 && !c->bias_by_layer);
        REFUSE_IF(shares_biases && layer->n_head != c->layers[0].n_head,
                  "n_head is %d in layer %d, expected %d as in layer 0: %s is for all layers", layer->n_head,
                  i, c->layers[0].n_head, c->alibi ? "alibi" : "relative_buckets");
    }
    return SD_OK;
}

static sd_status check_numbers(const sd_config* c) {
    const struct {
        const char* name;
        float value;
        int may_be_zero;
    } numbers[] = {
        {"embedding_scale", c->embedding_scale, 0},   {"residual_scale", c->residual_scale, 0},
        {"logit_scale", c->logit_scale, 0},           {"logit_softcap", c->logit_softcap, 1},
        {"attn_softcap", c->attn_softcap, 1},         {"qkv_limit", c->qkv_limit, 1},
        {"activation_limit", c->activation_limit, 1}, {"attn_out_scale", c->attn_out_scale, 0},
        {"mixer_out_scale", c->mixer_out_scale, 0},   {"mlp_down_scale", c->mlp_down_scale, 0},
        {"mlp_gate_scale", c->mlp_gate_scale, 0},
    };
    REFUSE_IF(!(c->norm_eps >= 0.0f && c->norm_eps < 1.0f), "norm_eps is %g, expected 0 to 1",
              (double)c->norm_eps);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        float value = numbers[i].value;
        REFUSE_IF(!(value > 0.0f || (value == 0.0f && numbers[i].may_be_zero)) || !isfinite(value),
                  "%s is %g, expected a finite number %s 0", numbers[i].name, (double)value,
                  numbers[i].may_be_zero ? "from" : "above");
    }
    REFUSE_IF(!(c->query_growth >= 0.0 && isfinite(c->query_growth)) ||
                  (c->query_growth > 0.0 && c->query_span < 1),
              "query_growth is %g over spans of %d, expected 0 or more, over spans of at least 1",
              c->query_growth, c->query_span);
    for (int h = 0; c->alibi != NULL && h < c->layers[0].n_head; h++)
        REFUSE_IF(!isfinite(c->alibi[h]), "alibi[%d] is %g, expected a finite number", h,
                  (double)c->alibi[h]);
    for (int b = 0; b < c->n_buckets; b++) {
        int least = b == 0 ? 0 : c->bucket_starts[b - 1] + 1;
        REFUSE_IF(c->bucket_starts[b] < least || (b == 0 && c->bucket_starts[b] > 0),
                  "relative_buckets[%d] is %d, expected 0 and then ascending", b, c->bucket_starts[b]);
    }
    return SD_OK;
}

static sd_status check_rotations(const sd_config* c) {
    int largest = sd_widest(c, sd_head_size);
    for (int r = 0; r < c->n_rotations; r++) {
        const sd_rotation* rotation = &c->rotations[r];
        REFUSE_IF(rotation->n_freq > largest / 2, "inv_freq has %d entries, expected at most d_head / 2 = %d",
                  rotation->n_freq, largest / 2);
        for (int i = 0; i < rotation->n_freq; i++)
            REFUSE_IF(!(rotation->inv_freq[i] >= 0.0 && rotation->inv_freq[i] <= 1e6),
                      "inv_freq[%d] is %g, expected a frequency of 0 or more", i, rotation->inv_freq[i]);
        REFUSE_IF(!(rotation->factor > 0.0 && rotation->factor <= 1e6),
                  "rotary_factor is %g, expected a number above 0", rotation->factor);
    }
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* layer = &c->layers[i];
        REFUSE_IF(layer->window < 0, "sliding_window is %d, expected 0 or more", layer->window);
        REFUSE_IF(layer->rotation < -1 || layer->rotation >= c->n_rotations,
                  "rotations[%d] is %d, expected -1 to %d", i, layer->rotation, c->n_rotations - 1);
        int n_freq = layer->rotation < 0 ? 0 : c->rotations[layer->rotation].n_freq;
        REFUSE_IF(n_freq > layer->d_head / 2,
                  "rotations[%d] is %d, which has %d frequencies, expected at most d_head / 2 = "
                  "%d of the layer",
                  i, layer->rotation, n_freq, layer->d_head / 2);
        REFUSE_IF(!(layer->score_scale > 0.0f && isfinite(layer->score_scale)),
                  "score_scales[%d] is %g, expected a number above 0", i, (double)layer->score_scale);
    }
    return SD_OK;
}

/* Layers times experts: far above any model, and few enough to list their tensors. */
#define MOST_EXPERTS (1 << 17)

static sd_status check_groups(const sd_experts* e) {
    REFUSE_IF(e->correction && e->router == SD_ROUTER_SOFTMAX_CHOSEN,
              "router is \"softmax_chosen\", expected no router_correction with it");
    SD_TRY(sd_check_range("config: n_expert_groups", e->n_groups, 0, SD_MOST_GROUPS));
    if (e->n_groups == 0) return SD_OK;
    REFUSE_IF(!e->correction, "n_expert_groups is %d, expected a router_correction with it", e->n_groups);
    REFUSE_IF(e->n % e->n_groups || e->n / e->n_groups < 2,
              "n_expert_groups is %d, expected a divisor of n_experts, %d, into groups of 2 or more",
              e->n_groups, e->n);
    SD_TRY(sd_check_range("config: n_groups_per_token", e->n_chosen_groups, 1, e->n_groups));
    REFUSE_IF(e->n_chosen > e->n / e->n_groups * e->n_chosen_groups,
              "n_experts_per_token is %d, expected at most the experts of %d groups", e->n_chosen,
              e->n_chosen_groups);
    return SD_OK;
}

static sd_status check_experts(const sd_config* c) {
    const sd_experts* e = &c->experts;
    SD_TRY(sd_check_range("config: n_experts", e->n, 0, MOST_EXPERTS / c->n_layer));
    for (int i = 0; i < c->n_layer; i++)
        REFUSE_IF(c->layers[i].mixture && e->n == 0, "mixtures[%d] is set, expected n_experts with it", i);
    REFUSE_IF(e->n == 0 && e->with_dense, "dense_with_experts is set, expected n_experts with it");
    if (e->n == 0) return SD_OK;
    SD_TRY(sd_check_range("config: n_experts_per_token", e->n_chosen, 1, e->n));
    SD_TRY(sd_check_range("config: d_expert", e->width, 1, LARGEST));
    SD_TRY(sd_check_range("config: d_shared_expert", e->shared_width, 0, LARGEST));
    REFUSE_IF(!(e->scale > 0.0f && isfinite(e->scale)), "routed_scale is %g, expected a number above 0",
              (double)e->scale);
    REFUSE_IF(!(e->eps >= 0.0f && isfinite(e->eps)), "router_eps is %g, expected a number of at least 0",
              (double)e->eps);
    SD_TRY(check_groups(e));
    REFUSE_IF(e->shared_gate && e->shared_width == 0,
              "shared_expert_gate is set, expected a d_shared_expert with it");
    REFUSE_IF(e->with_dense && (e->shared_width > 0 || c->norm != SD_NORM_RMS || !c->norm_weight ||
                                c->norm_position != SD_NORM_BOTH),
              "dense_with_experts is set, expected RMSNorms with weights, norm_position \"both\", and no "
              "d_shared_expert with it");
    REFUSE_IF(c->parallel == SD_PARALLEL_TWO_NORMS, "parallel is \"two_norms\", expected no experts with it");
    return SD_OK;
}

static sd_status check_switches(const sd_config* c) {
    REFUSE_IF(c->norm == SD_NORM_RMS && c->norm_bias,
              "norm_bias is set, expected a norm of type \"layer\" with it");
    REFUSE_IF(c->parallel != SD_PARALLEL_NO && c->norm_position != SD_NORM_BEFORE,
              "parallel is set, expected norm_position \"before\" with it");
    REFUSE_IF(c->qk_norm_rotated && c->qk_norm != SD_QK_NORM_HEAD && c->qk_norm != SD_QK_NORM_EACH_HEAD,
              "qk_norm_rotated is set, expected qk_norm \"head\" or \"each_head\" with it");
    for (int i = 0; i < c->n_layer; i++)
        REFUSE_IF(c->layers[i].values_from_keys && (c->attn_gate != SD_ATTN_GATE_NONE ||
                                                    c->qk_norm == SD_QK_NORM_WHOLE || c->layers[i].shares_kv),
                  "values_from_keys[%d] is set, expected no attn_gate, no qk_norm \"whole\" and keys of its "
                  "own with it",
                  i);
    REFUSE_IF(c->activation == SD_ACT_SILU_CLAMPED && !(c->gated && c->activation_limit > 0.0f),
              "activation is \"silu_clamped\", expected gated and an activation_limit");
    REFUSE_IF(c->activation == SD_ACT_XIELU && (c->gated || c->experts.n > 0),
              "activation is \"xielu\", expected no gate and no experts with it");
    REFUSE_IF(c->mlp_gate_scale != 1.0f && !c->gated, "mlp_gate_scale is set, expected gated with it");
    REFUSE_IF((c->mlp_gate_scale != 1.0f || c->mlp_down_scale != 1.0f) && c->experts.n > 0,
              "mlp_gate_scale or mlp_down_scale is set, expected no experts with it");
    REFUSE_IF(c->attn_gate_softplus && c->attn_gate == SD_ATTN_GATE_NONE,
              "attn_gate_softplus is set, expected an attn_gate with it");
    REFUSE_IF(c->shared_embedding && !c->bidirectional && c->features.use == SD_FEATURE_NONE,
              "shared_embedding is set, expected it in an encoder or a model with features");
    REFUSE_IF(c->shared_head && c->features.use == SD_FEATURE_NONE,
              "shared_head is set, expected it in a model with features");
    REFUSE_IF(c->bias_by_layer && c->n_buckets == 0,
              "relative_bias_by_layer is set, expected relative_buckets with it");
    return SD_OK;
}

static sd_status check_features(const sd_config* c) {
    const sd_features* f = &c->features;
    if (f->use == SD_FEATURE_NONE) {
        REFUSE_IF(c->n_draft_tokens != 0, "n_draft_tokens is %d, expected 0 in a model without features",
                  c->n_draft_tokens);
        return SD_OK;
    }
    for (int i = 0; i < c->n_layer; i++)
        REFUSE_IF(c->layers[i].reads_token != (i == 0 && f->use == SD_FEATURE_ASIDE),
                  "layer %d reads tokens, expected only the first, with features", i);
    REFUSE_IF(f->width < 1 || f->width > LARGEST ||
                  (f->use == SD_FEATURE_JOINED && !f->output && f->width != c->d_model),
              "feature_width is %d, expected 1 to %d, d_model if joined without feature_output", f->width,
              LARGEST);
    REFUSE_IF(f->output && (f->use != SD_FEATURE_JOINED || f->norms || c->tied || !c->output_norm),
              "feature_output is set, expected joined features without norms, an output_norm, and a head "
              "apart from the table with it");
    REFUSE_IF(f->n_pieces < 0 || (f->n_pieces > 0 && f->width % f->n_pieces != 0) ||
                  (f->n_pieces > 0 && f->use == SD_FEATURE_JOINED),
              "feature_pieces is %d, expected a divisor of feature_width = %d, 0 if joined", f->n_pieces,
              f->width);
    REFUSE_IF(c->n_draft_tokens < 0 || c->n_draft_tokens > c->n_vocab,
              "n_draft_tokens is %d, expected 0 to n_vocab = %d", c->n_draft_tokens, c->n_vocab);
    REFUSE_IF(c->n_draft_tokens > 0 && c->tied, "n_draft_tokens is %d, expected a head apart from the table",
              c->n_draft_tokens);
    REFUSE_IF(c->tied && (c->shared_head || c->shared_embedding),
              "tied is set, expected no shared head or embedding with it");
    REFUSE_IF(c->norm != SD_NORM_RMS || !sd_norms_input(c) || c->parallel != SD_PARALLEL_NO ||
                  !c->norm_weight || c->position == SD_POSITION_LEARNED || c->embedding_norm ||
                  c->bidirectional || c->encoder != NULL,
              "features are read, expected RMSNorms with weights before each half of a layer, one "
              "half after the other, no learned positions, no norm of embeddings, no encoder");
    return SD_OK;
}

/* Check a draft model's use of its target's keys and values, and clusters of its head. */
static sd_status check_draft(const sd_config* c) {
    int joined = c->features.use == SD_FEATURE_JOINED;
    REFUSE_IF(c->borrows_kv && (!joined || c->alibi != NULL || c->n_buckets > 0),
              "borrows_kv is set, expected joined features and no biases by distance with it");
    for (int i = 0; i < c->n_layer && c->borrows_kv; i++)
        REFUSE_IF(c->layers[i].kv_layer < 0, "kv_layers[%d] is %d, expected a layer of the target", i,
                  c->layers[i].kv_layer);
    SD_TRY(sd_check_range("config: n_clusters", c->n_clusters, 0, LARGEST));
    if (c->n_clusters == 0) return SD_OK;
    REFUSE_IF(sd_head_rows(c) % ((long)c->n_clusters * SD_PANEL) != 0,
              "n_clusters is %d, expected clusters of a multiple of %d of the head's %d rows", c->n_clusters,
              SD_PANEL, sd_head_rows(c));
    SD_TRY(sd_check_range("config: n_chosen_clusters", c->n_chosen_clusters, 1, c->n_clusters));
    REFUSE_IF(!joined || c->tied || c->shared_head || c->head_bias || !c->output_norm ||
                  c->logit_scale != 1.0f || c->logit_softcap > 0.0f,
              "n_clusters is %d, expected joined features, an output_norm, and a head of its own without "
              "biases, scale or soft cap with it",
              c->n_clusters);
    return SD_OK;
}

/* Check shared keys and values, and per-layer embeddings, which only decoders have. */
static sd_status check_decoder_only(const sd_config* c) {
    int shares = 0;
    for (int i = 0; i < c->n_layer && !c->borrows_kv; i++) {
        const sd_layer_config* layer = &c->layers[i];
        if (!layer->shares_kv) continue;
        REFUSE_IF(layer->kv_layer < 0 || layer->kv_layer >= i, "kv_layers[%d] is %d, expected 0 to %d", i,
                  layer->kv_layer, i);
        const sd_layer_config* of = &c->layers[layer->kv_layer];
        REFUSE_IF(!layer->attends || !sd_has_own_keys(of) || of->n_kv_head != layer->n_kv_head ||
                      of->d_head != layer->d_head || of->window != layer->window,
                  "kv_layers[%d] is %d, expected a layer with keys and values of its own, and with the KV "
                  "heads, dimensions and window of layer %d",
                  i, layer->kv_layer, i);
        shares = 1;
    }
    REFUSE_IF((shares || c->d_per_layer > 0) && (c->bidirectional || c->encoder != NULL),
              "kv_layers or d_per_layer is set, expected no encoder with it");
    REFUSE_IF(c->d_per_layer > 0 && (c->norm != SD_NORM_RMS || !c->norm_weight || !sd_norms_output(c) ||
                                     c->activation == SD_ACT_SILU_CLAMPED || c->activation == SD_ACT_XIELU ||
                                     c->features.use != SD_FEATURE_NONE),
              "d_per_layer is %d, expected RMSNorms with weights, norms of outputs, an activation without "
              "parameters, and no features with it",
              c->d_per_layer);
    return SD_OK;
}

static sd_status check_bidirectional(const sd_config* c) {
    REFUSE_IF(c->encoder != NULL, "encoder is set, expected none in an encoder");
    REFUSE_IF(c->alibi != NULL, "alibi is set, expected none in an encoder");
    for (int i = 0; i < c->n_layer; i++)
        REFUSE_IF(c->layers[i].window > 0, "layer %d has a window of %d, expected none in an encoder", i,
                  c->layers[i].window);
    return SD_OK;
}

static sd_status check_encoder(const sd_config* c) {
    const sd_config* e = c->encoder;
    sd_status status = sd_config_check(e);
    if (status != SD_OK) {
        char message[SD_MESSAGE_SIZE];
        const char* said = sd_message();
        size_t prefix = strlen("config: ");
        snprintf(message, sizeof message, "%s", strncmp(said, "config: ", prefix) ? said : said + prefix);
        return sd_fail(status, "config: encoder: %s", message);
    }
    REFUSE_IF(c->parallel != SD_PARALLEL_NO, "parallel is set, expected no encoder with it");
    REFUSE_IF(e->shared_embedding && (e->d_model != c->d_model || e->n_vocab != c->n_vocab),
              "encoder: shared_embedding is set for a table [%d, %d], expected [%d, %d] as the decoder's",
              e->n_vocab, e->d_model, c->n_vocab, c->d_model);
    return SD_OK;
}

sd_recurrent_columns sd_recurrent_columns_of(const sd_mixer_sizes* s, sd_mixer mixer) {
    sd_recurrent_columns at = {.n_keys = s->n_key_head * s->d_key, .n_values = s->n_value_head * s->d_value};
    at.n_channels = 2 * at.n_keys + at.n_values;
    at.n_units = s->n_value_head * sd_matrix_panels(s->d_value);
    at.gate = sd_whole_panels(at.n_channels);
    at.n_outputs = at.gate + at.n_values;
    at.decay = sd_whole_panels(s->n_value_head);
    at.rate = mixer == SD_MIXER_DELTA ? at.decay : 0;
    at.n_rates = at.rate + s->n_value_head;
    return at;
}

int sd_mixer_outputs(const sd_config* c, const sd_layer_config* layer) {
    if (sd_has_state(layer)) return sd_recurrent_columns_of(&c->mixers, layer->mixer).n_outputs;
    return layer->mixer == SD_MIXER_CONVOLUTION ? 3 * c->d_model : 0;
}

int sd_mixer_channels(const sd_config* c, const sd_layer_config* layer) {
    if (sd_has_state(layer)) return sd_recurrent_columns_of(&c->mixers, layer->mixer).n_channels;
    return layer->mixer == SD_MIXER_CONVOLUTION ? c->d_model : 0;
}

int sd_mixer_width(const sd_config* c, const sd_layer_config* layer) {
    if (sd_has_state(layer)) return sd_recurrent_columns_of(&c->mixers, layer->mixer).n_values;
    return layer->mixer == SD_MIXER_CONVOLUTION ? c->d_model : 0;
}

/* Limit sizes that products are computed of, whether layers use them or not. */
static sd_status check_mixer_products(const sd_mixer_sizes* s) {
    const int sizes[2][2] = {{s->n_key_head, s->d_key}, {s->n_value_head, s->d_value}};
    for (int i = 0; i < 2; i++) {
        long width = (long)sizes[i][0] * sizes[i][1];
        REFUSE_IF(sizes[i][0] < 0 || sizes[i][1] < 0 || width > LARGEST,
                  "n_mixer_%s_head * d_mixer_%s is %ld, expected at most %d", i ? "value" : "key",
                  i ? "value" : "key", width, LARGEST);
    }
    return SD_OK;
}

static sd_status check_recurrence(const sd_mixer_sizes* s) {
    SD_TRY(sd_check_range("config: n_mixer_key_head", s->n_key_head, 1, LARGEST));
    SD_TRY(sd_check_range("config: n_mixer_value_head", s->n_value_head, 1, LARGEST));
    SD_TRY(sd_check_range("config: d_mixer_key", s->d_key, 1, LARGEST));
    SD_TRY(sd_check_range("config: d_mixer_value", s->d_value, 1, LARGEST));
    REFUSE_IF(s->n_value_head % s->n_key_head != 0,
              "n_mixer_value_head is %d, expected a multiple of n_mixer_key_head, %d", s->n_value_head,
              s->n_key_head);
    const float scales[] = {s->query_scale, s->key_scale, s->value_scale, s->gate_scale, s->decay_scale};
    for (int i = 0; s->scaled && i < 5; i++)
        REFUSE_IF(!(scales[i] > 0.0f && isfinite(scales[i])),
                  "mixer_scales[%d] is %g, expected a number above 0", i, (double)scales[i]);
    int n_values = s->n_value_head * s->d_value;
    REFUSE_IF(s->n_norm_groups < 0 || (s->n_norm_groups > 0 && n_values % s->n_norm_groups != 0),
              "n_mixer_norm_groups is %d, expected 0 or a divisor of n_mixer_value_head * d_mixer_value, %d",
              s->n_norm_groups, n_values);
    return SD_OK;
}

static sd_status check_mixers(const sd_config* c) {
    SD_TRY(check_mixer_products(&c->mixers));
    if (!sd_any_has_mixer(c)) return SD_OK;
    if (sd_any_has_state(c)) SD_TRY(check_recurrence(&c->mixers));
    return sd_check_range("config: conv_width", c->mixers.conv_width, 1, SD_MOST_CONV_WIDTH);
}

/* Check the halves that layers have. */
static sd_status check_halves(const sd_config* c) {
    int usual = 1; /* all layers have attention, no mixer, and a feed-forward block */
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* layer = &c->layers[i];
        int mixes = layer->mixer != SD_MIXER_NONE, has_second = sd_has_second_half(layer);
        REFUSE_IF(!sd_has_first_half(layer) && !has_second,
                  "d_ff is 0 in layer %d, expected 1 or more without a mixer and attention", i);
        REFUSE_IF(layer->mixture && c->experts.with_dense && layer->d_ff == 0,
                  "d_ff is 0 in layer %d, expected 1 or more with dense_with_experts", i);
        REFUSE_IF(layer->attends && mixes && c->norm_position != SD_NORM_BEFORE,
                  "mixers[%d] is a mixer next to attention, expected norm_position \"before\" with it", i);
        usual = usual && layer->attends && !mixes && has_second;
    }
    REFUSE_IF(!usual && (c->parallel != SD_PARALLEL_NO || c->features.use != SD_FEATURE_NONE ||
                         c->bidirectional || c->encoder != NULL),
              "mixers or d_ffs has layers without attention or without a feed-forward block, expected no "
              "parallel halves, features or encoder");
    return SD_OK;
}

sd_status sd_config_check(const sd_config* c) {
    SD_TRY(check_sizes(c));
    SD_TRY(check_heads(c));
    SD_TRY(check_numbers(c));
    SD_TRY(check_rotations(c));
    SD_TRY(check_experts(c));
    SD_TRY(check_switches(c));
    SD_TRY(check_features(c));
    SD_TRY(check_draft(c));
    SD_TRY(check_mixers(c));
    SD_TRY(check_halves(c));
    SD_TRY(check_decoder_only(c));
    if (c->bidirectional) SD_TRY(check_bidirectional(c));
    return c->encoder ? check_encoder(c) : SD_OK;
}
