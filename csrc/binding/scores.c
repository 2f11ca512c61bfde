/* The functions `score`, of one text, and `score_texts`, of many. */
#include <string.h>

#include "module.h"
#include "score.h"

/* What is made of texts beside their results. */
typedef struct extras {
    PyObject* done;          /* called with the number of texts that have ended; NULL: nothing is; borrowed */
    sd_model_object* keep;   /* of a single text a CachedText of this model is made; NULL: none; borrowed */
    PyTypeObject* text_type; /* its type, borrowed */
    PyObject* kept;          /* it, a new reference */
} extras;

/* Score texts. Returns 0, or -1 with an exception. */
static int run(const sd_score_options* options, sd_scored_text* texts, int n, extras* more) {
    sd_score* score = NULL;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    sd_status status = sd_score_create(options, texts, n, &score);
    sd_gil_take(&saved_thread);
    int result = status == SD_OK ? 0 : -1;
    if (status != SD_OK) sd_raise(status);
    for (int ended = 0; result == 0 && !ended;) {
        int n_ended;
        sd_gil_release(&saved_thread);
        status = sd_score_slice(score, &n_ended, &ended);
        sd_gil_take(&saved_thread);
        if (status != SD_OK) sd_raise(status);
        if (status != SD_OK || PyErr_CheckSignals() < 0) result = -1;
        if (result < 0 || n_ended == 0 || more->done == NULL) continue;
        PyObject* said = PyObject_CallFunction(more->done, "i", n_ended);
        if (said == NULL) result = -1;
        Py_XDECREF(said);
    }
    if (result == 0 && more->keep != NULL) {
        more->kept = sd_cached_text_new(more->text_type, more->keep, sd_score_cache(score));
        if (more->kept == NULL) result = -1;
    }
    sd_score_free(score);
    return result;
}

PyObject* sd_score_of_text(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model", "ids", "n_threads", "source", NULL};
    PyObject *model_argument, *argument, *source_argument = NULL, *array = NULL;
    int n_threads = 1, n = 0, n_source;
    int32_t *ids = NULL, *source;
    sd_score_options options = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$iO", names, &model_argument, &argument, &n_threads,
                                     &source_argument))
        return NULL;
    sd_model_object* model = sd_model_from(PyModule_GetState(module), model_argument, "model");
    if (model == NULL || sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    if (sd_optional_ids_from(source_argument, "source", &source, &n_source) < 0) {
        PyMem_Free(ids);
        return NULL;
    }
    sd_scored_text text = {.tokens = ids, .n = n, .n_given = 1, .source = source, .n_source = n_source};
    options.model = model->model;
    options.n_threads = n_threads;
    array = sd_new_array("float64", n > 1 ? n - 1 : 0, -1, (void**)&options.results.log_probs);
    if (array != NULL && run(&options, &text, 1, &(extras){0}) < 0) Py_CLEAR(array);
    PyMem_Free(source);
    PyMem_Free(ids);
    return array;
}

/* Texts as they are given: all ids one after the other, and how many there are of each. */
typedef struct given_ids {
    int32_t *ids, *lengths; /* owned */
    int n_ids, n;
} given_ids;

static void given_free(given_ids* given) {
    PyMem_Free(given->ids);
    PyMem_Free(given->lengths);
}

/* A copy, as other threads may change the array. */
static int copy_array(PyObject* argument, const char* name, int32_t** out, int* n) {
    Py_buffer view;
    if (sd_view(argument, name, 'i', 1, &view) < 0) return -1;
    int fits = view.shape[0] <= INT32_MAX;
    *out = fits ? PyMem_Malloc((size_t)view.len + sizeof **out) : NULL;
    if (*out == NULL) PyErr_NoMemory();
    if (*out != NULL) memcpy(*out, view.buf, (size_t)view.len), *n = (int)view.shape[0];
    PyBuffer_Release(&view);
    return *out == NULL ? -1 : 0;
}

static int given_from(PyObject* pair, const char* name, given_ids* given) {
    PyObject *ids, *lengths;
    if (!PyArg_ParseTuple(pair, "OO", &ids, &lengths)) return -1;
    if (copy_array(ids, name, &given->ids, &given->n_ids) < 0) return -1;
    if (copy_array(lengths, name, &given->lengths, &given->n) < 0) return -1;
    long long total = 0;
    for (int i = 0; i < given->n; i++) {
        if (given->lengths[i] < 0) total = -1;
        if (total >= 0) total += given->lengths[i];
    }
    if (total == given->n_ids) return 0;
    PyErr_Format(PyExc_ValueError, "%s: %d ids, expected as many as the lengths say", name, given->n_ids);
    return -1;
}

