/* Model: immutable packed weights. */
#include <string.h>

#include "adapter.h"
#include "forward.h"
#include "interrupt.h"
#include "library.h"
#include "memory.h"
#include "module.h"

static sd_status set_tensor(void* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                            int n_threads) {
    return sd_model_set(model, name, source, n_rows, n_cols, n_threads);
}

int sd_format_from(const char* name, const char* argument, sd_format* format) {
    *format = sd_word_index(name, sd_format_names, SD_N_OWN_FORMATS);
    if (*format < SD_N_OWN_FORMATS) return 0;
    return sd_refuse("%s is \"%s\", expected \"f32\", \"bf16\", \"int8\" or \"int4\"", argument, name);
}

int sd_engine_from(const char* name, const char* argument, sd_engine* engine) {
    *engine = sd_word_index(name, sd_engine_names, SD_N_ENGINES);
    if (*engine < SD_N_ENGINES) return 0;
    return sd_refuse("%s is \"%s\", expected \"rows\", \"tiles\" or \"blas\"", argument, name);
}

static int numbers_from(const char* dtype, const char* cache_dtype, const char* prefill,
                        sd_numbers* numbers) {
    if (sd_engine_from(prefill, "prefill", &numbers->prefill) < 0) return -1;
    if (sd_format_from(dtype, "dtype", &numbers->weights) < 0) return -1;
    numbers->cache = sd_word_index(cache_dtype, sd_format_names, SD_FORMAT_INT4);
    if (numbers->cache < SD_FORMAT_INT4) return 0;
    return sd_refuse("cache_dtype is \"%s\", expected \"f32\", \"bf16\" or \"int8\"", cache_dtype);
}

/* Read the blocks of packed weights, one each for a model and its encoder. */
static int blocks_from(PyObject* given, int n, Py_buffer views[2], sd_memory_block blocks[2]) {
    PyObject* items = PySequence_Tuple(given);
    if (items == NULL) return -1;
    int result = 0;
    if (PyTuple_GET_SIZE(items) != n)
        result = sd_passed(
            sd_fail(SD_ERR_SHAPE, "packed has %zd blocks, expected %d", PyTuple_GET_SIZE(items), n));
    for (int i = 0; i < n && result == 0; i++) {
        result = PyObject_GetBuffer(PyTuple_GET_ITEM(items, i), &views[i], PyBUF_WRITABLE);
        blocks[i] = (sd_memory_block){views[i].buf, (size_t)views[i].len};
    }
    Py_DECREF(items);
    return result;
}

/* Read the formats {name: format} of a configuration's tensors, [sd_tensor_count], in memory of the caller
 * (PyMem_Free), also after a failure; NULL without any. Returns 0, or -1 with an exception. */
static int formats_from(PyObject* mapping, const sd_config* config, sd_format** formats) {
    *formats = NULL;
    if (mapping == Py_None) return 0;
    PyObject *dict = PyDict_New(), *key, *value; /* a private copy */
    int n = sd_tensor_count(config), failed = dict == NULL || PyDict_Update(dict, mapping) < 0;
    if (!failed && (*formats = PyMem_Malloc((size_t)n * sizeof **formats)) == NULL)
        failed = PyErr_NoMemory() == NULL;
    for (int i = 0; !failed && i < n; i++) (*formats)[i] = SD_N_FORMATS;
    for (Py_ssize_t at = 0; !failed && PyDict_Next(dict, &at, &key, &value);) {
        const char *name = PyUnicode_AsUTF8(key), *format = name ? PyUnicode_AsUTF8(value) : NULL;
        sd_tensor_spec spec;
        int i = format ? sd_tensor_find(config, name, &spec) : -1;
        int f = format ? sd_word_index(format, sd_format_names, SD_N_FORMATS) : 0;
        if (format && i < 0)
            sd_refuse("formats: tensor %.64s is not part of a model of this configuration", name);
        if (i >= 0 && f == SD_N_FORMATS)
            sd_refuse("formats: tensor %s has \"%.16s\", which is not a format", name, format);
        failed = i < 0 || f == SD_N_FORMATS;
        if (!failed) (*formats)[i] = (sd_format)f;
    }
    Py_XDECREF(dict);
    return failed ? -1 : 0;
}

