/* CachedText: keys and values of a text that a session has read, for texts with the same prefix. */
#include "cache_image.h"
#include "forward.h"
#include "module.h"

static const sd_cache* cache_of(PyObject* self) { return &((sd_cached_text_object*)self)->cache; }

static void release(PyObject* self) { sd_cache_free(&((sd_cached_text_object*)self)->cache); }

PyObject* sd_cached_text_new(sd_model_object* model, const sd_cache* cache) {
    PyObject* object = sd_object_new((PyObject*)model, SD_TYPE_cached_text);
    if (object == NULL) return NULL;
    sd_cached_text_object* self = (sd_cached_text_object*)object;
    self->model = Py_NewRef((PyObject*)model);
    sd_status status;
    SD_WITHOUT_GIL(status = sd_cache_copy(&self->cache, cache));
    self->n_bytes = sd_cache_bytes(&self->cache);
    return sd_given(object, status);
}

/* Read the numbers of CachedText.shape and the captures. Returns 0, or -1 with an exception. */
static int shape_from(PyObject* numbers, PyObject* layers, const sd_config* config, sd_image_shape* shape) {
    int32_t* values;
    int n, result = sd_ids_from(numbers, "shape", &values, &n);
    if (result == 0 && (n < 4 || n > 4 + SD_MOST_SNAPSHOTS))
        result = sd_refuse("shape has %d numbers, expected 4 to %d", n, 4 + SD_MOST_SNAPSHOTS);
    if (result == 0)
        *shape = SD_MAKE(sd_image_shape, .n_tree = values[0], .n_prompt = values[1], .n_low = values[2],
                         .n_window_low = values[3], .n_snapshots = n - 4);
    for (int i = 4; result == 0 && i < n; i++) shape->snapshots[i - 4] = values[i];
    PyMem_Free(values);
    if (result < 0 || sd_ids_from(layers, "captures", &values, &n) < 0) return -1;
    for (int i = 0; result == 0 && i < n; i++)
        result = sd_passed(sd_captures_add(&shape->captures, values[i], config));
    PyMem_Free(values);
    return result;
}

/* Lay out the cache. Returns 0, or -1 with an exception. */
static int restore(sd_cached_text_object* self, PyObject* tokens, PyObject* source,
                   const sd_image_shape* shape) {
    const sd_model* model = ((sd_model_object*)self->model)->model;
    sd_encoded* encoded = NULL;
    int32_t *ids = NULL, *of_source = NULL;
    int n, n_source = 0;
    int result = sd_ids_from(tokens, "tokens", &ids, &n);
    if (result == 0) result = sd_optional_ids_from(source, "source", &of_source, &n_source);
    if (result == 0 && (of_source != NULL) != (model->encoder != NULL))
        result = sd_refuse("source is %s, expected %s", of_source ? "given" : "None",
                           model->encoder ? "the ids of one" : "None for a model without an encoder");
    sd_status status = SD_OK;
    if (result == 0 && of_source != NULL) {
        status = sd_encoder_check(model, of_source, n_source);
        if (status == SD_OK) status = sd_encoded_create(model, of_source, n_source, &encoded);
    }
    if (result == 0 && status == SD_OK)
        status = sd_image_restore(&self->cache, model, shape, ids, n, encoded);
    sd_encoded_release(encoded);
    PyMem_Free(ids);
    PyMem_Free(of_source);
    return result == 0 ? sd_passed(status) : result;
}

/* Fill the cache with an image in pieces. Returns 0, or -1 with an exception. */
static int fill(sd_cached_text_object* self, PyObject* pieces) {
    size_t at = 0, size = sd_image_bytes(&self->cache);
    PyObject *items = PyObject_GetIter(pieces), *item;
    if (items == NULL) return -1;
    int result = 0;
    while (result == 0 && (item = PyIter_Next(items)) != NULL) {
        Py_buffer view = {0}; /* untouched by PyObject_GetBuffer if an item has no buffer */
        result = PyObject_GetBuffer(item, &view, PyBUF_SIMPLE);
        if (result == 0 && (size_t)view.len > size - at)
            result = sd_set_error(PyExc_ValueError, "the image has more than %zu bytes", size);
        else if (result == 0)
            SD_WITHOUT_GIL(sd_image_write(&self->cache, at, (size_t)view.len, view.buf));
        if (view.obj != NULL) {
            at += (size_t)view.len;
            PyBuffer_Release(&view);
        }
        Py_DECREF(item);
    }
    Py_DECREF(items);
    if (result < 0 || PyErr_Occurred()) return -1;
    if (at == size) return 0;
    return sd_set_error(PyExc_ValueError, "the image has %zu bytes, expected %zu", at, size);
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model", "tokens", "source", "captures", "shape", "pieces", NULL};
    sd_cached_text_object* self = (sd_cached_text_object*)object;
    PyObject *model, *tokens, *source, *captures, *numbers, *pieces;
    sd_image_shape shape = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO", names, &model, &tokens, &source, &captures,
                                     &numbers, &pieces))
        return -1;
    const sd_model_object* of = sd_model_from(model, "model");
    if (of == NULL) return -1;
    self->model = Py_NewRef(model);
    if (shape_from(numbers, captures, &of->model->config, &shape) < 0) return -1;
    if (restore(self, tokens, source, &shape) < 0 || fill(self, pieces) < 0) return -1;
    self->n_bytes = sd_cache_bytes(&self->cache);
    return 0;
}

