/* The module's functions. */
#include <math.h>
#include <string.h>

#include "module.h"

static PyObject* tensor_shapes(PyObject* module, PyObject* argument) {
    (void)module;
    sd_config config = {0};
    double* inv_freq = NULL;
    PyObject *dict = PyDict_New(), *shapes = NULL;
    if (dict == NULL || PyDict_Update(dict, argument) < 0 || sd_config_from(dict, &config, &inv_freq) < 0)
        goto end;
    sd_status status = sd_config_check(&config);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    shapes = PyDict_New();
    for (int i = 0; shapes != NULL && i < sd_tensor_count(&config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&config, i, &spec);
        PyObject* shape = spec.n_cols > 0 ? Py_BuildValue("(ii)", spec.n_rows, spec.n_cols)
                                          : Py_BuildValue("(i)", spec.n_rows);
        if (shape == NULL || PyDict_SetItemString(shapes, spec.name, shape) < 0) Py_CLEAR(shapes);
        Py_XDECREF(shape);
    }
end:
    PyMem_Free(inv_freq);
    Py_XDECREF(dict);
    return shapes;
}

/* ln softmax(logits)[token] with max subtraction and a double sum. */
static double log_prob(const float* logits, int n_vocab, int32_t token) {
    float best = sd_kernels_get()->max(n_vocab, logits);
    double sum = 0.0;
    for (int i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - best);
    return (double)logits[token] - best - log(sum);
}

static PyObject* score(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model", "ids", "n_threads", NULL};
    PyObject *model_argument, *argument, *array = NULL;
    int n_threads = 1, n = 0, done = 0;
    int32_t* ids = NULL;
    double* out;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$i", names, &model_argument, &argument, &n_threads))
        return NULL;
    sd_model_object* model = sd_model_from(PyModule_GetState(module), model_argument, "model");
    if (model == NULL || sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_cache cache = {0};
    sd_workspace w = {0};
    int n_vocab = model->model->config.n_vocab;
    if (n < 2) {
        PyErr_Format(PyExc_ValueError, "ids: %d tokens, expected at least 2", n);
        goto end;
    }
    sd_status status = SD_OK;
    if (ids[n - 1] < 0 || ids[n - 1] >= n_vocab) /* the others are checked by the forward */
        status =
            sd_fail(SD_ERR_VALUE, "ids[%d] is %d, expected 0 to %d", n - 1, (int)ids[n - 1], n_vocab - 1);
    if (status == SD_OK) status = sd_cache_create(&cache, model->model, n);
    if (status == SD_OK)
        status = sd_workspace_create(&w, model->model, n_threads, SD_PROMPT_SLICE, SD_PROMPT_SLICE, n);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    if ((array = sd_new_array("float64", n - 1, -1, (void**)&out)) == NULL) goto end;
    while (done < n - 1) {
        int before = done;
        Py_BEGIN_ALLOW_THREADS status = sd_prefill_slice(&w, &cache, ids, n - 1, &done, 1);
        for (int i = before; status == SD_OK && i < done; i++)
            out[i] = log_prob(w.logits + (i - before) * w.ld_logits, n_vocab, ids[i + 1]);
        Py_END_ALLOW_THREADS if (status != SD_OK) sd_raise(status);
        if (status != SD_OK || PyErr_CheckSignals() < 0) {
            Py_CLEAR(array);
            break;
        }
    }
end:
    sd_cache_free(&cache);
    sd_workspace_free(&w);
    PyMem_Free(ids);
    return array;
}

static PyObject* distribution(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"logits", "temperature", "top_k", "top_p", NULL};
    PyObject* argument;
    sd_sampling sampling;
    Py_buffer logits;
    double* probs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$did", names, &argument, &sampling.temperature,
                                     &sampling.top_k, &sampling.top_p))
        return NULL;
    sd_status status = sd_sampling_check(&sampling);
    if (status != SD_OK) return sd_raise(status);
    if (sd_view(argument, "logits", 'f', 1, &logits) < 0) return NULL;
    int n_vocab = (int)logits.shape[0];
    PyObject* array = NULL;
    int finite = 0;
    for (int i = 0; i < n_vocab; i++) {
        float value = ((const float*)logits.buf)[i];
        if (isnan(value) || (isinf(value) && value > 0)) {
            PyErr_Format(PyExc_ValueError, "logits[%d]: expected a finite number or -infinity", i);
            goto end;
        }
        finite += !isinf(value);
    }
    if (finite == 0) {
        PyErr_SetString(PyExc_ValueError, "logits: expected at least one finite number");
        goto end;
    }
    double* scratch = PyMem_Malloc(2 * (size_t)n_vocab * sizeof *scratch);
    if (scratch == NULL)
        PyErr_NoMemory();
    else
        array = sd_new_array("float64", n_vocab, -1, (void**)&probs);
    if (array != NULL) {
        sd_distribution d = {.weights = probs};
        sd_standardise(&sampling, n_vocab, logits.buf, scratch, &d);
        for (int i = 0; i < n_vocab; i++) probs[i] = sd_prob(&d, i);
    }
    PyMem_Free(scratch);
