/* Ngram: counts of n-grams. */
#include "module.h"

/* A level's arrays from a tuple (starts, tokens, counts); each view taken is counted in *n_views. */
static int level_from(PyObject* tuple, int64_t n_before, Py_buffer* views, int* n_views,
                      sd_ngram_level* level) {
    static const char* const names[] = {"starts", "tokens", "counts"};
    static const char formats[] = {sizeof(long) == 8 ? 'l' : 'q', 'i', 'i'}; /* NumPy's int64 is q or l */
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3) {
        PyErr_SetString(PyExc_TypeError, "levels: expected tuples (starts, tokens, counts)");
        return -1;
    }
    for (int i = 0; i < 3; i++, ++*n_views)
        if (sd_view(PyTuple_GET_ITEM(tuple, i), names[i], formats[i], 1, &views[*n_views]) < 0) return -1;
    const Py_buffer* view = &views[*n_views - 3];
    if (view[0].shape[0] != n_before + 1 || view[1].shape[0] != view[2].shape[0]) {
        PyErr_Format(PyExc_ValueError,
                     "levels: starts has %zd entries, tokens %zd and counts %zd; expected %lld, one more "
                     "than there are n-grams of the order below, and tokens and counts alike",
                     view[0].shape[0], view[1].shape[0], view[2].shape[0], (long long)n_before + 1);
        return -1;
    }
    *level = (sd_ngram_level){view[1].shape[0], view[0].buf, view[1].buf, view[2].buf};
    return 0;
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"unigrams", "levels", "back_off", NULL};
    sd_ngram_object* self = (sd_ngram_object*)object;
    PyObject *unigrams, *levels;
    int back_off = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|p", names, &unigrams, &PyTuple_Type, &levels,
                                     &back_off))
        return -1;
    Py_ssize_t n_levels = PyTuple_GET_SIZE(levels);
    if (n_levels >= SD_MAX_NGRAM) {
        PyErr_Format(PyExc_ValueError, "levels has %zd entries, expected at most %d", n_levels,
                     SD_MAX_NGRAM - 1);
        return -1;
    }
    Py_buffer* views = self->views;
    sd_status status = SD_OK;
    if (sd_exclusive_enter_init(&self->exclusive, self->table.n > 0, "Ngram") < 0) return -1;
    if (sd_view(unigrams, "unigrams", 'i', 1, &views[0]) < 0) goto fail;
    self->n_views = 1;
    int64_t n_before = views[0].shape[0];
    if (n_before < 1 || n_before > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "unigrams has %lld entries, expected 1 to %d", (long long)n_before,
                     INT32_MAX);
        goto fail;
    }
    sd_ngram_table table = {(int)n_before, (int)n_levels + 1, back_off, views[0].buf, {{0}}};
    for (Py_ssize_t i = 0; i < n_levels; i++, n_before = table.levels[i - 1].n)
        if (level_from(PyTuple_GET_ITEM(levels, i), n_before, views, &self->n_views, &table.levels[i]) < 0)
            goto fail;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    status = sd_ngram_table_check(&table);
    sd_gil_take(&saved_thread);
    if (status == SD_OK) {
        self->table = table;
        sd_exclusive_leave(&self->exclusive);
        return 0;
    }
    sd_raise(status);
fail:
    while (self->n_views > 0) PyBuffer_Release(&views[--self->n_views]);
    sd_exclusive_leave(&self->exclusive);
    return -1;
}

static int traverse(PyObject* object, visitproc visit, void* arg) {
    const sd_ngram_object* self = (const sd_ngram_object*)object;
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < self->n_views; i++) Py_VISIT(self->views[i].obj);
    return 0;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    sd_ngram_object* self = (sd_ngram_object*)object;
    PyObject_GC_UnTrack(object);
    while (self->n_views > 0) PyBuffer_Release(&self->views[--self->n_views]);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Ngram(unigrams, levels, back_off=False)\n--\n\nCounts of n-grams."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_ngram_spec = {
    .name = "specdec._core.Ngram",
    .basicsize = sizeof(sd_ngram_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
