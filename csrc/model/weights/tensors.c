#include "tensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_OF(role, name, ...) [SD_##role] = name,
static const char* const names[SD_N_ROLES] = {SD_TENSORS(NAME_OF)};

/* Shape of a role's tensors in a layer, or outside the layers, which then all have as many heads as `layer`;
 * 0 if there are none, which does not depend on the heads. */
static int shape_of(const sd_config* c, const sd_layer_config* layer, sd_tensor_role role, int* n_rows,
                    int* n_cols) {
    const sd_experts* e = &c->experts;
    const sd_features* f = &c->features;
    int d = c->d_model, d_q = sd_query_width(layer), d_kv = sd_key_width(layer);
    int inputs = sd_layer_inputs(c, layer), of_head = c->qk_norm == SD_QK_NORM_HEAD;
    int crosses = c->encoder != NULL, d_source = crosses ? c->encoder->d_model : 0;
    int input = sd_norms_input(c), post = sd_has_post_norm(c), mixture = layer->mixture,
        with_dense = mixture && e->with_dense, d_per_layer = c->d_per_layer;
    int first = sd_has_first_half(layer), second = sd_has_second_half(layer),
        dense = mixture ? with_dense : second;
    int attends = layer->attends, mixes = layer->mixer != SD_MIXER_NONE, recurs = sd_has_state(layer),
        delta = layer->mixer == SD_MIXER_DELTA, mamba2 = layer->mixer == SD_MIXER_MAMBA2,
        biased = mixes && !recurs && c->mixers.bias, stores = sd_has_own_keys(layer);
    int n_value_head = c->mixers.n_value_head, mixer_outputs = sd_mixer_outputs(c, layer),
        channels = sd_mixer_channels(c, layer), mixer_width = sd_mixer_width(c, layer);
    int learned = c->position == SD_POSITION_LEARNED, buckets = sd_bucket_rows(c);
    int own_head = !c->bidirectional && !c->shared_head, features = f->use != SD_FEATURE_NONE;
    int normed_features = f->use == SD_FEATURE_ASIDE || (features && f->norms);
    switch (role) {
#define SHAPE_OF(role, name, rows, columns, there, destination) \
    case SD_##role: *n_rows = rows, *n_cols = columns; return (there) != 0;
        SD_TENSORS(SHAPE_OF)
    case SD_N_ROLES: break;
    }
    return 0;
}

static int count_roles(const sd_config* config, sd_layer_config layer, int first, int end) {
    int n = 0, rows, cols;
    for (int role = first; role < end; role++) n += shape_of(config, &layer, role, &rows, &cols);
    return n;
}

/* What decides, next to the mixer, which tensors a layer of a configuration has, as bits: experts, a norm of
 * the first half's input, values that are keys, keys and values of another layer, attention, a dense
 * block. */
#define N_VARIANTS 64
static int variant_of(const sd_layer_config* layer) {
    return (layer->mixture != 0) | (layer->input_norm != 0) << 1 | (layer->values_from_keys != 0) << 2 |
           (layer->shares_kv != 0) << 3 | (layer->attends != 0) << 4 | (layer->d_ff > 0) << 5;
}

/* Number of tensors outside the layers; in a layer [mixer][variant], 0: there is no such layer. Each expert
 * has per_expert. A layer's tensors are in the order of the roles, expert by expert. */
typedef struct counts {
    int outside, per_expert, per_layer[SD_N_MIXERS][N_VARIANTS];
} counts;

static counts count_tensors(const sd_config* c) {
    sd_layer_config layer = {.mixture = 1};
    counts n = {.per_expert = count_roles(c, layer, SD_EXPERT_GATE, SD_N_ROLES)};
    layer.mixture = 0;
    n.outside = count_roles(c, layer, 0, SD_ATTN_NORM);
    for (int i = 0; i < c->n_layer; i++) {
        const sd_layer_config* own = &c->layers[i];
        int* of_layer = &n.per_layer[own->mixer][variant_of(own)];
        if (*of_layer == 0)
            *of_layer = count_roles(c, *own, SD_ATTN_NORM, SD_EXPERT_GATE) +
                        (own->mixture ? c->experts.n * n.per_expert : 0);
    }
    return n;
}

static int count_of(const counts* n, const sd_layer_config* layer) {
    return n->per_layer[layer->mixer][variant_of(layer)];
}

static int layer_start(const sd_config* c, const counts* n, int layer) {
    int start = n->outside;
    for (int i = 0; i < layer; i++) start += count_of(n, &c->layers[i]);
    return start;
}

/* Without those of the encoder. */
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

/* Parse "PREFIXnumber." at *name and move *name past it; -1 if it does not match, or the number is not below
 * `end`. */
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
            return strcmp(spec->name, name) == 0 ? index : -1; /* "layers.01" is not a name */
        }
        index++;
    }
    return -1;
}
