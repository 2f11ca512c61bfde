/* BeamSearch: the rounds of a beam search. */
#include "beam_search.h"
#include "clock.h"
#include "module.h"

struct sd_beam_object {
    sd_object base;
    sd_beam_search* search;   /* owned; NULL after close */
    PyObject *target, *draft; /* Models; draft may be NULL */
    sd_exclusive exclusive;
};

/* Most records of a call. */
#define RECORDS 64

static int enter(sd_beam_object* self) {
    return sd_exclusive_enter(&self->exclusive, self->search != NULL, "search", "closed");
}

static void leave(sd_beam_object* self) { sd_exclusive_leave(&self->exclusive); }

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"target",         "draft",    "prompt",    "width",  "draft_width", "gamma",
                            "max_new_tokens", "stop_ids", "n_threads", "source", NULL};
    sd_beam_object* self = (sd_beam_object*)object;
    PyObject *target, *draft, *prompt_argument, *stop_argument = NULL, *source_argument = NULL;
    sd_beam_options o = {.gamma = -1, .n_threads = 1}; /* the core rejects missing values */
    int32_t *prompt, *stop_ids = NULL, *source = NULL;
    int n, result = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$iiiiOiO", names, &target, &draft, &prompt_argument,
                                     &o.width, &o.draft_width, &o.gamma, &o.max_new_tokens, &stop_argument,
                                     &o.n_threads, &source_argument) ||
        sd_model_from(target, "target") == NULL ||
        (draft != Py_None && sd_model_from(draft, "draft") == NULL))
        return -1;
    self->target = Py_NewRef(target);
    o.target = ((sd_model_object*)target)->model;
    if (draft != Py_None) {
        self->draft = Py_NewRef(draft);
        o.draft = ((sd_model_object*)draft)->model;
    }
    if (sd_ids_from(prompt_argument, "prompt", &prompt, &n) < 0) return -1;
    if (sd_optional_ids_from(stop_argument, "stop_ids", &stop_ids, &o.n_stop_ids) == 0 &&
        sd_optional_ids_from(source_argument, "source", &source, &o.n_source) == 0) {
        o.stop_ids = stop_ids;
        o.source = source;
        result = sd_passed(sd_beam_search_create(&o, prompt, n, &self->search));
    }
    PyMem_Free(prompt);
    PyMem_Free(stop_ids);
    PyMem_Free(source);
    return result;
}

static void release(PyObject* self) { sd_beam_search_free(((sd_beam_object*)self)->search); }

static PyObject* prefill_slice(PyObject* base, PyObject* ignored) {
    sd_beam_object* self = (sd_beam_object*)base;
    int done = 0;
    if (enter(self) < 0) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_beam_search_prefill(self->search, &done));
    leave(self);
    return status == SD_OK ? PyBool_FromLong(!done) : sd_raise(status);
}

static PyObject* record_at(const void* records, int i) {
    const sd_beam_record* r = (const sd_beam_record*)records + i;
    return Py_BuildValue("{sisisisisdsdsd}", "n_nodes", r->n_nodes, "n_drafted", r->n_drafted,
                         "n_draft_calls", r->n_draft_calls, "n_levels", r->n_levels, "draft_s", r->draft_s,
                         "verify_s", r->verify_s, "other_s", r->other_s);
}

/* Run rounds for so many seconds; *n: their number. */
static sd_status run_rounds(sd_beam_search* search, double seconds, sd_beam_record records[RECORDS], int* n) {
    double begun = sd_now();
    int ended = 0;
    sd_status status;
    do {
        status = sd_beam_search_round(search, &records[*n], &ended);
        *n += status == SD_OK && !ended;
    } while (status == SD_OK && !ended && *n < RECORDS && sd_now() - begun < seconds);
    return status;
}

static PyObject* round_(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"seconds", NULL};
    sd_beam_object* self = (sd_beam_object*)base;
    double seconds = 0.0;
    sd_beam_record records[RECORDS];
    int n = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d", names, &seconds)) return NULL;
    if (enter(self) < 0) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = run_rounds(self->search, seconds, records, &n));
    leave(self);
    return status == SD_OK ? sd_list_of(n, record_at, records) : sd_raise(status);
}

