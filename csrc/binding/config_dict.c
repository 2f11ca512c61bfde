/* Convert the canonical configuration, a dict, to the core's. */
#include <math.h>
#include <string.h>

#include "convert.h"

/* Most layers, heads and buckets to allocate arrays for; the core rejects more. */
#define LARGEST (1 << 26)

/* A borrowed value: the dict is private (sd_config_from), so it stays. NULL without an exception if absent or
 * None. */
static PyObject* optional(PyObject* dict, const char* name) {
    PyObject* key = PyUnicode_FromString(name);
    PyObject* value = key ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    return value == Py_None ? NULL : value;
}

static int int_of(PyObject* value, const char* name, int* out) {
    long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Format(PyExc_ValueError, "config: %s is %R, expected an integer", name, value);
        return -1;
    }
    if (number < INT32_MIN || number > INT32_MAX)
        return sd_set_error(PyExc_ValueError, "config: %s is %ld, expected a smaller number", name, number);
    *out = (int)number;
    return 0;
}

/* Index of a string field among `choices` (ended by NULL). */
static int choice_of(PyObject* value, const char* name, const char* const* choices, int* out) {
    const char* text = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
    for (int i = 0; text != NULL && choices[i] != NULL; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
    PyErr_Clear();
    PyObject* listed = PyUnicode_FromString(choices[0]);
    for (int i = 1; listed != NULL && choices[i] != NULL; i++)
        Py_SETREF(listed, PyUnicode_FromFormat("%U, %s", listed, choices[i]));
    if (listed != NULL)
        PyErr_Format(PyExc_ValueError, "config: %s is %R, expected one of %U", name, value, listed);
    Py_XDECREF(listed);
    return -1;
}

/* A field of an sd_config with one value, and whether it is required; an absent one stays unchanged. */
typedef struct field {
    const char* name;
    enum { INT, FLAG, FLOAT, REAL, CHOICE } type;
    int required;
    size_t offset;
    const char* choices[SD_N_ACTIVATIONS + 1]; /* of a CHOICE, ended by NULL */
} field;

/* clang-format off */
#define AT(member) offsetof(sd_config, member)
static const field FIELDS[] = {
    {"n_vocab", INT, 1, AT(n_vocab), {0}}, {"n_ctx", INT, 1, AT(n_ctx), {0}},
    {"n_layer", INT, 1, AT(n_layer), {0}}, {"d_model", INT, 1, AT(d_model), {0}},
    {"d_per_layer", INT, 0, AT(d_per_layer), {0}}, {"gated", FLAG, 1, AT(gated), {0}},
    {"tied", FLAG, 1, AT(tied), {0}},
    {"qkv_bias", FLAG, 1, AT(qkv_bias), {0}}, {"out_bias", FLAG, 1, AT(out_bias), {0}},
    {"mlp_bias", FLAG, 1, AT(mlp_bias), {0}}, {"norm_eps", FLOAT, 1, AT(norm_eps), {0}},
    {"norm_weight", FLAG, 0, AT(norm_weight), {0}}, {"norm_bias", FLAG, 0, AT(norm_bias), {0}},
    {"qk_norm_rotated", FLAG, 0, AT(qk_norm_rotated), {0}}, {"v_norm", FLAG, 0, AT(v_norm), {0}},
    {"layer_scale", FLAG, 0, AT(layer_scale), {0}},
    {"head_bias", FLAG, 0, AT(head_bias), {0}},
    {"embedding_norm", FLAG, 0, AT(embedding_norm), {0}}, {"attn_sinks", FLAG, 0, AT(attn_sinks), {0}},
    {"output_norm", FLAG, 0, AT(output_norm), {0}},
    {"relative_bias_by_layer", FLAG, 0, AT(bias_by_layer), {0}},
    {"shared_embedding", FLAG, 0, AT(shared_embedding), {0}},
    {"shared_head", FLAG, 0, AT(shared_head), {0}}, {"embedding_scale", FLOAT, 0, AT(embedding_scale), {0}},
    {"residual_scale", FLOAT, 0, AT(residual_scale), {0}},
    {"attn_out_scale", FLOAT, 0, AT(attn_out_scale), {0}},
    {"mixer_out_scale", FLOAT, 0, AT(mixer_out_scale), {0}},
    {"mlp_down_scale", FLOAT, 0, AT(mlp_down_scale), {0}},
    {"mlp_gate_scale", FLOAT, 0, AT(mlp_gate_scale), {0}}, {"logit_scale", FLOAT, 0, AT(logit_scale), {0}},
    {"logit_softcap", FLOAT, 0, AT(logit_softcap), {0}}, {"attn_softcap", FLOAT, 0, AT(attn_softcap), {0}},
    {"qkv_limit", FLOAT, 0, AT(qkv_limit), {0}}, {"activation_limit", FLOAT, 0, AT(activation_limit), {0}},
    {"query_growth", REAL, 0, AT(query_growth), {0}}, {"query_span", INT, 0, AT(query_span), {0}},
    {"feature_width", INT, 0, AT(features.width), {0}}, {"feature_bias", FLAG, 0, AT(features.bias), {0}},
    {"feature_output", FLAG, 0, AT(features.output), {0}}, {"borrows_kv", FLAG, 0, AT(borrows_kv), {0}},
    {"n_clusters", INT, 0, AT(n_clusters), {0}},
    {"n_chosen_clusters", INT, 0, AT(n_chosen_clusters), {0}},
    {"feature_norms", FLAG, 0, AT(features.norms), {0}},
    {"feature_pieces", INT, 0, AT(features.n_pieces), {0}},
    {"feature_normed_stream", FLAG, 0, AT(features.normed_stream), {0}},
    {"n_draft_tokens", INT, 0, AT(n_draft_tokens), {0}}, {"n_experts", INT, 0, AT(experts.n), {0}},
    {"n_experts_per_token", INT, 0, AT(experts.n_chosen), {0}},
    {"d_expert", INT, 0, AT(experts.width), {0}},
    {"d_shared_expert", INT, 0, AT(experts.shared_width), {0}},
    {"shared_expert_gate", FLAG, 0, AT(experts.shared_gate), {0}},
    {"router_bias", FLAG, 0, AT(experts.router_bias), {0}},
    {"router_correction", FLAG, 0, AT(experts.correction), {0}},
    {"n_expert_groups", INT, 0, AT(experts.n_groups), {0}},
    {"n_groups_per_token", INT, 0, AT(experts.n_chosen_groups), {0}},
    {"router_eps", FLOAT, 0, AT(experts.eps), {0}},
    {"router_renormalize", FLAG, 0, AT(experts.renormalize), {0}},
    {"routed_scale", FLOAT, 0, AT(experts.scale), {0}},
    {"dense_with_experts", FLAG, 0, AT(experts.with_dense), {0}},
    {"conv_width", INT, 0, AT(mixers.conv_width), {0}}, {"conv_bias", FLAG, 0, AT(mixers.conv_bias), {0}},
    {"mixer_bias", FLAG, 0, AT(mixers.bias), {0}},
    {"n_mixer_key_head", INT, 0, AT(mixers.n_key_head), {0}},
    {"mixer_grouped", FLAG, 0, AT(mixers.grouped), {0}},
    {"n_mixer_value_head", INT, 0, AT(mixers.n_value_head), {0}},
    {"d_mixer_key", INT, 0, AT(mixers.d_key), {0}}, {"d_mixer_value", INT, 0, AT(mixers.d_value), {0}},
    {"attn_gate_softplus", FLAG, 0, AT(attn_gate_softplus), {0}},
    {"n_mixer_norm_groups", INT, 0, AT(mixers.n_norm_groups), {0}},
    {"mixer_norm_first", FLAG, 0, AT(mixers.norm_first), {0}},
    {"norm", CHOICE, 1, AT(norm), {"rms", "layer"}},
    {"position", CHOICE, 1, AT(position), {"rotary", "learned", "none"}},
    {"activation", CHOICE, 1, AT(activation),
     {"silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "silu_clamped"}},
    {"norm_position", CHOICE, 0, AT(norm_position), {"before", "after", "both", "residual"}},
    {"qk_norm", CHOICE, 0, AT(qk_norm), {"none", "head", "each_head", "whole"}},
    {"attn_gate", CHOICE, 0, AT(attn_gate), {"none", "head", "whole"}},
    {"parallel", CHOICE, 0, AT(parallel), {"no", "one_norm", "two_norms"}},
    {"features", CHOICE, 0, AT(features.use), {"none", "joined", "aside"}},
    {"router", CHOICE, 0, AT(experts.router), {"softmax", "softmax_chosen", "sigmoid"}},
};
/* clang-format on */

/* Read a field into a struct. Returns 0, or -1 with an exception. */
static int read_field(PyObject* dict, const field* f, void* into) {
    PyObject* value = optional(dict, f->name);
    void* to = (char*)into + f->offset;
    if (value == NULL && !PyErr_Occurred() && f->required)
        PyErr_Format(PyExc_ValueError, "config: %s is missing", f->name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    switch (f->type) {
    case INT: return int_of(value, f->name, to);
    case FLAG: return (*(int*)to = PyObject_IsTrue(value)) < 0 ? -1 : 0;
    case FLOAT: *(float*)to = (float)PyFloat_AsDouble(value); break;
    case REAL: *(double*)to = PyFloat_AsDouble(value); break;
    case CHOICE: return choice_of(value, f->name, f->choices, to);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* An optional list of n_expected numbers (-1: any), or an empty one: *numbers [*n], PyMem_Free, or NULL. */
#define OPTIONAL_LIST(function, type, from)                                                                 \
    static int function(PyObject* dict, const char* name, int n_expected, type** numbers, int* n) {         \
        PyObject* value = optional(dict, name);                                                             \
        char argument[64];                                                                                  \
        *numbers = NULL, *n = 0;                                                                            \
        if (value == NULL) return PyErr_Occurred() ? -1 : 0;                                                \
        snprintf(argument, sizeof argument, "config: %s", name);                                            \
        if (from(value, argument, numbers, n) < 0) return -1;                                               \
        if (*n == n_expected || (n_expected < 0 && *n > 0)) return 0;                                       \
        PyMem_Free(*numbers);                                                                               \
        *numbers = NULL;                                                                                    \
        return *n == 0 ? 0                                                                                  \
                       : sd_set_error(PyExc_ValueError, "config: %s has %d entries, expected %d", name, *n, \
                                      n_expected);                                                          \
    }
OPTIONAL_LIST(optional_numbers, double, sd_floats_from)
OPTIONAL_LIST(optional_ints, int32_t, sd_ids_from)

/* The frequencies of one rotation. */
static int rotation_from(PyObject* value, sd_rotation* rotation) {
    double* numbers;
    if (sd_floats_from(value, "config: inv_freq", &numbers, &rotation->n_freq) < 0) return -1;
    rotation->inv_freq = numbers;
    rotation->factor = 1.0;
    return 0;
}

/* inv_freq, of rotation 0, and more_inv_freq, a list for each further one. */
static int rotations_from(PyObject* dict, sd_config* c) {
    PyObject *first = optional(dict, "inv_freq"), *list = optional(dict, "more_inv_freq"), *more = NULL;
    double* factors = NULL;
    int n_factors, result = -1;
    if (first == NULL && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "config: inv_freq is missing");
    if (PyErr_Occurred()) return -1;
    if (list != NULL && (more = sd_items_from(list, "config: more_inv_freq: expected lists")) == NULL)
        return -1;
    Py_ssize_t n = more ? PyTuple_GET_SIZE(more) : 0;
    if (n >= LARGEST) {
        PyErr_SetString(PyExc_ValueError, "config: more_inv_freq has too many lists");
        goto end;
    }
    sd_rotation* rotations = PyMem_Calloc((size_t)n + 1, sizeof *rotations);
    c->rotations = rotations;
    if (rotations == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    c->n_rotations = (int)n + 1;
    if (rotation_from(first, &rotations[0]) < 0) goto end;
    for (Py_ssize_t i = 0; i < n; i++)
        if (rotation_from(PyTuple_GET_ITEM(more, i), &rotations[i + 1]) < 0) goto end;
    if (optional_numbers(dict, "rotary_factors", c->n_rotations, &factors, &n_factors) < 0) goto end;
    for (int r = 0; factors != NULL && r < c->n_rotations; r++) rotations[r].factor = factors[r];
    result = 0;
end:
    PyMem_Free(factors);
    Py_XDECREF(more);
    return result;
}

/* Settings of single layers: a field for all of them, and a list with a number for each. */
static const struct {
    field of_all; /* name NULL: none */
    const char* of_each;
} LAYER_FIELDS[] = {
#define LAYER(name, member, of_each) {{name, INT, 1, offsetof(sd_layer_config, member), {0}}, of_each}
    LAYER("n_head", n_head, "n_heads"),         LAYER("n_kv_head", n_kv_head, "n_kv_heads"),
    LAYER("d_head", d_head, "d_heads"),         LAYER("d_ff", d_ff, "d_ffs"),
    LAYER("sliding_window", window, "windows"), LAYER(NULL, rotation, "rotations"),
    LAYER(NULL, mixture, "mixtures"),           LAYER(NULL, values_from_keys, "values_from_keys"),
    LAYER(NULL, kv_layer, "kv_layers"),
};

/* The mixer of each layer, and whether it has attention, by name; attention alone without the list. */
static int mixers_from(PyObject* dict, const sd_config* c, sd_layer_config* layers) {
    static const char* const names[] = {
        "none",      "convolution",           "delta",           "mamba2",
        "attention", "attention+convolution", "attention+delta", "attention+mamba2",
        NULL};
    PyObject *value = optional(dict, "mixers"), *list;
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    if ((list = PySequence_Fast(value, "config: mixers: expected a list of names")) == NULL) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    int result = 0;
    if (n != 0 && n != c->n_layer)
        result = sd_set_error(PyExc_ValueError, "config: mixers has %zd entries, expected %d", n, c->n_layer);
    for (Py_ssize_t i = 0; i < n && result == 0; i++) {
        int mixer;
        result = choice_of(PySequence_Fast_GET_ITEM(list, i), "mixers", names, &mixer);
        if (result == 0) layers[i].mixer = (sd_mixer)(mixer % SD_N_MIXERS);
        if (result == 0) layers[i].attends = mixer >= SD_N_MIXERS;
    }
    Py_DECREF(list);
    return result;
}

/* Defaults of each layer: the first rotation, experts if the model has any, keys of its own, 1 / √d_head. */
static int layers_from(PyObject* dict, sd_config* c) {
    const field norm = {"first_norm", FLAG, 0, 0, {0}};
    int first_norm = 1;
    double* scales;
    int n_scales;
    if (read_field(dict, &norm, &first_norm) < 0) return -1;
    if (c->n_layer < 1 || c->n_layer > LARGEST) return 0; /* the core rejects it */
    sd_layer_config* layers = PyMem_Calloc((size_t)c->n_layer, sizeof *layers);
    c->layers = layers;
    if (layers == NULL) return sd_no_memory();
    layers[0].rotation = c->n_rotations > 0 ? 0 : -1;
    layers[0].mixture = c->experts.n > 0;
    layers[0].attends = 1;
    for (size_t f = 0; f < sizeof LAYER_FIELDS / sizeof *LAYER_FIELDS; f++)
        if (LAYER_FIELDS[f].of_all.name && read_field(dict, &LAYER_FIELDS[f].of_all, layers) < 0) return -1;
    for (int i = 1; i < c->n_layer; i++) layers[i] = layers[0], layers[i].kv_layer = i;
    for (size_t f = 0; f < sizeof LAYER_FIELDS / sizeof *LAYER_FIELDS; f++) {
        int32_t* numbers;
        int n;
        if (optional_ints(dict, LAYER_FIELDS[f].of_each, c->n_layer, &numbers, &n) < 0) return -1;
        for (int i = 0; numbers != NULL && i < n; i++)
            *(int*)(void*)((char*)&layers[i] + LAYER_FIELDS[f].of_all.offset) = numbers[i];
        PyMem_Free(numbers);
    }
    if (mixers_from(dict, c, layers) < 0) return -1;
    if (optional_numbers(dict, "score_scales", c->n_layer, &scales, &n_scales) < 0) return -1;
    for (int i = 0; i < c->n_layer; i++) {
        layers[i].mixture = layers[i].mixture != 0;
        layers[i].shares_kv = c->borrows_kv || layers[i].kv_layer != i;
        layers[i].reads_token = i == 0 && c->features.use == SD_FEATURE_ASIDE;
        layers[i].input_norm = i > 0 || (first_norm && !layers[i].reads_token);
        layers[i].score_scale = scales ? (float)scales[i] : 1.0f / sqrtf((float)layers[i].d_head);
    }
    PyMem_Free(scales);
    return 0;
}

static int distance_biases_from(PyObject* dict, sd_config* c) {
    double* slopes;
    int32_t* starts;
    if (c->layers == NULL || c->layers[0].n_head < 1) return 0; /* the core rejects it */
    int n_head = c->layers[0].n_head, n;
    if (optional_numbers(dict, "alibi", n_head, &slopes, &n) < 0) return -1;
    if (slopes != NULL) {
        float* rounded = PyMem_Malloc((size_t)n_head * sizeof *rounded);
        c->alibi = rounded;
        for (int h = 0; rounded != NULL && h < n_head; h++) rounded[h] = (float)slopes[h];
        PyMem_Free(slopes);
        if (rounded == NULL) return sd_no_memory();
    }
    if (optional_ints(dict, "relative_buckets", -1, &starts, &c->n_buckets) < 0) return -1;
    c->bucket_starts = starts;
    return 0;
}

/* Factors of what recurrent layers project: none or all. */
static int mixer_scales_from(PyObject* dict, sd_mixer_sizes* sizes) {
    float* const to[] = {&sizes->query_scale, &sizes->key_scale, &sizes->value_scale, &sizes->gate_scale,
                         &sizes->decay_scale};
    double* scales;
    int n;
    if (optional_numbers(dict, "mixer_scales", 5, &scales, &n) < 0) return -1;
    sizes->scaled = scales != NULL;
    for (int i = 0; scales != NULL && i < n; i++) *to[i] = (float)scales[i];
    PyMem_Free(scales);
    return 0;
}

static int fields_from(PyObject* dict, sd_config* c) {
    c->norm_bias = -1;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (read_field(dict, &FIELDS[i], c) < 0) return -1;
    if (c->norm_bias < 0) c->norm_bias = c->norm == SD_NORM_LAYER;
    return 0;
}

static int config_from(PyObject* dict, int is_encoder, sd_config* c);

/* The configuration of the encoder, if there is one. */
static int encoder_from(PyObject* dict, sd_config* c) {
    PyObject *value = optional(dict, "encoder"), *own = NULL;
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    if (c->bidirectional)
        return sd_set_error(PyExc_ValueError, "config: encoder: has an encoder, expected none");
    if (!PyDict_Check(value)) return sd_set_error(PyExc_TypeError, "config: encoder: expected a dict");
    sd_config* encoder = PyMem_Calloc(1, sizeof *encoder);
    if (encoder == NULL) PyErr_NoMemory();
    /* a private copy: converting a value may run user code, which may change the original */
    int result = encoder != NULL && (own = PyDict_New()) != NULL && PyDict_Update(own, value) == 0 &&
                         config_from(own, 1, encoder) == 0 && PyDict_SetItemString(dict, "encoder", own) == 0
                     ? 0
                     : -1;
    c->encoder = encoder;
    Py_XDECREF(own);
    return result;
}

static int config_from(PyObject* dict, int is_encoder, sd_config* c) {
    *c = (sd_config){.norm_weight = 1,
                     .output_norm = 1,
                     .embedding_scale = 1.0f,
                     .residual_scale = 1.0f,
                     .logit_scale = 1.0f,
                     .attn_out_scale = 1.0f,
                     .mixer_out_scale = 1.0f,
                     .mlp_down_scale = 1.0f,
                     .mlp_gate_scale = 1.0f,
                     .experts = {.scale = 1.0f},
                     .bidirectional = is_encoder};
    if (fields_from(dict, c) == 0 && (c->position != SD_POSITION_ROTARY || rotations_from(dict, c) == 0) &&
        mixer_scales_from(dict, &c->mixers) == 0 && layers_from(dict, c) == 0 &&
        distance_biases_from(dict, c) == 0 && encoder_from(dict, c) == 0)
        return 0;
    sd_config_free(c);
    return -1;
}

int sd_config_from(PyObject* dict, sd_config* c) {
    *c = (sd_config){0};
    if (!PyDict_Check(dict)) return sd_set_error(PyExc_TypeError, "config: expected a dict");
    return config_from(dict, 0, c);
}

void sd_config_free(sd_config* c) {
    if (c->encoder) sd_config_free((sd_config*)c->encoder);
    PyMem_Free((sd_config*)c->encoder);
    for (int r = 0; r < c->n_rotations; r++) PyMem_Free((double*)c->rotations[r].inv_freq);
    PyMem_Free((sd_rotation*)c->rotations);
    PyMem_Free((sd_layer_config*)c->layers);
    PyMem_Free((float*)c->alibi);
    PyMem_Free((int*)c->bucket_starts);
    *c = (sd_config){0};
}
