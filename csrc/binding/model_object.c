/* Model: immutable packed weights. */
#include <string.h>

#include "adapter.h"
#include "config_dict.h"
#include "forward.h"
#include "interrupt.h"
#include "library.h"
#include "memory.h"
#include "module.h"
#include "tensor_arguments.h"
#include "weights_getters.h"

static sd_status set_tensor(void* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                            int n_threads) {
    return sd_model_set(model, name, source, n_rows, n_cols, n_threads);
}

int sd_format_from(const char* name, const char* argument, sd_format* format) {
    for (int f = 0; f < SD_N_OWN_FORMATS; f++) {
        if (strcmp(sd_format_names[f], name) != 0) continue;
        *format = f;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s is \"%s\", expected \"f32\", \"bf16\", \"int8\" or \"int4\"", argument,
                 name);
    return -1;
}

int sd_engine_from(const char* name, const char* argument, sd_engine* engine) {
    for (int e = 0; e < SD_N_ENGINES; e++) {
        if (strcmp(sd_engine_names[e], name) != 0) continue;
        *engine = e;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s is \"%s\", expected \"rows\", \"tiles\" or \"blas\"", argument, name);
    return -1;
}

static int numbers_from(const char* dtype, const char* cache_dtype, const char* prefill,
                        sd_numbers* numbers) {
    if (sd_engine_from(prefill, "prefill", &numbers->prefill) < 0) return -1;
    if (sd_format_from(dtype, "dtype", &numbers->weights) < 0) return -1;
    if (strcmp(cache_dtype, "f32") != 0 && strcmp(cache_dtype, "bf16") != 0) {
        PyErr_Format(PyExc_ValueError, "cache_dtype is \"%s\", expected \"f32\" or \"bf16\"", cache_dtype);
        return -1;
    }
    return sd_format_from(cache_dtype, "cache_dtype", &numbers->cache);
}

/* The blocks of packed weights that a caller gives, one for each of a model and its encoder. */
static int blocks_from(PyObject* given, int n, Py_buffer views[2], sd_memory_block blocks[2]) {
    PyObject* items = PySequence_Tuple(given);
    if (items == NULL) return -1;
    int status = -1;
    if (PyTuple_GET_SIZE(items) != n) {
        PyErr_Format(PyExc_ValueError, "packed has %zd blocks, expected %d", PyTuple_GET_SIZE(items), n);
        goto end;
    }
    for (int i = 0; i < n; i++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(items, i), &views[i], PyBUF_WRITABLE) < 0) goto end;
        blocks[i] = (sd_memory_block){views[i].buf, (size_t)views[i].len};
    }
    status = 0;
end:
    Py_DECREF(items);
    return status;
}

static void release_blocks(Py_buffer views[2]) {
    for (int i = 0; i < 2; i++)
        if (views[i].obj != NULL) PyBuffer_Release(&views[i]);
}

/* The formats {name: format} of tensors of a configuration, [sd_tensor_count], in new memory of PyMem; NULL
 * without any. Returns 0, or -1 with an exception. */