/* Make the model of packed blocks, or an empty one that has rows of its target's head, or all of them
 * (None). Returns 0, or -1 with an exception. */
static int create(sd_model_object* self, const sd_config* c, sd_numbers numbers, PyObject* head_rows,
                  PyObject* packed) {
    sd_memory_block blocks[2];
    const sd_model* target = self->target ? ((sd_model_object*)self->target)->model : NULL;
    int32_t* rows = NULL;
    int n = 0, result = 0;
    if (numbers.prefill == SD_ENGINE_BLAS && sd_passed(sd_library_load()) < 0) return -1;
    if (packed != Py_None) {
        if (blocks_from(packed, c->encoder ? 2 : 1, self->packed, blocks) < 0) return -1;
        return sd_passed(sd_model_adopt(c, numbers, blocks, &self->model));
    }
    if (sd_optional_ids_from(head_rows, "head_rows", &rows, &n) < 0) return -1;
    if (rows != NULL && n != c->n_draft_tokens)
        result = sd_refuse("there are %d head_rows, expected n_draft_tokens = %d", n, c->n_draft_tokens);
    if (result == 0) result = sd_passed(sd_model_create(c, numbers, (sd_shared){target, rows}, &self->model));
    PyMem_Free(rows);
    return result;
}

/* Set the tensors of an empty model. Returns 0, or -1 with an exception. */
static int fill(sd_model_object* self, PyObject* tensors, int n_threads) {
    if (sd_set_tensors(tensors, set_tensor, self->model, n_threads) < 0) return -1;
    return sd_passed(sd_model_finish(self->model));
}

static void note_figures(sd_model_object* self) {
    const sd_model* model = self->model;
    long long n = 0;
    for (int i = 0; i < sd_tensor_count(&model->config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        n += (long long)spec.n_rows * (spec.n_cols > 0 ? spec.n_cols : 1);
    }
    const char* dtype = model->mixed ? "file" : sd_format_names[model->numbers.weights];
    self->figures = (sd_weights_figures){dtype, sd_model_bytes(model), n};
    self->cache_dtype = sd_format_names[model->numbers.cache];
    self->prefill = sd_engine_names[model->numbers.prefill];
    self->layout = sd_model_layout(model);
    self->prompt_slice = sd_prompt_slice(model);
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"config", "tensors", "dtype",   "cache_dtype", "prefill", "n_threads",
                            "target", "packed",  "formats", "head_rows",   NULL};
    sd_model_object* self = (sd_model_object*)object;
    PyObject *mapping, *tensors, *target = Py_None, *packed = Py_None, *formats = Py_None;
    PyObject* head_rows = Py_None;
    sd_format* by_tensor = NULL;
    const char *dtype = "f32", *cache_dtype = "f32", *prefill = "rows";
    int n_threads = 1;
    sd_numbers numbers = {0};
    sd_config c = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$sssiOOOO", names, &mapping, &tensors, &dtype,
                                     &cache_dtype, &prefill, &n_threads, &target, &packed, &formats,
                                     &head_rows))
        return -1;
    if (target != Py_None && sd_model_from(target, "target") == NULL) return -1;
    if (target != Py_None) self->target = Py_NewRef(target);
    if (numbers_from(dtype, cache_dtype, prefill, &numbers) < 0) return -1;
    if ((self->config = PyDict_New()) == NULL || PyDict_Update(self->config, mapping) < 0) return -1;
    if (sd_config_from(self->config, &c) < 0) return -1;
    int result = sd_config_check(&c) == SD_OK ? formats_from(formats, &c, &by_tensor) : 0;
    numbers.by_tensor = by_tensor;
    if (result == 0) result = create(self, &c, numbers, head_rows, packed);
    if (result == 0 && packed == Py_None) result = fill(self, tensors, n_threads);
    if (result == 0) note_figures(self);
    PyMem_Free(by_tensor);
    sd_config_free(&c);
    return result;
}

