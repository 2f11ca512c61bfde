/* BeamSearch: the rounds of a beam search. */
#include "beam_search.h"
#include "clock.h"
#include "exclusive.h"
#include "module.h"

typedef struct beam_object {
    PyObject_HEAD sd_beam_search* search; /* owned; NULL before __init__ and after close */
    sd_model_object *target, *draft;      /* strong references; draft may be NULL */
    sd_exclusive exclusive;
} beam_object;

/* Records that a call may return. */
#define RECORDS 64

static int enter(beam_object* self) {
    return sd_exclusive_enter(&self->exclusive, self->search != NULL, "search", "closed");
}

static void leave(beam_object* self) { sd_exclusive_leave(&self->exclusive); }

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"target",         "draft",    "prompt",    "width",  "draft_width", "gamma",
                            "max_new_tokens", "stop_ids", "n_threads", "source", NULL};
    beam_object* self = (beam_object*)base;
    PyObject *target_argument, *draft_argument, *prompt_argument, *stop_argument = NULL,
                                                                  *source_argument = NULL;
    sd_beam_options o = {.gamma = -1, .n_threads = 1}; /* what is not given is refused by the core */
    int32_t *prompt = NULL, *stop_ids = NULL, *source = NULL;
    int n = 0, result = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$iiiiOiO", names, &target_argument, &draft_argument,
                                     &prompt_argument, &o.width, &o.draft_width, &o.gamma, &o.max_new_tokens,
                                     &stop_argument, &o.n_threads, &source_argument))
        return -1;
    sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    sd_model_object *target = sd_model_from(state, target_argument, "target"), *draft = NULL;
    if (target == NULL) return -1;
    if (draft_argument != Py_None && (draft = sd_model_from(state, draft_argument, "draft")) == NULL)
        return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->target != NULL, "BeamSearch") < 0) return -1;
    o.target = target->model;
    o.draft = draft ? draft->model : NULL;
    if (sd_ids_from(prompt_argument, "prompt", &prompt, &n) < 0) goto end;
    if (stop_argument != NULL && sd_ids_from(stop_argument, "stop_ids", &stop_ids, &o.n_stop_ids) < 0)
        goto end;
    o.stop_ids = stop_ids;
    if (sd_optional_ids_from(source_argument, "source", &source, &o.n_source) < 0) goto end;
    o.source = source;
    sd_status status = sd_beam_search_create(&o, prompt, n, &self->search);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    self->target = (sd_model_object*)Py_NewRef((PyObject*)target);
    if (draft) self->draft = (sd_model_object*)Py_NewRef((PyObject*)draft);
    result = 0;
end:
    PyMem_Free(prompt);
    PyMem_Free(stop_ids);
    PyMem_Free(source);
    leave(self);
    return result;
}

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT((PyObject*)((beam_object*)base)->target);
    Py_VISIT((PyObject*)((beam_object*)base)->draft);
    return 0;
}

