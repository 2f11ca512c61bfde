#include "config_dict.h"

#include <math.h>
#include <string.h>

#include "convert.h"

/* Layers, heads and buckets that arrays are made for; the core refuses more. */
#define LARGEST (1 << 26)

/* Borrowed: no caller has the dict (sd_config_from), so its values stay. NULL without an exception where it
 * is absent or None. */
static PyObject* optional(PyObject* dict, const char* name) {
    PyObject* key = PyUnicode_FromString(name);
    PyObject* value = key ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    return value == Py_None ? NULL : value;
}

static PyObject* field(PyObject* dict, const char* name) {
    PyObject* value = optional(dict, name);
    if (value == NULL && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "config: %s is missing", name);
    return value;
}

static int int_of(PyObject* value, const char* name, int* out) {
    long number = PyLong_AsLong(value);
    if (number == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Format(PyExc_ValueError, "config: %s is %R, expected an integer", name, value);
        return -1;
    }
    if (number < INT32_MIN || number > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "config: %s is %ld, expected a smaller number", name, number);
        return -1;
    }
    *out = (int)number;
    return 0;
}

static int int_field(PyObject* dict, const char* name, int* out) {
    PyObject* value = field(dict, name);
    return value == NULL ? -1 : int_of(value, name, out);
}

/* The same where the field may be absent; *out is then left as it is. */
static int optional_int(PyObject* dict, const char* name, int* out) {
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    return int_of(value, name, out);
}

static int flag_field(PyObject* dict, const char* name, int* out) {
    PyObject* value = field(dict, name);
    if (value == NULL) return -1;
    *out = PyObject_IsTrue(value);
    return *out < 0 ? -1 : 0;
}

/* The same where the field may be absent; *out is then left as it is. */
static int optional_flag(PyObject* dict, const char* name, int* out) {
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    *out = PyObject_IsTrue(value);
    return *out < 0 ? -1 : 0;
}

static int optional_number(PyObject* dict, const char* name, double* out) {
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    *out = PyFloat_AsDouble(value);
    return PyErr_Occurred() ? -1 : 0;
}

static int optional_float(PyObject* dict, const char* name, float* out) {
    double number = (double)*out;
    if (optional_number(dict, name, &number) < 0) return -1;
    *out = (float)number;
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

static int choice_field(PyObject* dict, const char* name, const char* const* choices, int* out) {
    PyObject* value = field(dict, name);
    return value == NULL ? -1 : choice_of(value, name, choices, out);
}

static int optional_choice(PyObject* dict, const char* name, const char* const* choices, int* out) {
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    return choice_of(value, name, choices, out);
}

static int wrong_length(const char* name, int n, int expected) {
    PyErr_Format(PyExc_ValueError, "config: %s has %d entries, expected %d", name, n, expected);
    return -1;
}

/* An optional list of n_expected numbers, or an empty one: *numbers, PyMem_Free, is NULL for none. */
static int optional_numbers(PyObject* dict, const char* name, int n_expected, double** numbers) {
    *numbers = NULL;
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    char argument[64];
    snprintf(argument, sizeof argument, "config: %s", name);
    int n;
    if (sd_floats_from(value, argument, numbers, &n) < 0) return -1;
    if (n == n_expected) return 0;
    PyMem_Free(*numbers);
    *numbers = NULL;
    return n == 0 ? 0 : wrong_length(name, n, n_expected);
}

/* As optional_numbers, of integers; n_expected -1: any number of them, in *n. */
static int optional_ints(PyObject* dict, const char* name, int n_expected, int32_t** ints, int* n) {
    *ints = NULL, *n = 0;
    PyObject* value = optional(dict, name);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    char argument[64];
    snprintf(argument, sizeof argument, "config: %s", name);
    if (sd_ids_from(value, argument, ints, n) < 0) return -1;
    if (*n == n_expected || (n_expected < 0 && *n > 0)) return 0;
    PyMem_Free(*ints);
    *ints = NULL;
    return *n == 0 ? 0 : wrong_length(name, *n, n_expected);
}

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
    PyObject *first = field(dict, "inv_freq"), *more = NULL, *list;
    double* factors = NULL;
    int result = -1;
    if (first == NULL) return -1;
    list = optional(dict, "more_inv_freq");
    if (list == NULL && PyErr_Occurred()) return -1;
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
    if (optional_numbers(dict, "rotary_factors", c->n_rotations, &factors) < 0) goto end;
    for (int r = 0; factors != NULL && r < c->n_rotations; r++) rotations[r].factor = factors[r];
    result = 0;
end:
    PyMem_Free(factors);
    Py_XDECREF(more);
    return result;
}

/* n_heads, n_kv_heads, d_heads, windows, rotations, mixtures, score_scales: a number for each layer; n_head,
 * n_kv_head, d_head, sliding_window, the first rotation, experts if the model has any, and 1 / √d_head where
 * they are absent. */