static void release(PyObject* self) {
    sd_model_free(((sd_model_object*)self)->model);
    sd_spares_drop(); /* memory that its sessions have freed */
}

/* ------------------------------------------------------------------------------ attributes */

static const sd_model* model_of(PyObject* self) { return ((sd_model_object*)self)->model; }

static PyObject* get_config(PyObject* self, void* ignored) {
    return PyDict_Copy(((sd_model_object*)self)->config);
}

static PyObject* get_base(PyObject* self, void* ignored) {
    const sd_model* model = model_of(self);
    return Py_NewRef(model->base && !model->windowed ? ((sd_model_object*)self)->target : Py_None);
}

static PyObject* matrix(PyObject* self, PyObject* argument) {
    const sd_model* model = model_of(self);
    const char* name = PyUnicode_AsUTF8(argument);
    if (name == NULL) return NULL;
    sd_tensor_spec spec = {0};
    if (sd_tensor_find(&model->config, name, &spec) < 0 || spec.n_cols == 0)
        return PyErr_Format(PyExc_ValueError, "tensor %s: not a matrix of this model", name);
    float* rows;
    PyObject* array = sd_new_array("float32", spec.n_rows, spec.n_cols, (void**)&rows);
    if (array == NULL) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_model_rows(model, name, 0, spec.n_rows, rows));
    return sd_given(array, status);
}

static sd_status table_rows(const sd_table* table, float* rows) {
    sd_status status = SD_OK;
    for (int r = 0; r < table->n_rows && status == SD_OK; r++) {
        sd_table_row(table, r, rows + (ptrdiff_t)r * table->n_cols);
        status = sd_interrupted();
    }
    return status;
}

static PyObject* token_table(PyObject* self, PyObject* ignored) {
    const sd_table* table = &model_of(self)->token_embedding;
    float* rows;
    PyObject* array = sd_new_array("float32", table->n_rows, table->n_cols, (void**)&rows);
    if (array == NULL) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = table_rows(table, rows));
    return sd_given(array, status);
}

static PyObject* encode(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", "n_threads", NULL};
    const sd_model* model = model_of(self);
    PyObject *argument, *array = NULL;
    int n_threads = 1, n;
    int32_t* ids;
    float* rows;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$i", names, &argument, &n_threads)) return NULL;
    if (model->encoder == NULL) return PyErr_Format(PyExc_ValueError, "the model has no encoder");
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_status status = sd_encoder_check(model, ids, n);
    if (status == SD_OK) array = sd_new_array("float32", n, model->encoder->config.d_model, (void**)&rows);
    if (array != NULL)
        SD_WITHOUT_GIL(status = sd_encoder_output(model, ids, n, n_threads, "the model", rows));
    PyMem_Free(ids);
    return sd_given(array, status);
}

static PyObject* size_at(const void* blocks, int i) {
    return PyLong_FromSize_t(((const sd_memory_block*)blocks)[i].size);
}

/* Compute the digest of a model, which covers the one that it builds on or shares with, once. Returns 0, or
 * -1 with an exception. */
static int find_digest(sd_model_object* self) {
    uint64_t found = 0;
    sd_status status = SD_OK;
    if (self->has_digest) return 0;
    if (self->target != NULL) {
        if (find_digest((sd_model_object*)self->target) < 0) return -1;
        found = ((sd_model_object*)self->target)->digest;
    }
    if (!self->model->windowed) SD_WITHOUT_GIL(status = sd_model_digest(self->model, &found));
    if (sd_passed(status) < 0) return -1;
    self->digest = found;
    self->has_digest = 1;
    return 0;
}

