/* Bigram: a table of what follows each token. */
#include <string.h>

#include "module.h"

/* A copy of the items of a buffer, so that nobody changes what was checked. */
static void* copy_of(const Py_buffer* view) {
    void* copy = PyMem_Malloc((size_t)view->len + 1);
    if (copy == NULL) return PyErr_NoMemory();
    memcpy(copy, view->buf, (size_t)view->len);
    return copy;
}

static void free_table(sd_bigram* table) {
    PyMem_Free((void*)table->base);
    PyMem_Free((void*)table->shifts);
    PyMem_Free((void*)table->starts);
    PyMem_Free((void*)table->successors);
    PyMem_Free((void*)table->logits);
    *table = (sd_bigram){0};
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"base", "shifts", "starts", "successors", "logits", NULL};
    static const char formats[] = "ffqif"; /* NumPy's int64 is q or l, by the platform: see below */
    sd_bigram_object* self = (sd_bigram_object*)object;
    PyObject* arguments[5];
    Py_buffer views[5] = {{0}};
    int result = -1, n_views = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO", names, &arguments[0], &arguments[1],
                                     &arguments[2], &arguments[3], &arguments[4]))
        return -1;
    if (self->table.base != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a Bigram cannot be initialised twice");
        return -1;
    }
    for (; n_views < 5; n_views++) {
        char format = formats[n_views] == 'q' && sizeof(long) == 8 ? 'l' : formats[n_views];
        if (sd_view(arguments[n_views], names[n_views], format, 1, &views[n_views]) < 0) goto end;
    }
    Py_ssize_t n_vocab = views[0].shape[0], n_pairs = views[3].shape[0];
    if (n_vocab < 1 || n_vocab > INT32_MAX || views[1].shape[0] != n_vocab ||
        views[2].shape[0] != n_vocab + 1 || views[4].shape[0] != n_pairs) {
        PyErr_SetString(PyExc_ValueError,
                        "expected base and shifts [n_vocab], starts [n_vocab + 1], "
                        "successors and logits [n_pairs]");
        goto end;
    }
    sd_bigram table = {.n_vocab = (int)n_vocab};
    if ((table.base = copy_of(&views[0])) && (table.shifts = copy_of(&views[1])) &&
        (table.starts = copy_of(&views[2])) && (table.successors = copy_of(&views[3])) &&
        (table.logits = copy_of(&views[4]))) {
        sd_status status = sd_bigram_check(&table, n_pairs);
        if (status == SD_OK)
            result = 0;
        else
            sd_raise(status);
    }
    if (result == 0)
        self->table = table;
    else
        free_table(&table);
end:
    for (int i = 0; i < n_views; i++) PyBuffer_Release(&views[i]);
    return result;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    free_table(&((sd_bigram_object*)object)->table);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Bigram(base, shifts, starts, successors, logits)\n--\n\nA table of what follows each token."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_bigram_spec = {
    .name = "specdec._core.Bigram",
    .basicsize = sizeof(sd_bigram_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
