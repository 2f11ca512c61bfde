/* Eagle: a small model that drafts from the target's hidden states; immutable. */
#include <string.h>

#include "module.h"

/* The hidden states that it reads. Returns 0, or -1 with an exception. */
static int layers_from(PyObject* argument, sd_eagle* eagle) {
    int32_t* layers;
    int n, result = 0;
    if (sd_ids_from(argument, "layers", &layers, &n) < 0) return -1;
    if (n < 1 || n > SD_MAX_CAPTURES)
        result = sd_refuse("there are %d layers, expected 1 to %d", n, SD_MAX_CAPTURES);
    else
        eagle->n_layers = n;
    for (int i = 0; i < eagle->n_layers; i++) eagle->layers[i] = layers[i];
    PyMem_Free(layers);
    return result;
}

/* Read tokens of the target, one for each row of the head, all different; or None. Returns 0, or -1 with an
 * exception; memory is the caller's in both cases. */
static int tokens_from(PyObject* argument, const sd_config* config, int32_t** tokens) {
    int n, expected = sd_head_rows(config), result = 0;
    if (sd_optional_ids_from(argument, "tokens", tokens, &n) < 0) return -1;
    if (*tokens == NULL) return 0;
    if (n != expected)
        return sd_refuse("there are %d tokens, expected %d, one for each row of the head", n, expected);
    char* seen = PyMem_Calloc((size_t)config->n_vocab, 1);
    if (seen == NULL) return sd_no_memory();
    for (int i = 0; i < n && result == 0; i++) {
        int32_t token = (*tokens)[i];
        if (token < 0 || token >= config->n_vocab || seen[token]++)
            result = sd_refuse("tokens[%d] is %d, expected 0 to %d, each once", i, (int)token,
                               config->n_vocab - 1);
    }
    PyMem_Free(seen);
    return result;
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model", "layers", "tokens", "normed_feedback", NULL};
    sd_eagle_object* self = (sd_eagle_object*)object;
    sd_eagle* eagle = &self->eagle;
    PyObject *argument, *layers = Py_None, *tokens = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOp", names, &argument, &layers, &tokens,
                                     &eagle->normed_feedback))
        return -1;
    const sd_model_object* model = sd_model_from(argument, "model");
    if (model == NULL || layers_from(layers, eagle) < 0) return -1;
    self->model = Py_NewRef(argument);
    eagle->model = model->model;
    if (eagle->model->config.features.use == SD_FEATURE_NONE)
        return sd_refuse("model: reads no features, expected one that does");
    if (tokens_from(tokens, &eagle->model->config, &self->tokens) < 0) return -1;
    eagle->tokens = self->tokens;
    if (eagle->model->config.n_clusters > 0 && self->tokens == NULL)
        return sd_refuse("tokens is None, expected the token of each row of a head in clusters");
    return 0;
}

static void release(PyObject* self) { PyMem_Free(((sd_eagle_object*)self)->tokens); }

static PyMemberDef members[] = {SD_MEMBER("model", T_OBJECT, sd_eagle_object, model, "Its weights."), {0}};

const sd_type_spec sd_eagle_type = {
    .doc = "Eagle(model, *, layers, tokens=None, normed_feedback=False)\n--\n\n",
    .size = sizeof(sd_eagle_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_eagle_object, model)},
    .members = members,
};