static int formats_from(PyObject* mapping, const sd_config* config, sd_format** formats) {
    *formats = NULL;
    if (mapping == Py_None) return 0;
    PyObject *dict = PyDict_New(), *key, *value; /* a copy, which no caller has */
    int n = sd_tensor_count(config), failed = dict == NULL || PyDict_Update(dict, mapping) < 0;
    if (!failed && (*formats = PyMem_Malloc((size_t)n * sizeof **formats)) == NULL)
        failed = PyErr_NoMemory() == NULL;
    for (int i = 0; !failed && i < n; i++) (*formats)[i] = SD_N_FORMATS;
    for (Py_ssize_t at = 0; !failed && PyDict_Next(dict, &at, &key, &value);) {
        const char *name = PyUnicode_AsUTF8(key), *format = name ? PyUnicode_AsUTF8(value) : NULL;
        sd_tensor_spec spec;
        int i = format ? sd_tensor_find(config, name, &spec) : -1, f = 0;
        while (format && f < SD_N_FORMATS && strcmp(sd_format_names[f], format) != 0) f++;
        if (format && i < 0)
            sd_refuse("formats: tensor %.64s is not part of a model of this configuration", name);
        if (i >= 0 && f == SD_N_FORMATS)
            sd_refuse("formats: that of tensor %s is \"%.16s\", which is none", name, format);
        failed = i < 0 || f == SD_N_FORMATS;
        if (!failed) (*formats)[i] = (sd_format)f;
    }
    Py_XDECREF(dict);
    if (!failed) return 0;
    PyMem_Free(*formats);
    *formats = NULL;
    return -1;
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"config",    "tensors", "dtype",  "cache_dtype", "prefill",
                            "n_threads", "target",  "packed", "formats",     NULL};
    sd_model_object* self = (sd_model_object*)base;
    PyObject *mapping, *tensors, *given = Py_None, *packed = Py_None, *formats = Py_None;
    sd_format* by_tensor = NULL;
    Py_buffer views[2] = {0};
    sd_memory_block blocks[2];
    const char *dtype = "f32", *cache_dtype = "f32", *prefill = "rows";
    int n_threads = 1;
    sd_numbers numbers = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$sssiOOO", names, &mapping, &tensors, &dtype,
                                     &cache_dtype, &prefill, &n_threads, &given, &packed, &formats))
        return -1;
    const sd_model_object* target = NULL;
    if (given != Py_None &&
        (target = sd_model_from(PyType_GetModuleState(Py_TYPE(base)), given, "target")) == NULL)
        return -1;
    if (numbers_from(dtype, cache_dtype, prefill, &numbers) < 0) return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->model != NULL, "Model") < 0) return -1;
    sd_model* model = NULL;
    PyObject* config = PyDict_New();
    sd_config c = {0};
    sd_status status;
    if (config == NULL || PyDict_Update(config, mapping) < 0) goto fail;
    if (sd_config_from(config, &c) < 0) goto fail;
    if (sd_config_check(&c) == SD_OK && formats_from(formats, &c, &by_tensor) < 0) goto fail;
    numbers.by_tensor = by_tensor;
    if (numbers.prefill == SD_ENGINE_BLAS && (status = sd_library_load()) != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    if (packed != Py_None) {
        if (blocks_from(packed, c.encoder ? 2 : 1, views, blocks) < 0) goto fail;
        status = sd_model_adopt(&c, numbers, blocks, &model);
    } else {
        status = sd_model_create(&c, numbers, target ? target->model : NULL, &model);
    }
    if (status != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    if (packed == Py_None) {
        if (sd_set_tensors(tensors, set_tensor, model, n_threads) < 0) goto fail;
        if ((status = sd_model_finish(model)) != SD_OK) {
            sd_raise(status);
            goto fail;
        }
    }
    PyMem_Free(by_tensor);
    sd_config_free(&c);
    self->config = config;
    self->target = target ? Py_NewRef(given) : NULL;
    self->model = model;
    memcpy(self->packed, views, sizeof views);
    sd_exclusive_leave(&self->exclusive);
    return 0;
fail:
    Py_XDECREF(config);
    PyMem_Free(by_tensor);
    sd_config_free(&c);
    sd_model_free(model);
    release_blocks(views);
    sd_exclusive_leave(&self->exclusive);
    return -1;
}

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT(((sd_model_object*)base)->config);
    Py_VISIT(((sd_model_object*)base)->target);
    return 0;
}

