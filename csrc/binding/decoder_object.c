/* Decoder: one cache over a model, and the forward pass itself. */
#include <limits.h>
#include <string.h>

#include "exclusive.h"
#include "forward.h"
#include "module.h"

/* Rows of logits that a forward has room for. */
#define LOGITS 64

typedef struct decoder_object {
    PyObject_HEAD sd_model_object* model; /* strong reference; NULL until __init__ has succeeded */
    sd_cache cache;
    sd_workspace workspace;
    sd_input_sums input_sums; /* its model is NULL: none are kept */
    int capacity, max_nodes;
    sd_exclusive exclusive;
} decoder_object;

static int enter(decoder_object* self) {
    return sd_exclusive_enter(&self->exclusive, self->model != NULL, "decoder", "not initialised");
}

static void leave(decoder_object* self) { sd_exclusive_leave(&self->exclusive); }

/* The hidden states to be kept: a sequence of integers, or NULL or None for none. Returns 0, or -1 with an
 * exception. */
static int taps_from(PyObject* argument, const sd_model* model, sd_taps* taps) {
    int32_t* layers;
    int n;
    *taps = (sd_taps){0};
    if (sd_optional_ids_from(argument, "taps", &layers, &n) < 0) return -1;
    sd_status status = SD_OK;
    for (int i = 0; i < n && status == SD_OK; i++) status = sd_taps_add(taps, layers[i], &model->config);
    PyMem_Free(layers);
    if (status == SD_OK) return 0;
    sd_raise(status);
    return -1;
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model",  "capacity", "max_nodes",  "n_threads", "n_vocab",
                            "source", "taps",     "input_sums", NULL};
    decoder_object* self = (decoder_object*)base;
    PyObject *model_argument, *source_argument = NULL, *taps_argument = NULL;
    int32_t* source;
    sd_taps taps;
    int capacity = 0 /* required: 0 is refused below */, max_nodes = 1, n_threads = 1, n_vocab = 0, n_source;
    int with_sums = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$iiiiOOp", names, &model_argument, &capacity,
                                     &max_nodes, &n_threads, &n_vocab, &source_argument, &taps_argument,
                                     &with_sums))
        return -1;
    if (with_sums && n_threads != 1) {
        PyErr_Format(PyExc_ValueError, "n_threads is %d, expected 1 with input_sums", n_threads);
        return -1;
    }
    sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    sd_model_object* model = sd_model_from(state, model_argument, "model");
    if (model == NULL) return -1;
    const int largest = 1 << 24;
    if (n_vocab == 0) n_vocab = model->model->config.n_vocab;
    const int most_ids = 1 << 26; /* of a model */
    if (n_vocab < 1 || n_vocab > most_ids) {
        PyErr_Format(PyExc_ValueError, "n_vocab is %d, expected 1 to %d, or 0 for the model's own", n_vocab,
                     most_ids);
        return -1;
    }
    if (capacity < 1 || capacity > largest || max_nodes < 1 || max_nodes > largest) {
        PyErr_Format(PyExc_ValueError, "capacity is %d and max_nodes is %d, expected 1 to %d", capacity,
                     max_nodes, largest);
        return -1;
    }
    if (taps_from(taps_argument, model->model, &taps) < 0) return -1;
    if (sd_optional_ids_from(source_argument, "source", &source, &n_source) < 0) return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->model != NULL, "Decoder") < 0) {
        PyMem_Free(source);
        return -1;
    }
    int slice = sd_prompt_slice(model->model), rows = max_nodes > slice ? max_nodes : slice;
    int n_logits = max_nodes > LOGITS ? max_nodes : LOGITS;
    if (sd_prompts_in_slices(model->model)) n_logits = rows; /* whose slices have a length of their own */
    sd_cache cache = {0};
    sd_workspace workspace = {0};
    sd_input_sums sums = {0};
    sd_status status = sd_encoder_check(model->model, source, n_source);
    if (status == SD_OK)
        status = sd_cache_create(&cache, model->model, capacity + max_nodes, max_nodes, 0, &taps);
    if (status == SD_OK)
        status = sd_workspace_create_for(&workspace, model->model, n_vocab, n_threads, rows, n_logits,
                                         capacity + max_nodes);
    if (status == SD_OK && with_sums) status = sd_input_sums_create(&sums, model->model);
    if (status == SD_OK && source != NULL) {
        sd_gil_release(&self->exclusive.saved_thread);
        status = sd_encode(&cache, source, n_source, n_threads, "the model");
        sd_gil_take(&self->exclusive.saved_thread);
    }
    PyMem_Free(source);
    if (status != SD_OK) {
        sd_cache_free(&cache);
        sd_workspace_free(&workspace);
        sd_input_sums_free(&sums);
        leave(self);
        sd_raise(status);
        return -1;
    }
    self->cache = cache;
    self->workspace = workspace;
    self->input_sums = sums;
    if (with_sums) self->workspace.input_sums = &self->input_sums;
    self->capacity = capacity;
    self->max_nodes = max_nodes;
    self->model = (sd_model_object*)Py_NewRef((PyObject*)model);
    leave(self);
    return 0;
}

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT((PyObject*)((decoder_object*)base)->model);
    return 0;
}