static int layers_from(PyObject* dict, sd_config* c) {
    int window, n_head, n_kv_head, d_head, n, first_norm = 1, result = -1;
    int32_t *n_heads = NULL, *n_kv_heads = NULL, *d_heads = NULL;
    int32_t *windows = NULL, *rotations = NULL, *mixtures = NULL;
    double* scales = NULL;
    if (int_field(dict, "sliding_window", &window) < 0 || int_field(dict, "n_head", &n_head) < 0 ||
        int_field(dict, "n_kv_head", &n_kv_head) < 0 || int_field(dict, "d_head", &d_head) < 0 ||
        optional_flag(dict, "first_norm", &first_norm) < 0)
        return -1;
    if (c->n_layer < 1 || c->n_layer > LARGEST) return 0; /* the core says so */
    sd_layer_config* layers = PyMem_Calloc((size_t)c->n_layer, sizeof *layers);
    c->layers = layers;
    if (layers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (optional_ints(dict, "n_heads", c->n_layer, &n_heads, &n) < 0 ||
        optional_ints(dict, "n_kv_heads", c->n_layer, &n_kv_heads, &n) < 0 ||
        optional_ints(dict, "d_heads", c->n_layer, &d_heads, &n) < 0 ||
        optional_ints(dict, "windows", c->n_layer, &windows, &n) < 0 ||
        optional_ints(dict, "rotations", c->n_layer, &rotations, &n) < 0 ||
        optional_ints(dict, "mixtures", c->n_layer, &mixtures, &n) < 0 ||
        optional_numbers(dict, "score_scales", c->n_layer, &scales) < 0)
        goto end;
    for (int i = 0; i < c->n_layer; i++) {
        layers[i].n_head = n_heads ? n_heads[i] : n_head;
        layers[i].n_kv_head = n_kv_heads ? n_kv_heads[i] : n_kv_head;
        layers[i].d_head = d_heads ? d_heads[i] : d_head;
        layers[i].window = windows ? windows[i] : window;
        layers[i].rotation = rotations ? rotations[i] : c->n_rotations > 0 ? 0 : -1;
        layers[i].mixture = mixtures ? mixtures[i] != 0 : c->experts.n > 0;
        layers[i].reads_token = i == 0 && c->features.use == SD_FEATURE_ASIDE;
        layers[i].input_norm = i > 0 || (first_norm && !layers[i].reads_token);
        layers[i].score_scale = scales ? (float)scales[i] : 1.0f / sqrtf((float)layers[i].d_head);
    }
    result = 0;
end:
    PyMem_Free(n_heads);
    PyMem_Free(n_kv_heads);
    PyMem_Free(d_heads);
    PyMem_Free(windows);
    PyMem_Free(rotations);
    PyMem_Free(mixtures);
    PyMem_Free(scales);
    return result;
}

static int distance_biases_from(PyObject* dict, sd_config* c) {
    double* slopes;
    int32_t* starts;
    if (c->layers == NULL) return 0; /* the core says so */
    int n_head = c->layers[0].n_head;
    if (optional_numbers(dict, "alibi", n_head, &slopes) < 0) return -1;
    if (slopes != NULL) {
        float* rounded = PyMem_Malloc((size_t)n_head * sizeof *rounded);
        c->alibi = rounded;
        for (int h = 0; rounded != NULL && h < n_head; h++) rounded[h] = (float)slopes[h];
        PyMem_Free(slopes);
        if (rounded == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    if (optional_ints(dict, "relative_buckets", -1, &starts, &c->n_buckets) < 0) return -1;
    c->bucket_starts = starts;
    return 0;
}

static int fields_from(PyObject* dict, sd_config* c) {
    static const char* const norms[] = {"rms", "layer", NULL};
    static const char* const places[] = {"before", "after", "both", "residual", NULL};
    static const char* const positions[] = {"rotary", "learned", "none", NULL};
    static const char* const activations[] = {"silu",  "gelu",         "gelu_tanh", "relu",
                                              "relu2", "silu_clamped", NULL};
    static const char* const qk_norms[] = {"none", "head", "each_head", "whole", NULL};
    static const char* const parallels[] = {"no", "one_norm", "two_norms", NULL};
    int norm = 0, place = 0, position = 0, activation = 0, qk_norm = 0, parallel = 0;
    const struct {
        const char* name;
        int* value;
    } sizes[] = {{"n_vocab", &c->n_vocab},
                 {"n_ctx", &c->n_ctx},
                 {"n_layer", &c->n_layer},
                 {"d_model", &c->d_model},
                 {"d_ff", &c->d_ff}},
      flags[] = {{"gated", &c->gated},
                 {"tied", &c->tied},
                 {"qkv_bias", &c->qkv_bias},
                 {"out_bias", &c->out_bias},
                 {"mlp_bias", &c->mlp_bias}},
      switches[] = {{"norm_weight", &c->norm_weight},
                    {"norm_bias", &c->norm_bias},
                    {"v_norm", &c->v_norm},
                    {"head_bias", &c->head_bias},
                    {"embedding_norm", &c->embedding_norm},
                    {"attn_sinks", &c->attn_sinks},
                    {"output_norm", &c->output_norm},
                    {"relative_bias_by_layer", &c->bias_by_layer},
                    {"shared_embedding", &c->shared_embedding},
                    {"shared_head", &c->shared_head}};
    const struct {
        const char* name;
        float* value;
    } numbers[] = {{"embedding_scale", &c->embedding_scale},  {"residual_scale", &c->residual_scale},
                   {"logit_scale", &c->logit_scale},          {"logit_softcap", &c->logit_softcap},
                   {"attn_softcap", &c->attn_softcap},        {"qkv_limit", &c->qkv_limit},
                   {"activation_limit", &c->activation_limit}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (int_field(dict, sizes[i].name, sizes[i].value) < 0) return -1;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flag_field(dict, flags[i].name, flags[i].value) < 0) return -1;
    if (choice_field(dict, "norm", norms, &norm) < 0 ||
        choice_field(dict, "position", positions, &position) < 0 ||
        choice_field(dict, "activation", activations, &activation) < 0 ||
        optional_choice(dict, "norm_place", places, &place) < 0 ||
        optional_choice(dict, "qk_norm", qk_norms, &qk_norm) < 0 ||
        optional_choice(dict, "parallel", parallels, &parallel) < 0)
        return -1;
    c->norm = norm, c->position = position, c->activation = activation;
    c->norm_place = place, c->qk_norm = qk_norm, c->parallel = parallel;
    c->norm_bias = norm == SD_NORM_LAYER;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (optional_flag(dict, switches[i].name, switches[i].value) < 0) return -1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (optional_float(dict, numbers[i].name, numbers[i].value) < 0) return -1;
    if (optional_number(dict, "query_growth", &c->query_growth) < 0 ||
        optional_int(dict, "query_span", &c->query_span) < 0)
        return -1;
    PyObject* eps = field(dict, "norm_eps");
    if (eps == NULL) return -1;
    c->norm_eps = (float)PyFloat_AsDouble(eps);
    return PyErr_Occurred() ? -1 : 0;
}

static int features_from(PyObject* dict, sd_config* c) {
    static const char* const uses[] = {"none", "joined", "aside", NULL};
    sd_features* f = &c->features;
    int use = 0;
    if (optional_choice(dict, "features", uses, &use) < 0 ||
        optional_int(dict, "feature_width", &f->width) < 0 ||
        optional_flag(dict, "feature_bias", &f->bias) < 0 ||
        optional_flag(dict, "feature_norms", &f->norms) < 0 ||
        optional_int(dict, "feature_pieces", &f->n_pieces) < 0 ||
        optional_flag(dict, "feature_normed_stream", &f->normed_stream) < 0)
        return -1;
    f->use = use;
    return optional_int(dict, "n_guesses", &c->n_guesses);
}

static int experts_from(PyObject* dict, sd_experts* e) {
    static const char* const routers[] = {"softmax", "softmax_chosen", "sigmoid", NULL};
    const struct {
        const char* name;
        int* value;
    } sizes[] = {{"n_experts", &e->n},
                 {"n_experts_per_token", &e->n_chosen},
                 {"d_expert", &e->width},
                 {"d_shared_expert", &e->shared_width}},
      switches[] = {{"shared_expert_gate", &e->shared_gate},
                    {"router_bias", &e->router_bias},
                    {"router_renormalise", &e->renormalise}};
    int router = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (optional_int(dict, sizes[i].name, sizes[i].value) < 0) return -1;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (optional_flag(dict, switches[i].name, switches[i].value) < 0) return -1;
    if (optional_choice(dict, "router", routers, &router) < 0) return -1;
    e->router = router;
    return optional_float(dict, "routed_scale", &e->scale);
}

static int config_from(PyObject* dict, int is_encoder, sd_config* c);

/* The configuration of the encoder, if there is one. */
static int encoder_from(PyObject* dict, sd_config* c) {
    PyObject *value = optional(dict, "encoder"), *own = NULL;
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    if (c->bidirectional) {
        PyErr_SetString(PyExc_ValueError, "config: encoder: has an encoder, expected none");
        return -1;
    }
    if (!PyDict_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "config: encoder: expected a dict");
        return -1;
    }
    sd_config* encoder = PyMem_Calloc(1, sizeof *encoder);
    if (encoder == NULL) PyErr_NoMemory();
    /* a dict of our own: to convert a value may run the caller's code, which may change the caller's */
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
                     .experts = {.scale = 1.0f},
                     .bidirectional = is_encoder};
    if (fields_from(dict, c) == 0 && (c->position != SD_POSITION_ROTARY || rotations_from(dict, c) == 0) &&
        features_from(dict, c) == 0 && experts_from(dict, &c->experts) == 0 && layers_from(dict, c) == 0 &&
        distance_biases_from(dict, c) == 0 && encoder_from(dict, c) == 0)
        return 0;
    sd_config_free(c);
    return -1;
}

int sd_config_from(PyObject* dict, sd_config* c) {
    *c = (sd_config){0};
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "config: expected a dict");
        return -1;
    }
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
