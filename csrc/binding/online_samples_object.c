/* OnlineSamples: positions where the target rejected draft tokens, for online trainers. */
#include "module.h"

static sd_online_samples* ring_of(PyObject* self) { return &((sd_online_samples_object*)self)->ring; }

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"n", "n_before", "n_top", "n_hidden", "everywhere", NULL};
    sd_online_sample_shape shape = {0};
    int n, everywhere = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iii|ip", names, &n, &shape.n_before, &shape.n_top,
                                     &shape.n_hidden, &everywhere))
        return -1;
    if (sd_passed(sd_online_samples_create(ring_of(self), &shape, n)) < 0) return -1;
    ring_of(self)->everywhere = everywhere;
    return 0;
}

static void release(PyObject* self) { sd_online_samples_free(ring_of(self)); }

/* The arrays of n samples. */
typedef struct columns {
    int32_t *before, *depth, *text, *position, *top;
    float *log_probs, *rest, *hidden;
} columns;

/* A new dict of them by name; NULL with an exception. */
static PyObject* columns_new(columns* c, const sd_online_sample_shape* shape, Py_ssize_t n) {
    const struct {
        const char *name, *dtype;
        int n_cols;
        void** to;
    } all[] = {{"before", "int32", shape->n_before, (void**)&c->before},
               {"depth", "int32", -1, (void**)&c->depth},
               {"text", "int32", -1, (void**)&c->text},
               {"position", "int32", -1, (void**)&c->position},
               {"top", "int32", shape->n_top, (void**)&c->top},
               {"log_probs", "float32", shape->n_top, (void**)&c->log_probs},
               {"rest", "float32", -1, (void**)&c->rest},
               {"hidden", "float32", shape->n_hidden, (void**)&c->hidden}};
    PyObject* dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof all / sizeof *all; i++) {
        PyObject* array = sd_new_array(all[i].dtype, n, all[i].n_cols, all[i].to);
        if (array == NULL || PyDict_SetItemString(dict, all[i].name, array) < 0) Py_CLEAR(dict);
        Py_XDECREF(array);
    }
    return dict;
}

/* Move n samples, which must exist, out of a ring. */
static void columns_fill(columns* c, sd_online_samples* ring, int n) {
    const sd_online_sample_shape* shape = &ring->shape;
    for (ptrdiff_t i = 0; i < n; i++) {
        sd_online_sample one = {.before = c->before + i * shape->n_before,
                                .top = c->top + i * shape->n_top,
                                .log_probs = c->log_probs + i * shape->n_top,
                                .hidden = c->hidden + i * shape->n_hidden};
        sd_online_samples_pop(ring, &one);
        c->depth[i] = one.depth;
        c->text[i] = one.text;
        c->position[i] = one.position;
        c->rest[i] = one.rest;
    }
}

static PyObject* take(PyObject* self, PyObject* ignored) {
    sd_online_samples* ring = ring_of(self);
    int n = sd_online_samples_count(ring);
    columns c;
    PyObject* dict = columns_new(&c, &ring->shape, n);
    if (dict == NULL) return NULL;
    /* Another thread may have taken some during NumPy calls. None can from here on, with the GIL held. */
    if (sd_online_samples_count(ring) < n) {
        Py_DECREF(dict);
        return take(self, ignored);
    }
    columns_fill(&c, ring, n);
    return dict;
}

static PyObject* get_n(PyObject* self, void* ignored) {
    return PyLong_FromLong(sd_online_samples_count(ring_of(self)));
}

static PyMethodDef methods[] = {
    {"take", take, METH_NOARGS, "take($self, /)\n--\n\n"},
    {0},
};

static PyGetSetDef properties[] = {
    {"n", get_n, NULL, "Number of samples.", NULL},
    {0},
};

const sd_type_spec sd_online_samples_type = {
    .doc = "OnlineSamples(n, n_before, n_top, n_hidden=0, everywhere=False)\n--\n\n",
    .size = sizeof(sd_online_samples_object),
    .make = make,
    .release = release,
    .methods = methods,
    .getters = properties,
};