/* The texts [n] of the arguments: *n_scored of their tokens are scored. NULL with an exception. */
static sd_scored_text* texts_from(const given_ids* given, const int32_t* n_given, const given_ids* sources,
                                  ptrdiff_t* n_scored) {
    sd_scored_text* texts = PyMem_Calloc((size_t)given->n + 1, sizeof *texts);
    if (texts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    const int32_t *ids = given->ids, *source = sources->ids;
    *n_scored = 0;
    for (int i = 0; i < given->n; i++) {
        sd_scored_text* text = &texts[i];
        *text = (sd_scored_text){.tokens = ids, .n = given->lengths[i], .n_given = n_given[i]};
        if (source != NULL) text->source = source, text->n_source = sources->lengths[i];
        text->first = *n_scored;
        if (n_given[i] >= 1 && n_given[i] < text->n) *n_scored += text->n - n_given[i]; /* or refused */
        ids += text->n;
        source = source ? source + text->n_source : NULL;
    }
    return texts;
}

/* Arrays of results: a new tuple of them and of one item more, to be set; NULL with an exception. */
static PyObject* new_results(ptrdiff_t n_scored, sd_score_results* r) {
    PyObject* log_probs = sd_new_array("float64", n_scored, -1, (void**)&r->log_probs);
    PyObject* greedy = log_probs ? sd_new_array("bool", n_scored, -1, (void**)&r->greedy) : NULL;
    PyObject* tokens = greedy ? sd_new_array("int32", n_scored, r->n_top, (void**)&r->top_tokens) : NULL;
    PyObject* of_top = tokens ? sd_new_array("float64", n_scored, r->n_top, (void**)&r->top_log_probs) : NULL;
    PyObject* results = of_top ? PyTuple_New(5) : NULL;
    if (results != NULL) {
        PyTuple_SET_ITEM(results, 0, log_probs);
        PyTuple_SET_ITEM(results, 1, greedy);
        PyTuple_SET_ITEM(results, 2, tokens);
        PyTuple_SET_ITEM(results, 3, of_top);
        return results;
    }
    Py_XDECREF(log_probs);
    Py_XDECREF(greedy);
    Py_XDECREF(tokens);
    Py_XDECREF(of_top);
    return NULL;
}

PyObject* sd_score_of_texts(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model",   "texts",     "n_given", "sources", "n_top",
                            "n_texts", "n_threads", "done",    "keep",    NULL};
    PyObject *model_argument, *texts_argument, *given_argument, *sources_argument = Py_None, *done = Py_None;
    given_ids given = {0}, sources = {0};
    int32_t* n_given = NULL;
    int n = 0, keep = 0;
    ptrdiff_t n_scored;
    sd_score_options options = {.n_threads = 1};
    sd_scored_text* texts = NULL;
    PyObject* results = NULL;
    extras more = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O|$OiiiOp", names, &model_argument, &PyTuple_Type,
                                     &texts_argument, &given_argument, &sources_argument,
                                     &options.results.n_top, &options.n_texts, &options.n_threads, &done,
                                     &keep))
        return NULL;
    const sd_module_state* state = PyModule_GetState(module);
    sd_model_object* model = sd_model_from(state, model_argument, "model");
    if (model == NULL) return NULL;
    options.model = model->model;
    if (sources_argument != Py_None && !PyTuple_Check(sources_argument)) {
        PyErr_SetString(PyExc_TypeError, "sources: expected a tuple (ids, lengths), or None");
        return NULL;
    }
    if (options.results.n_top < 0) {
        PyErr_Format(PyExc_ValueError, "n_top is %d, expected at least 0", options.results.n_top);
        return NULL;
    }
    if (given_from(texts_argument, "texts", &given) < 0) goto end;
    if (copy_array(given_argument, "n_given", &n_given, &n) < 0) goto end;
    if (sources_argument != Py_None && given_from(sources_argument, "sources", &sources) < 0) goto end;
    if (n != given.n || (sources.ids != NULL && sources.n != given.n)) {
        PyErr_Format(PyExc_ValueError, "n_given and sources: expected one for each of %d texts", given.n);
        goto end;
    }
    if (keep && n != 1) {
        PyErr_Format(PyExc_ValueError, "keep is true for %d texts, expected one", n);
        goto end;
    }
    if ((texts = texts_from(&given, n_given, &sources, &n_scored)) == NULL) goto end;
    results = new_results(n_scored, &options.results);
    if (done != Py_None) more.done = done;
    if (keep) more.keep = model, more.text_type = state->cached_text_type;
    if (results != NULL && run(&options, texts, n, &more) < 0) Py_CLEAR(results);
    if (results != NULL) PyTuple_SET_ITEM(results, 4, more.kept ? more.kept : Py_NewRef(Py_None));
end:
    PyMem_Free(texts);
    PyMem_Free(n_given);
    given_free(&given);
    given_free(&sources);
    return results;
}
