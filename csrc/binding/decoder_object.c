/* Decoder: one cache over a model, and the forward pass itself. */
#include <limits.h>
#include <string.h>

#include "forward.h"
#include "module.h"

/* Most rows of logits of a forward pass. */
#define LOGITS 64

struct sd_decoder_object {
    sd_object base;
    PyObject* model;
    sd_cache cache;
    sd_workspace workspace;
    sd_input_sums input_sums; /* model NULL: none are kept */
    int capacity, max_nodes;
    sd_exclusive exclusive;
};

static int enter(sd_decoder_object* self) {
    return sd_exclusive_enter(&self->exclusive, 1, "decoder", "there");
}

static void leave(sd_decoder_object* self) { sd_exclusive_leave(&self->exclusive); }

/* Read the hidden states to keep: a sequence of integers, or NULL or None for none. Returns 0, or -1 with an
 * exception. */
static int captures_from(PyObject* argument, const sd_model* model, sd_captures* captures) {
    int32_t* layers;
    int n;
    *captures = (sd_captures){0};
    if (sd_optional_ids_from(argument, "captures", &layers, &n) < 0) return -1;
    sd_status status = SD_OK;
    for (int i = 0; i < n && status == SD_OK; i++)
        status = sd_captures_add(captures, layers[i], &model->config);
    PyMem_Free(layers);
    return sd_passed(status);
}

/* Sizes of a decoder. */
typedef struct sizes {
    int capacity, max_nodes, n_threads, n_vocab, with_sums;
} sizes;

static int check_sizes(const sizes* s) {
    const int largest = 1 << 24, most_ids = 1 << 26; /* of a model */
    if (s->with_sums && s->n_threads != 1)
        return sd_refuse("n_threads is %d, expected 1 with input_sums", s->n_threads);
    if (s->n_vocab < 1 || s->n_vocab > most_ids)
        return sd_refuse("n_vocab is %d, expected 1 to %d, or 0 for the model's own", s->n_vocab, most_ids);
    if (s->capacity < 1 || s->capacity > largest || s->max_nodes < 1 || s->max_nodes > largest)
        return sd_refuse("capacity is %d and max_nodes is %d, expected 1 to %d", s->capacity, s->max_nodes,
                         largest);
    return 0;
}

/* Create cache and workspace of a decoder and read its source. */
static sd_status create(sd_decoder_object* self, const sd_model* model, const sizes* s,
                        const sd_captures* captures, const int32_t* source, int n_source) {
    int rows = sd_rows_with_prompts(model, s->max_nodes, 1, s->capacity);
    int n_logits = s->max_nodes > LOGITS ? s->max_nodes : LOGITS, n = s->capacity + s->max_nodes;
    if (sd_prompts_in_slices(model)) n_logits = rows; /* its slices have a fixed length */
    sd_status status = sd_encoder_check(model, source, n_source);
    if (status == SD_OK) status = sd_cache_create(&self->cache, model, n, s->max_nodes, 0, captures);
    if (status == SD_OK)
        status =
            sd_workspace_create_for(&self->workspace, model, s->n_vocab, s->n_threads, rows, n_logits, n);
    if (status == SD_OK && s->with_sums) status = sd_input_sums_create(&self->input_sums, model);
    if (s->with_sums) self->workspace.input_sums = &self->input_sums;
    if (status == SD_OK && source != NULL)
        SD_WITHOUT_GIL(status = sd_encode(&self->cache, source, n_source, s->n_threads, "the model"));
    return status;
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model",  "capacity", "max_nodes",  "n_threads", "n_vocab",
                            "source", "captures", "input_sums", NULL};
    sd_decoder_object* self = (sd_decoder_object*)object;
    PyObject *argument, *source_argument = NULL, *captures_argument = NULL;
    int32_t* source;
    sd_captures captures;
    sizes s = {.max_nodes = 1, .n_threads = 1}; /* capacity is required: 0 is rejected */
    int n_source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$iiiiOOp", names, &argument, &s.capacity, &s.max_nodes,
                                     &s.n_threads, &s.n_vocab, &source_argument, &captures_argument,
                                     &s.with_sums))
        return -1;
    if (sd_model_from(argument, "model") == NULL) return -1;
    const sd_model* model = ((sd_model_object*)argument)->model;
    if (s.n_vocab == 0) s.n_vocab = model->config.n_vocab;
    if (check_sizes(&s) < 0 || captures_from(captures_argument, model, &captures) < 0) return -1;
    if (sd_optional_ids_from(source_argument, "source", &source, &n_source) < 0) return -1;
    self->model = Py_NewRef(argument);
    self->capacity = s.capacity;
    self->max_nodes = s.max_nodes;
    sd_status status = create(self, model, &s, &captures, source, n_source);
    PyMem_Free(source);
    return sd_passed(status);
}