static PyObject* image(PyObject* self, PyObject* args) {
    const sd_cache* cache = cache_of(self);
    Py_ssize_t first, n;
    if (!PyArg_ParseTuple(args, "nn", &first, &n)) return NULL;
    size_t size = sd_image_bytes(cache);
    if (first < 0 || n < 0 || (size_t)first > size || (size_t)n > size - (size_t)first)
        return PyErr_Format(PyExc_ValueError, "bytes [%zd, %zd + %zd) of the image do not exist", first,
                            first, n);
    PyObject* bytes = PyBytes_FromStringAndSize(NULL, n);
    if (bytes != NULL)
        SD_WITHOUT_GIL(sd_image_read(cache, (size_t)first, (size_t)n, PyBytes_AS_STRING(bytes)));
    return bytes;
}

static PyObject* get_shape(PyObject* self, void* ignored) {
    const sd_cache* c = cache_of(self);
    int32_t values[4 + SD_MOST_SNAPSHOTS] = {c->n_tree, c->n_prompt, c->n_low, c->n_window_low};
    for (int i = 0; i < c->snapshots.n; i++) values[4 + i] = c->snapshots.taken[i]->n;
    return sd_tuple_of_ints(values, 4 + c->snapshots.n);
}

static PyObject* get_image_sizes(PyObject* self, void* ignored) {
    const sd_cache* c = cache_of(self);
    return Py_BuildValue("nn", (Py_ssize_t)sd_image_panel_bytes(c), (Py_ssize_t)sd_image_bytes(c));
}

static PyObject* get_tokens(PyObject* self, void* ignored) {
    const sd_cache* cache = cache_of(self);
    return sd_array_of("int32", cache->tokens, sizeof *cache->tokens, cache->n_committed, -1);
}

static PyObject* get_source(PyObject* self, void* ignored) {
    const sd_encoded* encoded = cache_of(self)->encoded;
    if (encoded == NULL) return Py_NewRef(Py_None);
    return sd_array_of("int32", encoded->source, sizeof *encoded->source, encoded->n, -1);
}

static PyObject* get_captures(PyObject* self, void* ignored) {
    return sd_tuple_of_ints(cache_of(self)->captures.layers, cache_of(self)->captures.n);
}

PyObject* sd_snapshots_of(const sd_cache* cache, int low) {
    const sd_snapshots* s = &cache->snapshots;
    int positions[SD_MOST_SNAPSHOTS], n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->taken[i]->n >= low) positions[n++] = s->taken[i]->n;
    return sd_tuple_of_ints(positions, n);
}

static PyObject* get_snapshots(PyObject* self, void* ignored) {
    return sd_snapshots_of(cache_of(self), cache_of(self)->n_window_low);
}

static PyGetSetDef getters[] = {
    {"tokens", get_tokens, NULL, "The token ids of the text [n_tokens], int32; a copy.", NULL},
    {"source", get_source, NULL,
     "The ids of the text's source, int32, a copy; None for a model without an encoder.", NULL},
    {"captures", get_captures, NULL, "Layers of the hidden states kept of each token.", NULL},
    {"snapshots", get_snapshots, NULL, "Fewer tokens than n_low that another text can begin with, ascending.",
     NULL},
    {"shape", get_shape, NULL, "Numbers that its image lacks.", NULL},
    {"image_sizes", get_image_sizes, NULL, "Bytes of a panel of 32 tokens, and of the image.", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"image", image, METH_VARARGS, "image($self, first, n, /)\n--\n\n"},
    {0},
};

static PyMemberDef members[] = {
    SD_MEMBER("model", T_OBJECT, sd_cached_text_object, model, "The model of the keys and values."),
    SD_MEMBER("n_bytes", T_PYSSIZET, sd_cached_text_object, n_bytes, "Memory held."),
    SD_MEMBER("n_low", T_INT, sd_cached_text_object, cache.n_low,
              "Least tokens that another text must share to begin with it."),
    {0},
};

const sd_type_spec sd_cached_text_type = {
    .doc = "CachedText(model, tokens, source, captures, shape, pieces)\n--\n\n",
    .size = sizeof(sd_cached_text_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_cached_text_object, model)},
    .methods = methods,
    .getters = getters,
    .members = members,
};