end:
    PyBuffer_Release(&logits);
    return array;
}

/* Memory of one call of verify. */
typedef struct verify_call {
    int32_t *tokens, *parents, *path;
    sd_distribution *target, *drawn_from;
    double *betas, *residual;
} verify_call;

static void free_call(verify_call* call) {
    void* parts[] = {call->tokens,     call->parents, call->path,    call->target,
                     call->drawn_from, call->betas,   call->residual};
    for (int i = 0; i < 7; i++) PyMem_Free(parts[i]);
}

/* Check a tree from Python and allocate what its verification needs. Returns 0, or -1. */
static int prepare(verify_call* call, PyObject* tokens, PyObject* parents, const Py_buffer* target,
                   const Py_buffer* draft, const Py_buffer* uniforms, int* n_nodes) {
    int n, n_parents;
    if (sd_ids_from(tokens, "tokens", &call->tokens, &n) < 0) return -1;
    if (sd_ids_from(parents, "parents", &call->parents, &n_parents) < 0) return -1;
    int n_vocab = (int)target->shape[1];
    if (n < 1 || n_parents != n || n_vocab < 1 || target->shape[0] != n || draft->shape[0] != n ||
        draft->shape[1] != n_vocab || uniforms->shape[0] != n + 1) {
        PyErr_SetString(
            PyExc_ValueError,
            "expected tokens [n], parents [n], target_probs and draft_probs [n, n_vocab], uniforms [n + 1]");
        return -1;
    }
    for (int i = 0; i < n; i++) {
        int root = i == 0;
        if (root ? call->parents[0] != -1 : call->parents[i] < 0 || call->parents[i] >= i) {
            PyErr_Format(PyExc_ValueError, "parents[%d] is %d, expected %s", i, (int)call->parents[i],
                         root ? "-1" : "an earlier node");
            return -1;
        }
        if (!root && (call->tokens[i] < 0 || call->tokens[i] >= n_vocab)) {
            PyErr_Format(PyExc_ValueError, "tokens[%d] is %d, expected 0 to %d", i, (int)call->tokens[i],
                         n_vocab - 1);
            return -1;
        }
    }
    size_t count = (size_t)n;
    call->path = PyMem_Calloc(count, sizeof *call->path);
    call->target = PyMem_Calloc(count, sizeof *call->target);
    call->drawn_from = PyMem_Calloc(count, sizeof *call->drawn_from);
    call->betas = PyMem_Calloc(count, sizeof *call->betas);
    call->residual = PyMem_Calloc(2 * (size_t)n_vocab, sizeof *call->residual);
    if (!call->path || !call->target || !call->drawn_from || !call->betas || !call->residual) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < n; i++) {
        ptrdiff_t row = (ptrdiff_t)i * n_vocab;
        call->target[i] = (sd_distribution){-1, (double*)target->buf + row, 1.0, 1.0};
        call->drawn_from[i] = (sd_distribution){-1, (double*)draft->buf + row, 1.0, 1.0};
    }
    *n_nodes = n;
    return 0;
}

static sd_distribution row_of(void* target, int node) { return ((const sd_distribution*)target)[node]; }

