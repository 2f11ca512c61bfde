/* CachedText: the keys and values of a text that a session has read, to begin other texts with. */
#include <string.h>

#include "module.h"

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT((PyObject*)((sd_cached_text_object*)base)->model);
    return 0;
}

static void dealloc(PyObject* base) {
    sd_cached_text_object* self = (sd_cached_text_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    sd_cache_free(&self->cache);
    Py_XDECREF((PyObject*)self->model);
    type->tp_free(base);
    Py_DECREF(type);
}

PyObject* sd_taps_as_tuple(const sd_taps* taps) {
    PyObject* list = sd_list_of_ints(taps->layers, taps->n);
    PyObject* tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

PyObject* sd_cached_text_new(PyTypeObject* type, sd_model_object* model, const sd_cache* cache) {
    sd_cached_text_object* self = (sd_cached_text_object*)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->model = (sd_model_object*)Py_NewRef((PyObject*)model);
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    sd_status status = sd_cache_copy(&self->cache, cache);
    sd_gil_take(&saved_thread);
    if (status == SD_OK) return (PyObject*)self;
    Py_DECREF(self);
    return sd_raise(status);
}

sd_cached_text_object* sd_cached_text_from(const sd_module_state* state, PyObject* object) {
    if (PyObject_TypeCheck(object, state->cached_text_type)) return (sd_cached_text_object*)object;
    PyErr_SetString(PyExc_TypeError, "expected a specdec._core.CachedText");
    return NULL;
}

static PyObject* get_tokens(PyObject* base, void* ignored) {
    (void)ignored;
    const sd_cache* cache = &((sd_cached_text_object*)base)->cache;
    void* tokens;
    PyObject* array = sd_new_array("int32", cache->n_committed, -1, &tokens);
    if (array != NULL) memcpy(tokens, cache->tokens, (size_t)cache->n_committed * sizeof *cache->tokens);
    return array;
}

static PyObject* get_source(PyObject* base, void* ignored) {
    (void)ignored;
    const sd_encoded* encoded = ((sd_cached_text_object*)base)->cache.encoded;
    void* ids;
    if (encoded == NULL) return Py_NewRef(Py_None);
    PyObject* array = sd_new_array("int32", encoded->n, -1, &ids);
    if (array != NULL) memcpy(ids, encoded->source, (size_t)encoded->n * sizeof *encoded->source);
    return array;
}

static PyObject* get_model(PyObject* base, void* ignored) {
    (void)ignored;
    return Py_NewRef((PyObject*)((sd_cached_text_object*)base)->model);
}

static PyObject* get_taps(PyObject* base, void* ignored) {
    (void)ignored;
    return sd_taps_as_tuple(&((sd_cached_text_object*)base)->cache.taps);
}

static PyObject* get_n_bytes(PyObject* base, void* ignored) {
    (void)ignored;
    return PyLong_FromSize_t(sd_cache_bytes(&((sd_cached_text_object*)base)->cache));
}

static PyObject* get_n_low(PyObject* base, void* ignored) {
    (void)ignored;
    return PyLong_FromLong(((sd_cached_text_object*)base)->cache.n_low);
}

static PyGetSetDef getters[] = {
    {"tokens", get_tokens, NULL, "The token ids of the text [n_tokens], int32; a copy.", NULL},
    {"source", get_source, NULL,
     "The ids of the source that the text has, int32, a copy; None for a model without an encoder.", NULL},
    {"model", get_model, NULL, "Whose keys and values these are.", NULL},
    {"n_low", get_n_low, NULL, "Texts that agree with fewer tokens than these cannot begin with it.", NULL},
    {"taps", get_taps, NULL, "The hidden states that it has of each token.", NULL},
    {"n_bytes", get_n_bytes, NULL, "Memory that they take.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The keys and values of a text; Session.cached_text makes it. Immutable."},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_getset, getters},
    {0, NULL},
};

PyType_Spec sd_cached_text_spec = {
    .name = "specdec._core.CachedText",
    .basicsize = sizeof(sd_cached_text_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