static void release(PyObject* object) {
    sd_decoder_object* self = (sd_decoder_object*)object;
    sd_cache_free(&self->cache);
    sd_workspace_free(&self->workspace);
    sd_input_sums_free(&self->input_sums);
}

/* Copy rows [first, first + n) of the workspace's logits to consecutive rows of `out`. */
static void copy_logits(const sd_decoder_object* self, int first, int n, float* out) {
    size_t n_vocab = (size_t)self->workspace.n_vocab;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * n_vocab, self->workspace.logits + (first + i) * self->workspace.ld_logits,
               n_vocab * sizeof *out);
}

/* Run the next slice of a prompt [n], of which *done tokens have been read. */
static sd_status run_slice(sd_decoder_object* self, const int32_t* ids, int n, int* done,
                           sd_prompt_logits logits, float* rows) {
    int before = *done;
    sd_status status = sd_forward_slice(&self->workspace, &self->cache, ids, n, done, logits);
    if (status == SD_OK && logits == SD_LOGITS_ALL)
        copy_logits(self, 0, *done - before, rows + (size_t)before * (size_t)self->workspace.n_vocab);
    if (status == SD_OK && logits == SD_LOGITS_LAST && *done == n)
        copy_logits(self, self->workspace.n_last_logits - 1, 1, rows);
    return status;
}

/* Append a prompt; rows: the requested logits. On failure an exception is set, and the cache
 * has the text from before the call, or none if that is overwritten. */
static int append(sd_decoder_object* self, const int32_t* ids, int n, sd_prompt_logits logits, float* rows) {
    sd_cache_keep(&self->cache, NULL, 0); /* drop pending rows of a forward pass */
    int n_before = self->cache.n_committed;
    for (int done = 0; done < n;) {
        sd_status status;
        SD_WITHOUT_GIL(status = run_slice(self, ids, n, &done, logits, rows));
        if (sd_passed(status) < 0 || PyErr_CheckSignals() < 0) {
            sd_cache_cut(&self->cache, n_before);
            return -1;
        }
    }
    return 0;
}

/* Check that a prompt of n tokens can be appended. Returns 0, or -1 with an exception. */
static int check_prompt(const sd_decoder_object* self, int n, int all, int last) {
    int n_free = self->capacity - self->cache.n_committed;
    if (n > n_free) return sd_refuse("%d tokens do not fit the %d free slots", n, n_free);
    if (all && last) return sd_refuse("logits and last are both given, expected one of them");
    return last && n == 0 ? sd_refuse("ids is empty, expected at least one token with last") : 0;
}

static PyObject* prefill(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", "logits", "last", "finite", NULL};
    sd_decoder_object* self = (sd_decoder_object*)object;
    PyObject *argument, *array = NULL;
    int all = 0, last = 0, finite = 0, n = 0;
    int32_t* ids = NULL;
    float* rows = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$ppp", names, &argument, &all, &last, &finite))
        return NULL;
    if (enter(self) < 0) return NULL;
    self->workspace.name = finite ? "the model" : NULL;
    sd_prompt_logits logits = all ? SD_LOGITS_ALL : last ? SD_LOGITS_LAST : SD_LOGITS_NONE;
    int n_vocab = self->workspace.n_vocab;
    if (sd_ids_from(argument, "ids", &ids, &n) == 0 && check_prompt(self, n, all, last) == 0) {
        array = all    ? sd_new_array("float32", n, n_vocab, (void**)&rows)
                : last ? sd_new_array("float32", n_vocab, -1, (void**)&rows)
                       : Py_NewRef(Py_None);
        if (array != NULL && append(self, ids, n, logits, rows) < 0) Py_CLEAR(array);
    }
    PyMem_Free(ids);
    leave(self);
    return array;
}

/* Run a tree of n nodes; rows: its logits. */
static sd_status run_tree(sd_decoder_object* self, const int32_t* tokens, const int32_t* parents, int n,
                          float* rows) {
    sd_cache_keep(&self->cache, NULL, 0);
    const sd_branch branch = {
        .cache = &self->cache, .tokens = tokens, .parents = parents, .n_new = n, .n_logits = n};
    sd_status status = sd_forward(&self->workspace, &branch, 1);
    if (status == SD_OK) copy_logits(self, 0, n, rows);
    return status;
}

