/* Corrections: where the target refused a draft's guesses, for whoever learns from that. */
#include "module.h"

static sd_corrections* ring_of(PyObject* self) { return &((sd_corrections_object*)self)->ring; }

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"n", "n_before", "n_top", "n_hidden", "everywhere", NULL};
    sd_correction_shape shape = {0};
    int n, everywhere = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iii|ip", names, &n, &shape.n_before, &shape.n_top,
                                     &shape.n_hidden, &everywhere))
        return -1;
    if (sd_passed(sd_corrections_create(ring_of(self), &shape, n)) < 0) return -1;
    ring_of(self)->everywhere = everywhere;
    return 0;
}

static void release(PyObject* self) { sd_corrections_free(ring_of(self)); }

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

static PyObject* take(PyObject* self, PyObject* ignored) {
    sd_corrections* ring = ring_of(self);
    int n = sd_corrections_count(ring);
    columns c = {0};
    PyObject* result = NULL;
    int made = columns_new(&c, &ring->shape, n);
    /* NumPy may have let another thread take some. None does so from here on, with the lock held. */
    if (made && sd_corrections_count(ring) < n) {
        columns_free(&c);
        return take(self, ignored);
    }
    if (made) {
        columns_fill(&c, ring, n);
        result = Py_BuildValue("{sOsOsOsOsOsOsOsO}", "before", c.arrays[0], "depth", c.arrays[1], "text",
                               c.arrays[2], "position", c.arrays[3], "top", c.arrays[4], "log_probs",
                               c.arrays[5], "rest", c.arrays[6], "hidden", c.arrays[7]);
    }
    columns_free(&c);
    return result;
}

static PyObject* get_n(PyObject* self, void* ignored) {
    return PyLong_FromLong(sd_corrections_count(ring_of(self)));
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS, "take($self, /)\n--\n\n"},
    {0},
};

static PyGetSetDef properties[] = {
    {"n", get_n, NULL, "How many there are.", NULL},
    {0},
};

const sd_kind sd_corrections_kind = {
    .doc = "Corrections(n, n_before, n_top, n_hidden=0, everywhere=False)\n--\n\n",
    .size = sizeof(sd_corrections_object),
    .make = make,
    .release = release,
    .methods = methods,
    .getters = properties,
};
