/* CachedText: keys and values of a text that a session has read, for texts with the same prefix. */
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
    .doc = "Keys and values of a text, made by Session.cached_text. Immutable.",
    .size = sizeof(sd_cached_text_object),
    .release = release,
    .references = {offsetof(sd_cached_text_object, model)},
    .getters = getters,
    .members = members,
};