static PyObject* forward(PyObject* object, PyObject* args) {
    sd_decoder_object* self = (sd_decoder_object*)object;
    PyObject *tokens_argument, *parents_argument, *array = NULL;
    int32_t *tokens = NULL, *parents = NULL;
    int n = 0, n_parents = 0;
    float* rows;
    if (!PyArg_ParseTuple(args, "OO", &tokens_argument, &parents_argument)) return NULL;
    if (enter(self) < 0) return NULL;
    sd_status status = SD_OK;
    if (sd_ids_from(tokens_argument, "tokens", &tokens, &n) == 0 &&
        sd_ids_from(parents_argument, "parents", &parents, &n_parents) == 0) {
        if (n < 1 || n > self->max_nodes || n != n_parents)
            sd_refuse("%d tokens and %d parents, expected equal numbers from 1 to max_nodes = %d", n,
                      n_parents, self->max_nodes);
        else
            array = sd_new_array("float32", n, self->workspace.n_vocab, (void**)&rows);
        if (array != NULL) SD_WITHOUT_GIL(status = run_tree(self, tokens, parents, n, rows));
    }
    PyMem_Free(tokens);
    PyMem_Free(parents);
    leave(self);
    return sd_given(array, status);
}

static PyObject* keep(PyObject* object, PyObject* argument) {
    sd_decoder_object* self = (sd_decoder_object*)object;
    int32_t* path;
    int n;
    if (sd_ids_from(argument, "path", &path, &n) < 0) return NULL;
    sd_status status = SD_OK;
    int entered = enter(self) == 0;
    if (entered) status = sd_cache_keep(&self->cache, path, n);
    if (entered) leave(self);
    PyMem_Free(path);
    return entered ? sd_none_if(status) : NULL;
}

static PyObject* cut(PyObject* object, PyObject* argument) {
    sd_decoder_object* self = (sd_decoder_object*)object;
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

static PyObject* captured(PyObject* object, PyObject* argument) {
    sd_decoder_object* self = (sd_decoder_object*)object;
    long layer = PyLong_AsLong(argument);
    if (layer == -1 && PyErr_Occurred()) return NULL;
    if (enter(self) < 0) return NULL;
    const sd_cache* cache = &self->cache;
    int n = cache->n_committed + cache->n_pending, d_model = cache->model->config.d_model;
    float* rows;
    PyObject* array = NULL;
    if (layer < 0 || layer > INT_MAX || sd_captures_find(&cache->captures, (int)layer) < 0)
        PyErr_Format(PyExc_ValueError, "hidden state %ld is not kept, expected one of captures", layer);
    else
        array = sd_new_array("float32", n, d_model, (void**)&rows);
    for (int slot = 0; array && slot < n; slot++)
        memcpy(rows + (ptrdiff_t)slot * d_model, sd_cache_captured(cache, slot, (int)layer),
               (size_t)d_model * sizeof *rows);
    leave(self);
    return array;
}

static PyObject* input_sums(PyObject* object, PyObject* argument) {
    sd_decoder_object* self = (sd_decoder_object*)object;
    const char* name = PyUnicode_AsUTF8(argument);
    if (name == NULL || enter(self) < 0) return NULL;
    const sd_model* model = self->input_sums.model;
    sd_tensor_spec spec;
    const sd_matrix* matrix = NULL;
    if (model && sd_tensor_find(&model->config, name, &spec) >= 0 && !spec.of_encoder)
        matrix = sd_model_matrix(model, &spec);
    const sd_input_sum* sum = matrix ? sd_input_sums_find(&self->input_sums, matrix) : NULL;
    PyObject* array =
        sum ? sd_array_of("float64", sum->squares, sizeof *sum->squares, matrix->n_in, -1) : NULL;
    if (sum == NULL) sd_refuse("tensor %s: no sums are kept, expected a matrix, with input_sums", name);
    leave(self);
    if (array == NULL) return NULL;
    return Py_BuildValue("(NL)", array, (long long)sum->n_rows);
}

static PyMethodDef methods[] = {
    {"prefill", SD_KEYWORDS(prefill),
     "prefill($self, /, ids, *, logits=False, last=False, finite=False)\n--\n\n"},
    {"forward", forward, METH_VARARGS, "forward($self, tokens, parents, /)\n--\n\n"},
    {"captured", captured, METH_O, "captured($self, layer, /)\n--\n\n"},
    {"input_sums", input_sums, METH_O, "input_sums($self, name, /)\n--\n\n"},
    {"keep", keep, METH_O, "keep($self, path, /)\n--\n\n"},
    {"cut", cut, METH_O, "cut($self, n, /)\n--\n\n"},
    {0},
};

#define MEMBER(name, type, member, doc) SD_MEMBER(name, type, sd_decoder_object, member, doc)
static PyMemberDef members[] = {
    MEMBER("n_committed", T_INT, cache.n_committed, "Tokens kept in the cache."),
    MEMBER("experts_read", T_LONG, workspace.n_touched,
           "Experts that all forward passes so far have read, in all layers."),
    {0},
};

const sd_type_spec sd_decoder_type = {
    .doc =
        "Decoder(model, *, capacity, max_nodes=1, n_threads=1, n_vocab=0, source=None, captures=None, "
        "input_sums=False)\n--\n\n",
    .size = sizeof(sd_decoder_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_decoder_object, model)},
    .methods = methods,
    .members = members,
};