static PyObject* digest(PyObject* object, PyObject* ignored) {
    sd_model_object* self = (sd_model_object*)object;
    return find_digest(self) < 0 ? NULL : PyLong_FromUnsignedLongLong(self->digest);
}

static PyObject* block_sizes(PyObject* self, PyObject* ignored) {
    sd_memory_block blocks[2];
    return sd_tuple_from(sd_list_of(sd_model_blocks(model_of(self), blocks), size_at, blocks));
}

static PyObject* block(PyObject* self, PyObject* args) {
    sd_memory_block blocks[2];
    Py_ssize_t first, n;
    int i;
    if (!PyArg_ParseTuple(args, "inn", &i, &first, &n)) return NULL;
    int n_blocks = sd_model_blocks(model_of(self), blocks);
    if (i < 0 || i >= n_blocks || first < 0 || n < 0 || (size_t)first > blocks[i].size ||
        (size_t)n > blocks[i].size - (size_t)first)
        return PyErr_Format(PyExc_ValueError, "bytes [%zd, %zd + %zd) of block %d do not exist", first, first,
                            n, i);
    return PyBytes_FromStringAndSize((const char*)blocks[i].at + first, n);
}

/* --------------------------------------------------------------------------------------- adapted models */

static sd_status set_low_rank(void* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                              int n_threads) {
    return sd_model_set_low_rank(model, name, source, n_rows, n_cols, n_threads);
}

/* The tensors {name: rank} of an adapter [*n], in new PyMem memory; names borrowed from the private dict.
 * NULL with an exception. */
static sd_adapted_tensor* ranks_from(PyObject* dict, int* n) {
    PyObject *key, *value;
    sd_adapted_tensor* tensors = PyMem_Calloc((size_t)PyDict_GET_SIZE(dict) + 1, sizeof *tensors);
    if (tensors == NULL) PyErr_NoMemory();
    *n = 0;
    for (Py_ssize_t at = 0; tensors != NULL && PyDict_Next(dict, &at, &key, &value);) {
        const char* name = PyUnicode_AsUTF8(key);
        int exact = name != NULL && PyLong_CheckExact(value);
        if (name != NULL && !exact) PyErr_SetString(PyExc_TypeError, "ranks: expected integers");
        long rank = exact ? PyLong_AsLong(value) : -1;
        if (PyErr_Occurred()) {
            PyMem_Free(tensors);
            return NULL;
        }
        tensors[(*n)++] = (sd_adapted_tensor){name, rank < 0 || rank > INT32_MAX ? 0 : (int)rank};
    }
    return tensors;
}

/* Fill a new object with a model over that of its target. Returns 0, or -1 with an exception. */
static int adapt(sd_model_object* self, PyObject* ranks, PyObject* tensors, int n_threads) {
    const sd_model_object* base = (sd_model_object*)self->target;
    int n = 0;
    if ((self->config = PyDict_Copy(base->config)) == NULL) return -1;
    sd_adapted_tensor* listed = ranks_from(ranks, &n);
    if (listed == NULL) return -1;
    int result = sd_passed(sd_model_adapt(base->model, listed, n, &self->model));
    PyMem_Free(listed);
    if (result < 0 || sd_set_tensors(tensors, set_low_rank, self->model, n_threads) < 0) return -1;
    if (sd_passed(sd_model_finish_adapted(self->model)) < 0) return -1;
    note_figures(self);
    return 0;
}

static PyObject* adapted(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ranks", "tensors", "n_threads", NULL};
    PyObject *mapping, *tensors, *ranks = PyDict_New(), *made = NULL;
    int n_threads = 1;
    if (ranks != NULL &&
        PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$i", names, &mapping, &tensors, &n_threads) &&
        PyDict_Update(ranks, mapping) == 0 && (made = sd_object_new(base, SD_TYPE_model)) != NULL) {
        ((sd_model_object*)made)->target = Py_NewRef(base);
        if (adapt((sd_model_object*)made, ranks, tensors, n_threads) < 0) Py_CLEAR(made);
    }
    Py_XDECREF(ranks);
    return made;
}