static void dealloc(PyObject* base) {
    decoder_object* self = (decoder_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    sd_cache_free(&self->cache);
    sd_workspace_free(&self->workspace);
    sd_input_sums_free(&self->input_sums);
    Py_XDECREF((PyObject*)self->model);
    type->tp_free(base);
    Py_DECREF(type);
}

/* Copy rows [first, first + n) of the workspace's logits to consecutive rows of `out`. */
static void copy_logits(const decoder_object* self, int first, int n, float* out) {
    size_t n_vocab = (size_t)self->workspace.n_vocab;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * n_vocab, self->workspace.logits + (first + i) * self->workspace.ld_logits,
               n_vocab * sizeof *out);
}

/* Run the slices of a prompt [n]; rows: those of the logits that are wanted. On failure an exception is set
 * and nothing is in the cache that was not there before. */
static int run_slices(decoder_object* self, const int32_t* ids, int n, sd_prompt_logits logits, float* rows) {
    int n_before = self->cache.n_committed, done = 0;
    while (done < n) {
        int before = done;
        PyThreadState* saved_thread;
        sd_gil_release(&saved_thread);
        sd_status status = sd_forward_slice(&self->workspace, &self->cache, ids, n, &done, logits);
        if (status == SD_OK && logits == SD_LOGITS_ALL)
            copy_logits(self, 0, done - before, rows + (size_t)before * (size_t)self->workspace.n_vocab);
        if (status == SD_OK && logits == SD_LOGITS_LAST && done == n)
            copy_logits(self, self->workspace.n_last_logits - 1, 1, rows);
        sd_gil_take(&saved_thread);
        if (status != SD_OK) sd_raise(status);
        if (status != SD_OK || PyErr_CheckSignals() < 0) {
            sd_cache_cut(&self->cache, n_before); /* nothing is half-changed */
            return -1;
        }
    }
    return 0;
}

static PyObject* prefill(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", "logits", "last", "finite", NULL};
    decoder_object* self = (decoder_object*)base;
    PyObject *argument, *array = NULL;
    int all = 0, last = 0, finite = 0, n = 0;
    int32_t* ids = NULL;
    float* rows = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$ppp", names, &argument, &all, &last, &finite))
        return NULL;
    if (enter(self) < 0) return NULL;
    self->workspace.name = finite ? "the model" : NULL;
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) goto fail;
    if (n > self->capacity - self->cache.n_committed) {
        PyErr_Format(PyExc_ValueError, "%d tokens do not fit the %d free slots", n,
                     self->capacity - self->cache.n_committed);
        goto fail;
    }
    sd_prompt_logits logits = all ? SD_LOGITS_ALL : last ? SD_LOGITS_LAST : SD_LOGITS_NONE;
    if (all && last) {
        PyErr_SetString(PyExc_ValueError, "logits and last are both given, expected one of them");
        goto fail;
    }
    if (last && n == 0) {
        PyErr_SetString(PyExc_ValueError, "ids is empty, expected at least one token with last");
        goto fail;
    }
    if (logits != SD_LOGITS_NONE) {
        array = all ? sd_new_array("float32", n, self->workspace.n_vocab, (void**)&rows)
                    : sd_new_array("float32", self->workspace.n_vocab, -1, (void**)&rows);
        if (array == NULL) goto fail;
    }
    sd_cache_keep(&self->cache, NULL, 0); /* drop what a forward left */
    if (run_slices(self, ids, n, logits, rows) < 0) goto fail;
    PyMem_Free(ids);
    leave(self);
    return array ? array : Py_NewRef(Py_None);
