/* The function `score_texts`. */
#include <string.h>

#include "module.h"
#include "score.h"

/* Further outputs of scoring. */
typedef struct extras {
    PyObject* done;        /* called with the number of texts that have ended; NULL: none; borrowed */
    sd_model_object* keep; /* make a CachedText of this model, for a single text; NULL: none; borrowed */
    PyObject* kept;        /* that CachedText, a new reference */
} extras;

/* Score texts. Returns 0, or -1 with an exception. */
static int run(const sd_score_options* options, sd_scored_text* texts, int n, extras* more) {
    sd_score* score = NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_score_create(options, texts, n, &score));
    int result = sd_passed(status);
    for (int ended = 0; result == 0 && !ended;) {
        int n_ended;
        SD_WITHOUT_GIL(status = sd_score_slice(score, &n_ended, &ended));
        if (sd_passed(status) < 0 || PyErr_CheckSignals() < 0) result = -1;
        if (result < 0 || n_ended == 0 || more->done == NULL) continue;
        PyObject* returned = PyObject_CallFunction(more->done, "i", n_ended);
        if (returned == NULL) result = -1;
        Py_XDECREF(returned);
    }
    if (result == 0 && more->keep != NULL) {
        more->kept = sd_cached_text_new(more->keep, sd_score_cache(score));
        if (more->kept == NULL) result = -1;
    }
    sd_score_free(score);
    return result;
}

/* Texts as given: all ids concatenated, and the length of each. */
typedef struct given_ids {
    int32_t *ids, *lengths; /* owned */
    int n_ids, n;
} given_ids;

static void given_free(given_ids* given) {
    PyMem_Free(given->ids);
    PyMem_Free(given->lengths);
}

/* Copy an array, which other threads may change. */
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
    return sd_refuse("%s: %d ids, expected the sum of the lengths", name, given->n_ids);
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
        if (n_given[i] >= 1 && n_given[i] < text->n) *n_scored += text->n - n_given[i]; /* or rejected */
        ids += text->n;
        source = source ? source + text->n_source : NULL;
    }
    return texts;
}

/* Arrays of results: a new tuple of them; NULL with an exception. */
static PyObject* new_results(ptrdiff_t n_scored, sd_score_results* r) {
    PyObject* results = PyTuple_New(5);
    const struct {
        const char* dtype;
        int n_cols;
        void** to;
    } arrays[] = {{"float64", -1, (void**)&r->log_probs},
                  {"bool", -1, (void**)&r->greedy},
                  {"int32", r->n_top, (void**)&r->top_tokens},
                  {"float64", r->n_top, (void**)&r->top_log_probs}};
    for (int i = 0; results != NULL && i < 4; i++) {
        PyObject* array = sd_new_array(arrays[i].dtype, n_scored, arrays[i].n_cols, arrays[i].to);
        if (array == NULL)
            Py_CLEAR(results);
        else
            PyTuple_SET_ITEM(results, i, array);
    }
    return results;
}

/* Arguments of a call besides its options. */
typedef struct call {
    given_ids texts, sources;
    int32_t* n_given; /* owned, like all ids */
} call;

/* Read the arguments of a call. Returns 0, or -1 with an exception; memory is the call's in both cases. */
static int call_from(PyObject* texts, PyObject* n_given, PyObject* sources, int keep, int n_top, call* c) {
    int n;
    if (sources != Py_None && !PyTuple_Check(sources))
        return sd_set_error(PyExc_TypeError, "sources: expected a tuple (ids, lengths), or None");
    if (n_top < 0) return sd_refuse("n_top is %d, expected at least 0", n_top);
    if (given_from(texts, "texts", &c->texts) < 0) return -1;
    if (copy_array(n_given, "n_given", &c->n_given, &n) < 0) return -1;
    if (sources != Py_None && given_from(sources, "sources", &c->sources) < 0) return -1;
    if (n != c->texts.n || (c->sources.ids != NULL && c->sources.n != n))
        return sd_refuse("n_given and sources: expected one for each of %d texts", c->texts.n);
    return keep && n != 1 ? sd_refuse("keep is true for %d texts, expected one", n) : 0;
}

PyObject* sd_score_of_texts(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model",   "texts",     "n_given", "sources", "n_top",
                            "n_texts", "n_threads", "done",    "keep",    NULL};
    PyObject *model_argument, *texts, *n_given, *sources = Py_None, *done = Py_None, *results = NULL;
    int keep = 0;
    call c = {0};
    sd_score_options options = {.n_threads = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O|$OiiiOp", names, &model_argument, &PyTuple_Type,
                                     &texts, &n_given, &sources, &options.results.n_top, &options.n_texts,
                                     &options.n_threads, &done, &keep))
        return NULL;
    sd_model_object* model = sd_model_from(model_argument, "model");
    if (model == NULL) return NULL;
    options.model = model->model;
    if (call_from(texts, n_given, sources, keep, options.results.n_top, &c) == 0) {
        ptrdiff_t n_scored;
        extras more = {.done = done == Py_None ? NULL : done, .keep = keep ? model : NULL};
        sd_scored_text* scored = texts_from(&c.texts, c.n_given, &c.sources, &n_scored);
        if (scored != NULL) results = new_results(n_scored, &options.results);
        if (results != NULL && run(&options, scored, c.texts.n, &more) < 0) Py_CLEAR(results);
        if (results != NULL) PyTuple_SET_ITEM(results, 4, more.kept ? more.kept : Py_NewRef(Py_None));
        PyMem_Free(scored);
    }
    PyMem_Free(c.n_given);
    given_free(&c.texts);
    given_free(&c.sources);
    return results;
}