static void dealloc(PyObject* base) {
    sd_model_object* self = (sd_model_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    sd_model_free(self->model);
    sd_spares_drop(); /* what its sessions have freed */
    release_blocks(self->packed);
    Py_CLEAR(self->config);
    Py_CLEAR(self->target);
    type->tp_free(base);
    Py_DECREF(type);
}

sd_model_object* sd_model_from(const sd_module_state* state, PyObject* object, const char* name) {
    if (!PyObject_TypeCheck(object, state->model_type)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a specdec._core.Model", name);
        return NULL;
    }
    sd_model_object* model = (sd_model_object*)object;
    if (model->model == NULL) {
        PyErr_Format(PyExc_ValueError, "%s: the model has not been initialised", name);
        return NULL;
    }
    return model;
}

static PyObject* get_config(PyObject* self, void* closure) {
    (void)closure;
    PyObject* config = ((sd_model_object*)self)->config;
    return config ? PyDict_Copy(config) : PyDict_New();
}

static sd_weights_figures figures(PyObject* self) {
    const sd_model* model = ((sd_model_object*)self)->model;
    if (model == NULL) return (sd_weights_figures){0};
    long long n = 0;
    for (int i = 0; i < sd_tensor_count(&model->config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        n += (long long)spec.n_rows * (spec.n_cols > 0 ? spec.n_cols : 1);
    }
    const char* dtype = model->mixed ? "file" : sd_format_names[model->numbers.weights];
    return (sd_weights_figures){1, dtype, sd_model_bytes(model), n};
}

static sd_weights_type weights_type = {figures};

static PyObject* get_cache_dtype(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    return PyUnicode_FromString(model ? sd_format_names[model->numbers.cache] : "");
}

static PyObject* get_prefill(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    return PyUnicode_FromString(sd_engine_names[model ? model->numbers.prefill : SD_ENGINE_ROWS]);
}

static PyObject* get_layout(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    return PyLong_FromUnsignedLongLong(model ? sd_model_layout(model) : 0);
}

static PyObject* get_prompt_slice(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    return PyLong_FromLong(model ? sd_prompt_slice(model) : 0);
}

static PyObject* matrix(PyObject* base, PyObject* argument) {
    const sd_model* model = ((sd_model_object*)base)->model;
    const char* name = PyUnicode_AsUTF8(argument);
    if (name == NULL) return NULL;
    sd_tensor_spec spec = {0};
    if (model == NULL || sd_tensor_find(&model->config, name, &spec) < 0 || spec.n_cols == 0)
        return PyErr_Format(PyExc_ValueError, "tensor %s: not a matrix of this model", name);
    float* rows;
    PyObject* array = sd_new_array("float32", spec.n_rows, spec.n_cols, (void**)&rows);
    if (array == NULL) return NULL;
    sd_status status;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    status = sd_model_rows(model, name, 0, spec.n_rows, rows);
    sd_gil_take(&saved_thread);
    if (status == SD_OK) return array;
    Py_DECREF(array);
    return sd_raise(status);
}

static PyObject* token_table(PyObject* base, PyObject* ignored) {
    (void)ignored;
    const sd_model* model = ((sd_model_object*)base)->model;
    if (model == NULL) return PyErr_Format(PyExc_ValueError, "the model has not been initialised");
    const sd_table* table = &model->token_embedding;
    float* rows;
    PyObject* array = sd_new_array("float32", table->n_rows, table->n_cols, (void**)&rows);
    if (array == NULL) return NULL;
    sd_status status = SD_OK;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    for (int r = 0; r < table->n_rows && status == SD_OK; r++) {
        sd_table_row(table, r, rows + (ptrdiff_t)r * table->n_cols);
        status = sd_interrupted();
    }
    sd_gil_take(&saved_thread);
    if (status == SD_OK) return array;
    Py_DECREF(array);
    return sd_raise(status);
}

static PyObject* encode(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", "n_threads", NULL};
    const sd_model* model = ((sd_model_object*)base)->model;
    PyObject *argument, *array = NULL;
    int n_threads = 1, n;
    int32_t* ids;
    float* rows;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$i", names, &argument, &n_threads)) return NULL;
    if (model == NULL || model->encoder == NULL)
        return PyErr_Format(PyExc_ValueError, "the model has no encoder");
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_status status = sd_encoder_check(model, ids, n);
    if (status == SD_OK) array = sd_new_array("float32", n, model->encoder->config.d_model, (void**)&rows);
    if (array != NULL) {
        PyThreadState* saved_thread;
        sd_gil_release(&saved_thread);
        status = sd_encoder_output(model, ids, n, n_threads, "the model", rows);
        sd_gil_take(&saved_thread);
    }
    PyMem_Free(ids);
    if (status == SD_OK) return array;
    Py_XDECREF(array);
    return sd_raise(status);
}

static PyObject* block_sizes(PyObject* base, PyObject* ignored) {
    (void)ignored;
    const sd_model* model = ((sd_model_object*)base)->model;
    sd_memory_block blocks[2];
    int n = model ? sd_model_blocks(model, blocks) : 0;
    PyObject* sizes = PyTuple_New(n);
    for (int i = 0; sizes != NULL && i < n; i++) {
        PyObject* size = PyLong_FromSize_t(blocks[i].size);
        if (size == NULL) Py_CLEAR(sizes);
        if (sizes != NULL) PyTuple_SET_ITEM(sizes, i, size);
    }
    return sizes;
}

static PyObject* block(PyObject* base, PyObject* args) {
    const sd_model* model = ((sd_model_object*)base)->model;
    sd_memory_block blocks[2];
    Py_ssize_t first, n;
    int i;
    if (!PyArg_ParseTuple(args, "inn", &i, &first, &n)) return NULL;
    int n_blocks = model ? sd_model_blocks(model, blocks) : 0;
    if (i < 0 || i >= n_blocks || first < 0 || n < 0 || (size_t)first > blocks[i].size ||
        (size_t)n > blocks[i].size - (size_t)first)
        return PyErr_Format(PyExc_ValueError, "bytes [%zd, %zd + %zd) of block %d are not there", first,
                            first, n, i);
    return PyBytes_FromStringAndSize((const char*)blocks[i].at + first, n);
}

static sd_status set_low_rank(void* model, const char* name, const sd_source* source, int n_rows, int n_cols,
                              int n_threads) {
    return sd_model_set_low_rank(model, name, source, n_rows, n_cols, n_threads);
}

/* The tensors {name: rank} of an adapter [*n], in new memory of PyMem; the names are those of the dict, which
 * no caller has. NULL with an exception. */
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

/* The model object of a model, which it then owns; NULL with an exception, and the caller owns it. */
static PyObject* adapted_object(PyObject* base, sd_model* model) {
    sd_model_object* self = (sd_model_object*)Py_TYPE(base)->tp_alloc(Py_TYPE(base), 0);
    if (self == NULL) return NULL;
    self->config = PyDict_Copy(((sd_model_object*)base)->config);
    if (self->config == NULL) {
        Py_DECREF((PyObject*)self);
        return NULL;
    }
    self->target = Py_NewRef(base);
    self->model = model;
    return (PyObject*)self;
}

static PyObject* adapted(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ranks", "tensors", "n_threads", NULL};
    const sd_model* own = ((sd_model_object*)base)->model;
    PyObject *mapping, *tensors, *result = NULL, *ranks = NULL;
    int n_threads = 1, n = 0;
    sd_model* model = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$i", names, &mapping, &tensors, &n_threads))
        return NULL;
    if (own == NULL) return PyErr_Format(PyExc_ValueError, "the model has not been initialised");
    if ((ranks = PyDict_New()) == NULL || PyDict_Update(ranks, mapping) < 0) goto end;
    sd_adapted_tensor* listed = ranks_from(ranks, &n);
    if (listed == NULL) goto end;
    sd_status status = sd_model_adapt(own, listed, n, &model);
    PyMem_Free(listed);
    if (status == SD_OK && sd_set_tensors(tensors, set_low_rank, model, n_threads) < 0) goto end;
    if (status == SD_OK) status = sd_model_finish_adapted(model);
    if (status != SD_OK)
        sd_raise(status);
    else if ((result = adapted_object(base, model)) != NULL)
        model = NULL;
end:
    sd_model_free(model);
    Py_XDECREF(ranks);
    return result;
}

static PyObject* get_base(PyObject* self, void* closure) {
    (void)closure;
    const sd_model_object* object = (sd_model_object*)self;
    int is_adapted = object->model != NULL && object->model->base != NULL;
    return Py_NewRef(is_adapted ? object->target : Py_None);
}

static PyMethodDef methods[] = {
    {"adapted", (PyCFunction)(void (*)(void))adapted, METH_VARARGS | METH_KEYWORDS,
     "adapted($self, ranks, tensors, *, n_threads=1)\n--\n\nA model over these weights with low-rank "
     "matrices "
     "beside them: ranks {name: rank}; tensors 'NAME.down' [rank, inputs] and 'NAME.up' [outputs, rank]."},
    {"block_sizes", block_sizes, METH_NOARGS,
     "block_sizes($self, /)\n--\n\nBytes of the memory of the model, and of that of its encoder."},
    {"block", block, METH_VARARGS,
     "block($self, i, first, n, /)\n--\n\nn bytes of a block of its memory from `first` on."},
    {"encode", (PyCFunction)(void (*)(void))encode, METH_VARARGS | METH_KEYWORDS,
     "encode($self, ids, *, n_threads=1)\n--\n\nThe encoder's output for a source, float32 [n, d_model]."},
    {"matrix", matrix, METH_O,
     "matrix($self, name, /)\n--\n\nA packed matrix as it is computed with, float32 [n_rows, n_cols]."},
    {"token_table", token_table, METH_NOARGS,
     "token_table($self, /)\n--\n\nThe embeddings of all tokens as they are stored, float32 [n_vocab, "
     "d_model]."},
    {0},
};

static PyGetSetDef getters[] = {
    SD_GET_DTYPE(weights_type),
    SD_GET_N_BYTES(weights_type),
    SD_GET_N_PARAMETERS(weights_type),
    {"base", get_base, NULL, "The model whose weights an adapted model has; None: it is not adapted.", NULL},
    {"cache_dtype", get_cache_dtype, NULL, "Number format of keys and values.", NULL},
    {"prefill", get_prefill, NULL, "What multiplies the rows of prompts and sources.", NULL},
    {"layout", get_layout, NULL, "What lies where in its blocks, as a number.", NULL},
    {"prompt_slice", get_prompt_slice, NULL, "Tokens of prompts that a forward reads.", NULL},
    {"config", get_config, NULL, "Copy of the canonical configuration.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Model(config, tensors, *, dtype='f32', cache_dtype='f32', prefill='rows', n_threads=1, "
     "target=None, packed=None)\n--\n\n"
     "Immutable, packed weights."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_getset, getters},
    {Py_tp_methods, methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_model_spec = {
    .name = "specdec._core.Model",
    .basicsize = sizeof(sd_model_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
