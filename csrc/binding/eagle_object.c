/* Eagle: a small model that drafts from the target's hidden states; immutable. */
#include <string.h>

#include "convert.h"
#include "module.h"
#include "predictors.h"

/* The hidden states that it reads. Returns 0, or -1 with an exception. */
static int layers_from(PyObject* argument, sd_eagle* eagle) {
    int32_t* layers;
    int n;
    if (sd_ids_from(argument, "layers", &layers, &n) < 0) return -1;
    if (n >= 1 && n <= SD_MAX_TAPS) {
        eagle->n_layers = n;
        for (int i = 0; i < n; i++) eagle->layers[i] = layers[i];
    } else {
        PyErr_Format(PyExc_ValueError, "there are %d layers, expected 1 to %d", n, SD_MAX_TAPS);
    }
    PyMem_Free(layers);
    return PyErr_Occurred() ? -1 : 0;
}

/* Tokens of the target, as many as the head has rows, all different; or None. Returns 0, or -1 with an
 * exception. */
static int tokens_from(PyObject* argument, const sd_config* config, int32_t** tokens) {
    *tokens = NULL;
    if (argument == Py_None) return 0;
    int n, expected = sd_head_rows(config);
    if (sd_ids_from(argument, "tokens", tokens, &n) < 0) return -1;
    char* seen = n == expected ? PyMem_Calloc((size_t)config->n_vocab, 1) : NULL;
    if (n != expected)
        PyErr_Format(PyExc_ValueError, "there are %d tokens, expected %d, one for each row of the head", n,
                     expected);
    else if (seen == NULL)
        PyErr_NoMemory();
    for (int i = 0; seen != NULL && i < n; i++) {
        int32_t token = (*tokens)[i];
        if (token < 0 || token >= config->n_vocab || seen[token]) {
            PyErr_Format(PyExc_ValueError, "tokens[%d] is %d, expected 0 to %d, each once", i, (int)token,
                         config->n_vocab - 1);
            break;
        }
        seen[token] = 1;
    }
    PyMem_Free(seen);
    if (!PyErr_Occurred()) return 0;
    PyMem_Free(*tokens);
    *tokens = NULL;
    return -1;
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model", "layers", "tokens", "normed_feedback", NULL};
    sd_eagle_object* self = (sd_eagle_object*)base;
    PyObject *model_argument, *layers = Py_None, *tokens_argument = Py_None;
    int normed_feedback = 0, result = -1;
    int32_t* tokens = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOp", names, &model_argument, &layers,
                                     &tokens_argument, &normed_feedback))
        return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->model != NULL, "Eagle") < 0) return -1;
    sd_model_object* model = sd_model_from(PyType_GetModuleState(Py_TYPE(base)), model_argument, "model");
    sd_eagle eagle = {.normed_feedback = normed_feedback};
    if (model == NULL || layers_from(layers, &eagle) < 0) goto end;
    eagle.model = model->model;
    if (eagle.model->config.features.use == SD_FEATURE_NONE) {
        PyErr_SetString(PyExc_ValueError, "model: reads no features, expected one that does");
        goto end;
    }
    if (tokens_from(tokens_argument, &eagle.model->config, &tokens) < 0) goto end;
    eagle.tokens = self->tokens = tokens;
    self->eagle = eagle;
    self->model = (sd_model_object*)Py_NewRef((PyObject*)model);
    result = 0;
end:
    sd_exclusive_leave(&self->exclusive);
    return result;
}

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT(((sd_eagle_object*)base)->model);
    return 0;
}

static void dealloc(PyObject* base) {
    sd_eagle_object* self = (sd_eagle_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    Py_CLEAR(self->model);
    PyMem_Free(self->tokens);
    type->tp_free(base);
    Py_DECREF(type);
}

const sd_eagle* sd_eagle_from(PyObject* object) {
    const sd_eagle_object* self = (const sd_eagle_object*)object;
    if (self->model != NULL) return &self->eagle;
    PyErr_SetString(PyExc_ValueError, "draft: the Eagle has not been initialised");
    return NULL;
}

static PyObject* get_model(PyObject* base, void* closure) {
    (void)closure;
    PyObject* model = (PyObject*)((sd_eagle_object*)base)->model;
    return Py_NewRef(model ? model : Py_None);
}

static PyGetSetDef getters[] = {
    {"model", get_model, NULL, "Its weights.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Eagle(model, *, layers, tokens=None, normed_feedback=False)\n--\n\n"
     "A small model that drafts from the target's hidden states."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_getset, getters},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_eagle_spec = {
    .name = "specdec._core.Eagle",
    .basicsize = sizeof(sd_eagle_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