static PyObject* beam_at(const void* search, int i) {
    int n;
    const sd_beam* beam = &sd_beam_search_beams(search, &n)[i];
    int32_t* tokens = PyMem_Calloc((size_t)sd_beam_search_steps(search) + 1, sizeof *tokens);
    if (tokens == NULL) return PyErr_NoMemory();
    PyObject* list = sd_list_of_ints(tokens, sd_beam_search_tokens(search, i, tokens));
    PyMem_Free(tokens);
    if (list == NULL) return NULL;
    return Py_BuildValue("{sNsdsO}", "tokens", list, "score", beam->score, "ended",
                         beam->ended ? Py_True : Py_False);
}

static PyObject* beams(PyObject* base, PyObject* ignored) {
    sd_beam_object* self = (sd_beam_object*)base;
    if (enter(self) < 0) return NULL;
    int n;
    sd_beam_search_beams(self->search, &n);
    PyObject* list = sd_list_of(n, beam_at, self->search);
    leave(self);
    return list;
}

static PyObject* begin_with(PyObject* base, PyObject* argument) {
    sd_beam_object* self = (sd_beam_object*)base;
    int n = 0;
    const sd_cached_text_object* text = sd_cached_text_from(argument, "text");
    if (text == NULL || enter(self) < 0) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_beam_search_begin_with(self->search, &text->cache, &n));
    leave(self);
    return status == SD_OK ? PyLong_FromLong(n) : sd_raise(status);
}

/* Call `describe` on the cache of a model. */
static PyObject* with_cache(PyObject* base, PyObject* argument,
                            PyObject* (*describe)(sd_model_object* model, const sd_cache* cache)) {
    sd_beam_object* self = (sd_beam_object*)base;
    sd_model_object* model = sd_model_from(argument, "model");
    if (model == NULL || enter(self) < 0) return NULL;
    const sd_cache* cache = sd_beam_search_cache(self->search, model->model);
    PyObject* result = cache ? describe(model, cache) : sd_raise(SD_ERR_VALUE);
    leave(self);
    return result;
}

static PyObject* size_of(sd_model_object* model, const sd_cache* cache) {
    return Py_BuildValue("Nni", sd_list_of_ints(cache->tokens, cache->n_committed),
                         (Py_ssize_t)sd_cache_copy_bytes(cache), sd_cache_copy_low(cache));
}

static PyObject* cached_text(PyObject* self, PyObject* model) {
    return with_cache(self, model, sd_cached_text_new);
}

static PyObject* cached_size(PyObject* self, PyObject* model) { return with_cache(self, model, size_of); }

static PyObject* close_(PyObject* base, PyObject* ignored) {
    sd_beam_object* self = (sd_beam_object*)base;
    if (self->search == NULL) return Py_NewRef(Py_None);
    if (enter(self) < 0) return NULL;
    sd_beam_search_free(self->search);
    self->search = NULL;
    leave(self);
    return Py_NewRef(Py_None);
}

static PyObject* drafts(PyObject* base, void* ignored) {
    sd_beam_object* self = (sd_beam_object*)base;
    if (enter(self) < 0) return NULL;
    int found = self->draft != NULL && sd_beam_search_drafts(self->search);
    leave(self);
    return PyBool_FromLong(found);
}

static PyGetSetDef getters[] = {
    {"drafts", drafts, NULL, "Whether a draft reads the prompt.", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"prefill_slice", prefill_slice, METH_NOARGS, "prefill_slice($self, /)\n--\n\n"},
    {"round", SD_KEYWORDS(round_), "round($self, seconds=0.0)\n--\n\n"},
    {"beams", beams, METH_NOARGS, "beams($self, /)\n--\n\n"},
    {"begin_with", begin_with, METH_O, "begin_with($self, text, /)\n--\n\n"},
    {"cached_text", cached_text, METH_O, "cached_text($self, model, /)\n--\n\n"},
    {"cached_size", cached_size, METH_O, "cached_size($self, model, /)\n--\n\n"},
    {"close", close_, METH_NOARGS, "close($self, /)\n--\n\n"},
    {0},
};

const sd_type_spec sd_beam_type = {
    .doc = "The rounds of a beam search.",
    .size = sizeof(sd_beam_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_beam_object, target), offsetof(sd_beam_object, draft)},
    .methods = methods,
    .getters = getters,
};