static PyObject* verify(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"tokens", "parents", "target_probs", "draft_probs", "uniforms", NULL};
    PyObject *tokens, *parents, *target_argument, *draft_argument, *uniforms_argument, *result = NULL;
    Py_buffer target = {0}, draft = {0}, uniforms = {0};
    verify_call call = {0};
    int n;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO", names, &tokens, &parents, &target_argument,
                                     &draft_argument, &uniforms_argument))
        return NULL;
    if (sd_view(target_argument, "target_probs", 'd', 2, &target) < 0) return NULL;
    if (sd_view(draft_argument, "draft_probs", 'd', 2, &draft) < 0) goto end;
    if (sd_view(uniforms_argument, "uniforms", 'd', 1, &uniforms) < 0) goto end;
    if (prepare(&call, tokens, parents, &target, &draft, &uniforms, &n) < 0) goto end;
    const sd_tree tree = {n, call.tokens, call.parents, call.drawn_from};
    sd_verdict v = {.path = call.path, .betas = call.betas};
    sd_verify_rejection(&tree, row_of, call.target, (int)target.shape[1], uniforms.buf, call.residual, &v);
    PyObject *path = sd_list_of_ints(v.path, v.n_path), *betas = sd_list_of_floats(v.betas, v.n_betas);
    if (path != NULL && betas != NULL) result = Py_BuildValue("OiO", path, (int)v.token, betas);
    Py_XDECREF(path);
    Py_XDECREF(betas);
end:
    free_call(&call);
    PyBuffer_Release(&target);
    if (draft.obj) PyBuffer_Release(&draft);
    if (uniforms.obj) PyBuffer_Release(&uniforms);
    return result;
}

static PyObject* uniform(PyObject* module, PyObject* args) {
    (void)module;
    unsigned long long seed;
    unsigned int sequence, position, purpose, index;
    if (!PyArg_ParseTuple(args, "KIIII", &seed, &sequence, &position, &purpose, &index)) return NULL;
    return PyFloat_FromDouble(sd_uniform((sd_stream){seed, sequence}, position, (sd_purpose)purpose, index));
}

static PyObject* kernels(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    return PyUnicode_FromString(sd_kernels_get()->name);
}

static PyObject* available_kernels(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    const sd_kernels* tables[8];
    int n = sd_kernels_available(tables, 8);
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* name = PyUnicode_FromString(tables[i]->name);
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

#ifdef SPECDEC_TESTING
static PyObject* alloc_fail_after(PyObject* module, PyObject* argument) {
    (void)module;
    long n = PyLong_AsLong(argument);
    if (n == -1 && PyErr_Occurred()) return NULL;
    sd_alloc_fail_after(n);
    return Py_NewRef(Py_None);
}

static PyObject* arena_guard(PyObject* module, PyObject* argument) {
    (void)module;
    int on = PyObject_IsTrue(argument);
    if (on < 0) return NULL;
    sd_arena_guard(on);
    return Py_NewRef(Py_None);
}

static PyObject* alloc_live(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    return PyLong_FromLong(sd_alloc_live());
}
#endif

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

PyMethodDef sd_functions[] = {
    {"tensor_shapes", tensor_shapes, METH_O,
     "tensor_shapes(config, /)\n--\n\nEvery tensor a model of this configuration needs, by canonical name."},
    {"score", WITH_KEYWORDS(score),
     "score(model, ids, *, n_threads=1)\n--\n\nln p(ids[i + 1] | ids[: i + 1]), float64 [len(ids) - 1]."},
    {"distribution", WITH_KEYWORDS(distribution),
     "distribution(logits, *, temperature, top_k, top_p)\n--\n\nStandardised probabilities, float64 "
     "[n_vocab]."},
    {"verify", WITH_KEYWORDS(verify),
     "verify(tokens, parents, target_probs, draft_probs, uniforms)\n--\n\n"
     "The rejection rule on a tree: (path, token, betas)."},
    {"uniform", uniform, METH_VARARGS,
     "uniform(seed, sequence, position, purpose, index, /)\n--\n\nThe core's random number of this key."},
    {"kernels", kernels, METH_NOARGS, "kernels()\n--\n\nName of the instruction set in use."},
    {"available_kernels", available_kernels, METH_NOARGS,
     "available_kernels()\n--\n\nInstruction sets of this machine, best first."},
    {"product", WITH_KEYWORDS(sd_product),
     "product(x, weights, dtype, *, n_threads=1)\n--\n\nx · weightsᵀ by the row kernels, float32 [n_rows, "
     "n_out]."},
#ifdef SPECDEC_TESTING
    {"_alloc_fail_after", alloc_fail_after, METH_O, "Let n more allocations succeed; negative: all."},
    {"_arena_guard", arena_guard, METH_O, "Forbid the page behind every array of the core from now on."},
    {"_alloc_live", alloc_live, METH_NOARGS, "Blocks allocated and not freed."},
#endif
    {0},
};