static void dealloc(PyObject* base) {
    beam_object* self = (beam_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    sd_beam_search_free(self->search);
    Py_XDECREF((PyObject*)self->target);
    Py_XDECREF((PyObject*)self->draft);
    type->tp_free(base);
    Py_DECREF(type);
}

static sd_status read_slice(void* search, int* done) { return sd_beam_search_prefill(search, done); }

static PyObject* prefill(PyObject* base, PyObject* ignored) {
    (void)ignored;
    beam_object* self = (beam_object*)base;
    return sd_exclusive_prefill(&self->exclusive, "search", read_slice, self->search);
}

static PyObject* record_to_dict(const sd_beam_record* r) {
    return Py_BuildValue("{sisisisisdsdsd}", "n_nodes", r->n_nodes, "n_drafted", r->n_drafted,
                         "n_draft_calls", r->n_draft_calls, "n_levels", r->n_levels, "draft_s", r->draft_s,
                         "verify_s", r->verify_s, "other_s", r->other_s);
}

static PyObject* round_(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"seconds", NULL};
    beam_object* self = (beam_object*)base;
    double seconds = 0.0;
    sd_beam_record records[RECORDS];
    int n = 0, ended = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d", names, &seconds)) return NULL;
    if (enter(self) < 0) return NULL;
    sd_status status;
    sd_gil_release(&self->exclusive.saved_thread);
    double begun = sd_now();
    do {
        status = sd_beam_search_round(self->search, &records[n], &ended);
        n += status == SD_OK && !ended;
    } while (status == SD_OK && !ended && n < RECORDS && sd_now() - begun < seconds);
    sd_gil_take(&self->exclusive.saved_thread);
    leave(self);
    if (status != SD_OK) return sd_raise(status);
    PyObject* list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* item = record_to_dict(&records[i]);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject* beam_to_dict(const beam_object* self, int index, const sd_beam* beam, int32_t* tokens) {
    PyObject* list = sd_list_of_ints(tokens, sd_beam_search_tokens(self->search, index, tokens));
    if (list == NULL) return NULL;
    return Py_BuildValue("{sNsdsO}", "tokens", list, "score", beam->score, "ended",
                         beam->ended ? Py_True : Py_False);
}

static PyObject* beams(PyObject* base, PyObject* ignored) {
    (void)ignored;
    beam_object* self = (beam_object*)base;
    if (enter(self) < 0) return NULL;
    int n;
    const sd_beam* found = sd_beam_search_beams(self->search, &n);
    int32_t* tokens = PyMem_Calloc((size_t)sd_beam_search_steps(self->search) + 1, sizeof *tokens);
    PyObject* list = tokens ? PyList_New(n) : PyErr_NoMemory();
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* item = beam_to_dict(self, i, &found[i], tokens);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    PyMem_Free(tokens);
    leave(self);
    return list;
}

static PyObject* begin_with(PyObject* base, PyObject* argument) {
    beam_object* self = (beam_object*)base;
    int n = 0;
    const sd_cached_text_object* text = sd_cached_text_from(PyType_GetModuleState(Py_TYPE(base)), argument);
    if (text == NULL || enter(self) < 0) return NULL;
    sd_gil_release(&self->exclusive.saved_thread);
    sd_status status = sd_beam_search_begin_with(self->search, &text->cache, &n);
    sd_gil_take(&self->exclusive.saved_thread);
    leave(self);
    return status == SD_OK ? PyLong_FromLong(n) : sd_raise(status);
}

/* The cache of a model, borrowed, in an entered search; NULL with an exception. */
static const sd_cache* cache_of(const beam_object* self, const sd_model_object* model) {
    const sd_cache* cache = sd_beam_search_cache(self->search, model->model);
    if (cache == NULL) sd_raise(SD_ERR_VALUE);
    return cache;
}

static PyObject* cached_text(PyObject* base, PyObject* argument) {
    beam_object* self = (beam_object*)base;
    const sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    sd_model_object* model = sd_model_from(state, argument, "model");
    if (model == NULL || enter(self) < 0) return NULL;
    const sd_cache* cache = cache_of(self, model);
    PyObject* text = cache ? sd_cached_text_new(state->cached_text_type, model, cache) : NULL;
    leave(self);
    return text;
}

static PyObject* cached_size(PyObject* base, PyObject* argument) {
    beam_object* self = (beam_object*)base;
    sd_model_object* model = sd_model_from(PyType_GetModuleState(Py_TYPE(base)), argument, "model");
    if (model == NULL || enter(self) < 0) return NULL;
    const sd_cache* cache = cache_of(self, model);
    PyObject* tokens = cache ? sd_list_of_ints(cache->tokens, cache->n_committed) : NULL;
    PyObject* size = tokens ? Py_BuildValue("Nni", tokens, (Py_ssize_t)sd_cache_copy_bytes(cache),
                                            sd_cache_copy_low(cache))
                            : NULL;
    leave(self);
    return size;
}

static PyObject* close_(PyObject* base, PyObject* ignored) {
    (void)ignored;
    beam_object* self = (beam_object*)base;
    if (self->search == NULL) return Py_NewRef(Py_None);
    if (enter(self) < 0) return NULL;
    sd_beam_search_free(self->search);
    self->search = NULL;
    leave(self);
    return Py_NewRef(Py_None);
}

static PyObject* drafts(PyObject* base, void* ignored) {
    (void)ignored;
    beam_object* self = (beam_object*)base;
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
    {"prefill", prefill, METH_NOARGS, "prefill($self, /)\n--\n\nRead the prompt; return seconds."},
    {"round", (PyCFunction)(void (*)(void))round_, METH_VARARGS | METH_KEYWORDS,
     "round($self, seconds=0.0)\n--\n\nA round, and more within `seconds`: their records; [] at the end."},
    {"beams", beams, METH_NOARGS, "beams($self, /)\n--\n\nThe hypotheses so far, best first."},
    {"begin_with", begin_with, METH_O,
     "begin_with($self, text, /)\n--\n\nBegin the prompt with what a CachedText has of it; return how many "
     "tokens are there."},
    {"cached_text", cached_text, METH_O,
     "cached_text($self, model, /)\n--\n\nThe keys and values of the prompt, and of what all hypotheses "
     "have in common, as a CachedText."},
    {"cached_size", cached_size, METH_O,
     "cached_size($self, model, /)\n--\n\nTokens of this CachedText, the memory that it takes, its n_low."},
    {"close", close_, METH_NOARGS, "close($self, /)\n--\n\nFree caches and scratch; idempotent."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The rounds of a beam search."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_beam_spec = {
    .name = "specdec._core.BeamSearch",
    .basicsize = sizeof(beam_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
