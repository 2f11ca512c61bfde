/* LookAheadEmbeddings: vectors behind a text, after which its target guesses ahead. */
#include <math.h>
#include <string.h>

#include "module.h"

/* Copy a view [n, d_model] of f32 to memory of the caller's (PyMem_Free). Returns 0, or -1 with an
 * exception. */
static int copy_embeddings(const Py_buffer* view, sd_extra_queries* extra, float** memory) {
    Py_ssize_t n = view->shape[0], d_model = view->shape[1];
    if (n < 1 || n > SD_MAX_GAMMA || d_model < 1 || d_model > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "embeddings: shape is (%zd, %zd), expected 1 to %d rows", n, d_model,
                     SD_MAX_GAMMA);
        return -1;
    }
    size_t size = (size_t)n * (size_t)d_model;
    float* copy = PyMem_Calloc(size, sizeof *copy);
    if (copy == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(copy, view->buf, size * sizeof *copy);
    for (size_t i = 0; i < size; i++) {
        if (isfinite(copy[i])) continue;
        PyErr_Format(PyExc_ValueError,
                     "tensor embeddings: element [%zu, %zu] is not finite, expected a finite number",
                     i / (size_t)d_model, i % (size_t)d_model);
        PyMem_Free(copy);
        return -1;
    }
    *extra = (sd_extra_queries){(int)n, (int)d_model, copy};
    *memory = copy;
    return 0;
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"embeddings", NULL};
    sd_look_ahead_object* self = (sd_look_ahead_object*)object;
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_view(argument, "embeddings", 'f', 2, &view) < 0) return -1;
    sd_extra_queries extra;
    float* memory = NULL;
    int result = copy_embeddings(&view, &extra, &memory);
    PyBuffer_Release(&view);
    if (result < 0) return -1;
    if (self->memory != NULL) {
        PyMem_Free(memory);
        PyErr_SetString(PyExc_RuntimeError, "a LookAheadEmbeddings cannot be initialised twice");
        return -1;
    }
    self->extra = extra;
    self->memory = memory;
    return 0;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyMem_Free(((sd_look_ahead_object*)object)->memory);
    type->tp_free(object);
    Py_DECREF(type);
}

const sd_extra_queries* sd_look_ahead_from(PyObject* object, const char* name) {
    const sd_look_ahead_object* self = (const sd_look_ahead_object*)object;
    if (self->memory != NULL) return &self->extra;
    PyErr_Format(PyExc_ValueError, "%s: the LookAheadEmbeddings have not been initialised", name);
    return NULL;
}

static PyObject* get_n_tokens(PyObject* object, void* closure) {
    (void)closure;
    return PyLong_FromLong(((sd_look_ahead_object*)object)->extra.n);
}

static PyObject* get_d_model(PyObject* object, void* closure) {
    (void)closure;
    return PyLong_FromLong(((sd_look_ahead_object*)object)->extra.d_model);
}

static PyGetSetDef getters[] = {
    {"n_tokens", get_n_tokens, NULL, "How many vectors there are.", NULL},
    {"d_model", get_d_model, NULL, "Numbers of each.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "LookAheadEmbeddings(embeddings)\n--\n\n"
     "Vectors behind a text, float32 [n_tokens, d_model], after which its target guesses ahead."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_getset, getters},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_look_ahead_spec = {
    .name = "specdec._core.LookAheadEmbeddings",
    .basicsize = sizeof(sd_look_ahead_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