fail:
    Py_XDECREF(array);
    PyMem_Free(ids);
    leave(self);
    return NULL;
}

static PyObject* forward(PyObject* base, PyObject* args) {
    decoder_object* self = (decoder_object*)base;
    PyObject *tokens_argument, *parents_argument, *array = NULL;
    int32_t *tokens = NULL, *parents = NULL;
    int n = 0, n_parents = 0;
    float* rows;
    if (!PyArg_ParseTuple(args, "OO", &tokens_argument, &parents_argument)) return NULL;
    if (enter(self) < 0) return NULL;
    if (sd_ids_from(tokens_argument, "tokens", &tokens, &n) < 0) goto fail;
    if (sd_ids_from(parents_argument, "parents", &parents, &n_parents) < 0) goto fail;
    if (n < 1 || n > self->max_nodes || n != n_parents) {
        PyErr_Format(PyExc_ValueError,
                     "%d tokens and %d parents, expected equal numbers from 1 to max_nodes = %d", n,
                     n_parents, self->max_nodes);
        goto fail;
    }
    array = sd_new_array("float32", n, self->workspace.n_vocab, (void**)&rows);
    if (array == NULL) goto fail;
    sd_status status;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    sd_cache_keep(&self->cache, NULL, 0);
    const sd_branch branch = {
        .cache = &self->cache, .tokens = tokens, .parents = parents, .n_new = n, .n_logits = n};
    status = sd_forward(&self->workspace, &branch, 1);
    if (status == SD_OK) copy_logits(self, 0, n, rows);
    sd_gil_take(&saved_thread);
    if (status != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    PyMem_Free(tokens);
    PyMem_Free(parents);
    leave(self);
    return array;
fail:
    Py_XDECREF(array);
    PyMem_Free(tokens);
    PyMem_Free(parents);
    leave(self);
    return NULL;
}

static PyObject* keep(PyObject* base, PyObject* argument) {
    decoder_object* self = (decoder_object*)base;
    int32_t* path = NULL;
    int n = 0;
    if (enter(self) < 0) return NULL;
    sd_status status = SD_OK;
    int failed = sd_ids_from(argument, "path", &path, &n) < 0;
    if (!failed) status = sd_cache_keep(&self->cache, path, n);
    PyMem_Free(path);
    leave(self);
    if (failed) return NULL;
    return status == SD_OK ? Py_NewRef(Py_None) : sd_raise(status);
}

static PyObject* cut(PyObject* base, PyObject* argument) {
    decoder_object* self = (decoder_object*)base;
    long n = PyLong_AsLong(argument);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (enter(self) < 0) return NULL;
    sd_cache* cache = &self->cache;
    int n_committed = cache->n_committed, fits = n >= 0 && n <= n_committed;
    if (fits) sd_cache_cut(cache, (int)n);
    leave(self);
    if (fits) return Py_NewRef(Py_None);
    return PyErr_Format(PyExc_ValueError, "n is %ld, expected 0 to the %d tokens that are kept", n,
                        n_committed);
}

static PyObject* tapped(PyObject* base, PyObject* argument) {
    decoder_object* self = (decoder_object*)base;
    long layer = PyLong_AsLong(argument);
    if (layer == -1 && PyErr_Occurred()) return NULL;
    if (enter(self) < 0) return NULL;
    const sd_cache* cache = &self->cache;
    int n = cache->n_committed + cache->n_pending, d_model = cache->model->config.d_model;
    float* rows;
    PyObject* array = NULL;
    if (layer < 0 || layer > INT_MAX || sd_taps_find(&cache->taps, (int)layer) < 0)
        PyErr_Format(PyExc_ValueError, "hidden state %ld is not kept, expected one of taps", layer);
    else
        array = sd_new_array("float32", n, d_model, (void**)&rows);
    for (int slot = 0; array && slot < n; slot++)
        memcpy(rows + (ptrdiff_t)slot * d_model, sd_cache_tapped(cache, slot, (int)layer),
               (size_t)d_model * sizeof *rows);
    leave(self);
    return array;
}

static PyObject* input_sums(PyObject* base, PyObject* argument) {
    decoder_object* self = (decoder_object*)base;
    const char* name = PyUnicode_AsUTF8(argument);
    if (name == NULL || enter(self) < 0) return NULL;
    const sd_model* model = self->input_sums.model;
    sd_tensor_spec spec;
    const sd_matrix* matrix = NULL;
    if (model && sd_tensor_find(&model->config, name, &spec) >= 0 && !spec.of_encoder)
        matrix = sd_model_matrix(model, &spec);
    double* squares;
    PyObject* array = NULL;
    if (matrix == NULL)
        PyErr_Format(PyExc_ValueError, "tensor %s: no sums are kept, expected a matrix, with input_sums",
                     name);
    else
        array = sd_new_array("float64", matrix->n_in, -1, (void**)&squares);
    const sd_input_sum* sum = array ? sd_input_sums_find(&self->input_sums, matrix) : NULL;
    if (sum) memcpy(squares, sum->squares, (size_t)matrix->n_in * sizeof *squares);
    leave(self);
    if (sum == NULL) return NULL;
    return Py_BuildValue("(NL)", array, (long long)sum->n_rows);
}

static PyObject* get_n_committed(PyObject* self, void* closure) {
    (void)closure;
    return PyLong_FromLong(((decoder_object*)self)->cache.n_committed);
}

static PyObject* get_experts_read(PyObject* self, void* closure) {
    (void)closure;
    return PyLong_FromLong(((decoder_object*)self)->workspace.n_touched);
}

static PyMethodDef methods[] = {
    {"prefill", (PyCFunction)(void (*)(void))prefill, METH_VARARGS | METH_KEYWORDS,
     "prefill($self, /, ids, *, logits=False, last=False, finite=False)\n--\n\nAppend a prompt; with logits, "
     "return [n, n_vocab]; with last, those of the last token alone, [n_vocab]."},
    {"forward", forward, METH_VARARGS,
     "forward($self, tokens, parents, /)\n--\n\nLogits [n_nodes, n_vocab] of a tree behind the "
     "text."},
    {"tapped", tapped, METH_O,
     "tapped($self, layer, /)\n--\n\n"
     "A hidden state of `taps` [n, d_model], of the committed tokens and of the nodes of the last forward."},
    {"input_sums", input_sums, METH_O,
     "input_sums($self, name, /)\n--\n\n"
     "Sums of squares [n_in] of what a matrix was multiplied with, and over how many rows."},
    {"keep", keep, METH_O,
     "keep($self, path, /)\n--\n\nCommit these nodes of the last forward, drop the others."},
    {"cut", cut, METH_O,
     "cut($self, n, /)\n--\n\nKeep the first n tokens; none where a window has moved on past them."},
    {0},
};

static PyGetSetDef getters[] = {
    {"n_committed", get_n_committed, NULL, "Tokens kept in the cache.", NULL},
    {"experts_read", get_experts_read, NULL,
     "Experts that all forward passes so far have read, in all layers.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Decoder(model, *, capacity, max_nodes=1, n_threads=1, n_vocab=0, source=None, "
     "taps=None, input_sums=False)\n--\n\nOne sequence's KV cache over a model. taps: the hidden states that "
     "it keeps, by how "
     "many layers are behind them; n_layer + 1: what the head reads. input_sums: keep sums of squares of "
     "what matrices are multiplied with."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_decoder_spec = {
    .name = "specdec._core.Decoder",
    .basicsize = sizeof(decoder_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
