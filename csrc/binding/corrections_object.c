/* Corrections: where the target refused a draft's guesses, for whoever learns from that. */
#include "module.h"

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"n", "n_before", "n_top", "n_hidden", "everywhere", NULL};
    sd_corrections* ring = &((sd_corrections_object*)object)->ring;
    sd_correction_shape shape = {0};
    int n, everywhere = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iii|ip", names, &n, &shape.n_before, &shape.n_top,
                                     &shape.n_hidden, &everywhere))
        return -1;
    sd_status status = ring->entries != NULL
                           ? sd_fail(SD_ERR_STATE, "a Corrections cannot be initialised twice")
                           : sd_corrections_create(ring, &shape, n);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    ring->everywhere = everywhere;
    return 0;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    sd_corrections_free(&((sd_corrections_object*)object)->ring);
    type->tp_free(object);
    Py_DECREF(type);
}

sd_corrections_object* sd_corrections_from(const sd_module_state* state, PyObject* object) {
    sd_corrections_object* self = (sd_corrections_object*)object;
    if (!PyObject_TypeCheck(object, state->corrections_type))
        PyErr_Format(PyExc_TypeError, "corrections: expected Corrections, not %s", Py_TYPE(object)->tp_name);
    else if (self->ring.entries == NULL)
        PyErr_SetString(PyExc_ValueError, "corrections: the Corrections have not been initialised");
    else
        return self;
    return NULL;
}

/* The arrays of n corrections. */
enum { N_COLUMNS = 8 };
typedef struct columns {
    PyObject* arrays[N_COLUMNS];
    int32_t *before, *depth, *text, *position, *top;
    float *log_probs, *rest, *hidden;
} columns;

static int columns_new(columns* c, const sd_correction_shape* shape, Py_ssize_t n) {
    return (c->arrays[0] = sd_new_array("int32", n, shape->n_before, (void**)&c->before)) != NULL &&
           (c->arrays[1] = sd_new_array("int32", n, -1, (void**)&c->depth)) != NULL &&
           (c->arrays[2] = sd_new_array("int32", n, -1, (void**)&c->text)) != NULL &&
           (c->arrays[3] = sd_new_array("int32", n, -1, (void**)&c->position)) != NULL &&
           (c->arrays[4] = sd_new_array("int32", n, shape->n_top, (void**)&c->top)) != NULL &&
           (c->arrays[5] = sd_new_array("float32", n, shape->n_top, (void**)&c->log_probs)) != NULL &&
           (c->arrays[6] = sd_new_array("float32", n, -1, (void**)&c->rest)) != NULL &&
           (c->arrays[7] = sd_new_array("float32", n, shape->n_hidden, (void**)&c->hidden)) != NULL;
}

static void columns_free(columns* c) {
    for (int i = 0; i < N_COLUMNS; i++) Py_XDECREF(c->arrays[i]);
}

/* Move corrections [n], as many as there are at least, out of a ring. */
static void columns_fill(columns* c, sd_corrections* ring, int n) {
    const sd_correction_shape* shape = &ring->shape;
    for (ptrdiff_t i = 0; i < n; i++) {
        sd_correction one = {.before = c->before + i * shape->n_before,
                             .top = c->top + i * shape->n_top,
                             .log_probs = c->log_probs + i * shape->n_top,
                             .hidden = c->hidden + i * shape->n_hidden};
        sd_corrections_pop(ring, &one);
        c->depth[i] = one.depth;
        c->text[i] = one.text;
        c->position[i] = one.position;
        c->rest[i] = one.rest;
    }
}

static PyObject* take(PyObject* object, PyObject* ignored) {
    sd_corrections_object* self = sd_corrections_from(PyType_GetModuleState(Py_TYPE(object)), object);
    if (self == NULL) return NULL;
    int n = sd_corrections_count(&self->ring);
    columns c = {0};
    PyObject* result = NULL;
    int made = columns_new(&c, &self->ring.shape, n);
    /* NumPy may have let another thread take some. None does so from here on, with the lock held. */
    if (made && sd_corrections_count(&self->ring) < n) {
        columns_free(&c);
        return take(object, ignored);
    }
    if (made) {
        columns_fill(&c, &self->ring, n);
        result = Py_BuildValue("{sOsOsOsOsOsOsOsO}", "before", c.arrays[0], "depth", c.arrays[1], "text",
                               c.arrays[2], "position", c.arrays[3], "top", c.arrays[4], "log_probs",
                               c.arrays[5], "rest", c.arrays[6], "hidden", c.arrays[7]);
    }
    columns_free(&c);
    return result;
}

static PyObject* get_n(PyObject* object, void* closure) {
    (void)closure;
    sd_corrections_object* self = sd_corrections_from(PyType_GetModuleState(Py_TYPE(object)), object);
    return self ? PyLong_FromLong(sd_corrections_count(&self->ring)) : NULL;
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS,
     "take($self, /)\n--\n\nThe corrections since the last call, the oldest first, as arrays; none of them "
     "stays."},
    {0},
};

static PyGetSetDef properties[] = {
    {"n", get_n, NULL, "How many there are.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Corrections(n, n_before, n_top, n_hidden=0, everywhere=False)\n--\n\nWhere the target refused a "
     "draft's guesses."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_corrections_spec = {
    .name = "specdec._core.Corrections",
    .basicsize = sizeof(sd_corrections_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