/* The configuration of a windowed model: a new dict, NULL with an exception. */
static PyObject* windowed_config(const sd_model_object* of, const sd_config* c) {
    PyObject *config = PyDict_Copy(of->config), *windows = PyList_New(c->n_layer);
    int failed = config == NULL || windows == NULL;
    for (int i = 0; !failed && i < c->n_layer; i++) {
        PyObject* window = PyLong_FromLong(c->layers[i].window);
        failed = window == NULL || PyList_SetItem(windows, i, window) < 0;
    }
    if (!failed) failed = PyDict_SetItemString(config, "windows", windows) < 0;
    Py_XDECREF(windows);
    if (failed) Py_CLEAR(config);
    return config;
}

static PyObject* windowed(PyObject* self, PyObject* args) {
    const sd_model_object* of = (sd_model_object*)self;
    int window;
    if (!PyArg_ParseTuple(args, "i", &window)) return NULL;
    PyObject* object = sd_object_new(self, SD_TYPE_model);
    if (object == NULL) return NULL;
    sd_model_object* made = (sd_model_object*)object;
    made->target = Py_NewRef(self);
    if (sd_passed(sd_model_windowed(of->model, window, &made->model)) < 0 ||
        (made->config = windowed_config(of, &made->model->config)) == NULL)
        Py_CLEAR(object);
    else
        note_figures(made);
    return object;
}

static PyMethodDef methods[] = {
    {"adapted", SD_KEYWORDS(adapted), "adapted($self, ranks, tensors, *, n_threads=1)\n--\n\n"},
    {"block_sizes", block_sizes, METH_NOARGS, "block_sizes($self, /)\n--\n\n"},
    {"block", block, METH_VARARGS, "block($self, i, first, n, /)\n--\n\n"},
    {"digest", digest, METH_NOARGS, "digest($self, /)\n--\n\n"},
    {"encode", SD_KEYWORDS(encode), "encode($self, ids, *, n_threads=1)\n--\n\n"},
    {"matrix", matrix, METH_O, "matrix($self, name, /)\n--\n\n"},
    {"token_table", token_table, METH_NOARGS, "token_table($self, /)\n--\n\n"},
    {"windowed", windowed, METH_VARARGS, "windowed($self, window, /)\n--\n\n"},
    {0},
};

static PyGetSetDef getters[] = {
    {"base", get_base, NULL, "The model that an adapted model builds on; None: not adapted.", NULL},
    {"config", get_config, NULL, "Copy of the canonical configuration.", NULL},
    {0},
};

#define MEMBER(name, type, doc) SD_MEMBER(#name, type, sd_model_object, name, doc)
static PyMemberDef members[] = {
    SD_FIGURES(sd_model_object),
    MEMBER(cache_dtype, T_STRING, "Number format of keys and values."),
    MEMBER(prefill, T_STRING, "Engine of the products of prompts and sources."),
    MEMBER(layout, T_ULONGLONG, "Layout of its blocks, as a number."),
    MEMBER(prompt_slice, T_INT, "Tokens of prompts that a forward pass reads."),
    {0},
};

const sd_type_spec sd_model_type = {
    .doc =
        "Model(config, tensors, *, dtype='f32', cache_dtype='f32', prefill='rows', n_threads=1, target=None, "
        "packed=None, formats=None, head_rows=None)\n--\n\n",
    .size = sizeof(sd_model_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_model_object, config), offsetof(sd_model_object, target)},
    .views = offsetof(sd_model_object, packed),
    .n_views = 2,
    .methods = methods,
    .getters = getters,
    .members = members,
};
