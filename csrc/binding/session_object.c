/* Session: the rounds of one batch. */
#include <string.h>

#include "exclusive.h"
#include "session_arguments.h"
#include "testing.h"
#include "watched.h"

typedef struct session_object {
    PyObject_HEAD sd_session* session; /* owned; NULL before __init__ and after close */
    sd_session_borrowed borrowed;      /* owned; what the session borrows */
    int keep_logits;
    int keep_drafts; /* records say what nodes were drawn from: 0 but in tests (testing.h) */
    sd_exclusive exclusive;
} session_object;

static int enter(session_object* self) {
    return sd_exclusive_enter(&self->exclusive, self->session != NULL, "session", "closed");
}

static void leave(session_object* self) { sd_exclusive_leave(&self->exclusive); }

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    session_object* self = (session_object*)base;
    if (sd_exclusive_enter_init(&self->exclusive, self->borrowed.target != NULL, "Session") < 0) return -1;
    self->borrowed.saved_thread = &self->exclusive.saved_thread;
    sd_session_arguments arguments;
    int result = -1;
    const sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    if (sd_session_arguments_from(args, kwargs, state, &self->borrowed, &arguments) == 0) {
        result = sd_session_make(&arguments, state, &self->borrowed, &self->session);
        self->keep_logits = arguments.keep_logits;
    }
    sd_session_arguments_free(&arguments);
    if (result < 0) sd_session_borrowed_free(&self->borrowed);
    leave(self);
    return result;
}

/* May be called while a thread is in the core: what it reads changes with the GIL only. */
static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    return sd_session_borrowed_traverse(&((session_object*)base)->borrowed, visit, arg);
}

/* Never called while a thread is in the core: that thread has a reference, so the session is not garbage. */
static int clear(PyObject* base) {
    session_object* self = (session_object*)base;
    sd_session_free(self->session); /* first: it borrows from `borrowed` */
    self->session = NULL;
    sd_session_borrowed_free(&self->borrowed);
    return 0;
}

static void dealloc(PyObject* base) {
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    clear(base);
    type->tp_free(base);
    Py_DECREF(type);
}

static sd_status read_slice(void* session, int* done) {
    sd_status status = sd_session_prefill(session, done);
    return status == SD_OK ? sd_session_check_read(session) : status;
}

static PyObject* prefill(PyObject* base, PyObject* ignored) {
    (void)ignored;
    session_object* self = (session_object*)base;
    return sd_exclusive_prefill(&self->exclusive, "session", read_slice, self->session);
}

/* The slots whose prompts are not in yet. */
static PyObject* unread_slots(const session_object* self) {
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < self->borrowed.n_slots; i++) {
        if (sd_session_is_ready(self->session, i)) continue;
        PyObject* item = PyLong_FromLong(i);
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject* prefill_slice(PyObject* base, PyObject* ignored) {
    (void)ignored;
    session_object* self = (session_object*)base;
    int done = 0;
    if (enter(self) < 0) return NULL;
    sd_gil_release(&self->exclusive.saved_thread);
    sd_status status = sd_session_prefill(self->session, &done);
    sd_gil_take(&self->exclusive.saved_thread);
    PyObject* unread = status == SD_OK ? unread_slots(self) : sd_raise(status);
    leave(self);
    return unread;
}

/* What the caller's draft has raised for a sequence, which is then forgotten: a new reference, or NULL. */
static PyObject* take_failure(const session_object* self, int sequence) {
    PyObject* key = self->borrowed.failures ? PyLong_FromLong(sequence) : NULL;
    PyObject* exception = key ? PyDict_GetItemWithError(self->borrowed.failures, key) : NULL;
    Py_XINCREF(exception);
    if (exception != NULL) PyDict_DelItem(self->borrowed.failures, key);
    PyErr_Clear();
    Py_XDECREF(key);
    return exception;
}

/* Why the sequence has failed in the round, an exception, or None. */
static PyObject* error_of(session_object* self, const sd_record* record) {
    if (record->status == SD_OK) return Py_NewRef(Py_None);
    if (record->status != SD_ERR_CALLBACK) {
        sd_raise(sd_fail(record->status, "%s", record->message));
        return sd_take_exception();
    }
    PyObject* exception = sd_slot_take_exception(&self->borrowed.slots[record->sequence]);
    if (exception == NULL) exception = take_failure(self, record->sequence);
    if (exception != NULL) return exception;
    PyErr_NoMemory(); /* there was none to note it */
    return sd_take_exception();
}

/* Which drafter of several each guess is of, where the sequence has a prediction; else None. */
static PyObject* origins_of(const sd_record* record) {
    if (record->settings->n_prediction == 0) return Py_NewRef(Py_None);
    return sd_list_of_ints(record->origins + 1, record->tree.n_nodes - 1);
}

/* Tokens of the accepted path, then the target's own; none of a sequence that has failed. */
static PyObject* new_tokens(const sd_record* record) {
    const sd_verdict* v = &record->verdict;
    if (record->status != SD_OK) return PyList_New(0);
    PyObject* list = PyList_New(v->n_path + 1);
    for (int i = 0; list != NULL && i <= v->n_path; i++) {
        PyObject* item = PyLong_FromLong(i < v->n_path ? record->tree.tokens[v->path[i]] : v->token);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

/* Logits that each new token was chosen from: after the root and after each accepted node. */
static PyObject* new_logits(const session_object* self, const sd_record* record) {
    if (!self->keep_logits || record->status != SD_OK) return Py_NewRef(Py_None);
    size_t n_vocab = (size_t)self->borrowed.target->model->config.n_vocab;
    ptrdiff_t stride;
    const float* logits = sd_session_logits(self->session, &stride);
    float* out;
    const sd_verdict* v = &record->verdict;
    PyObject* array = sd_new_array("float32", v->n_path + 1, (Py_ssize_t)n_vocab, (void**)&out);
    for (int i = 0; array != NULL && i <= v->n_path; i++) {
        ptrdiff_t row = record->logits_row + (i == 0 ? 0 : record->node_rows[v->path[i - 1]]);
        memcpy(out + (size_t)i * n_vocab, logits + row * stride, n_vocab * sizeof *out);
    }
    return array;
}

/* A new NumPy array with a copy of values [n, n_cols] (n_cols < 0: [n]), of `size` bytes each. */
static PyObject* copied(const char* dtype, const void* values, size_t size, Py_ssize_t n, Py_ssize_t n_cols) {
    void* out;
    PyObject* array = sd_new_array(dtype, n, n_cols, &out);
    if (array != NULL) memcpy(out, values, size * (size_t)n * (size_t)(n_cols < 0 ? 1 : n_cols));
    return array;
}

/* (ln p, top tokens, their ln p) of the new tokens; None unless asked for. */
static PyObject* new_laws(const sd_record* record) {
    const sd_logprobs_options* o = &record->settings->logprobs;
    if (record->status != SD_OK || o->of == SD_LOGPROBS_NONE) return Py_NewRef(Py_None);
    const sd_logprobs* logprobs = &record->logprobs;
    int n = record->verdict.n_path + 1;
    PyObject* log_probs = copied("float64", logprobs->log_probs, sizeof *logprobs->log_probs, n, -1);
    PyObject* top = log_probs ? copied("int32", logprobs->top_tokens, sizeof(int32_t), n, o->n_top) : NULL;
    PyObject* of_top = top ? copied("float64", logprobs->top_log_probs, sizeof(double), n, o->n_top) : NULL;
    PyObject* tuple = of_top ? PyTuple_Pack(3, log_probs, top, of_top) : NULL;
    Py_XDECREF(log_probs);
    Py_XDECREF(top);
    Py_XDECREF(of_top);
    return tuple;
}

static PyObject* record_to_dict(session_object* self, const sd_record* record) {
    const sd_verdict* v = &record->verdict;
    int n_drafted = record->tree.n_nodes - 1;
    enum { N_PARTS = 9 };
    PyObject* parts[N_PARTS] = {NULL};
    /* No part is made after one has failed: Python code must not run with an exception set. */
    int complete = (parts[0] = sd_list_of_ints(record->tree.tokens + 1, n_drafted)) != NULL &&
                   (parts[1] = sd_list_of_ints(record->tree.parents + 1, n_drafted)) != NULL &&
                   (parts[2] = sd_list_of_ints(v->path, v->n_path)) != NULL &&
                   (parts[3] = new_tokens(record)) != NULL &&
                   (parts[4] = sd_list_of_floats(v->betas, v->n_betas)) != NULL &&
                   (parts[5] = new_logits(self, record)) != NULL && (parts[6] = new_laws(record)) != NULL &&
                   (parts[7] = origins_of(record)) != NULL && (parts[8] = error_of(self, record)) != NULL;
    PyObject* dict =
        complete ? Py_BuildValue("{sisisisOsOsOsOsOsOsOsOsOsdsdsdsd}", "sequence", record->sequence, "n_rows",
                                 record->n_rows, "complete", record->complete, "drafted", parts[0], "parents",
                                 parts[1], "accepted", parts[2], "tokens", parts[3], "betas", parts[4],
                                 "logits", parts[5], "laws", parts[6], "origins", parts[7], "error", parts[8],
                                 "experts", record->experts, "draft_s", record->draft_s, "verify_s",
                                 record->verify_s, "other_s", record->other_s)
                 : NULL;
    for (int i = 0; i < N_PARTS; i++) Py_XDECREF(parts[i]);
#ifdef SPECDEC_TESTING
    int n_vocab = self->borrowed.target->model->config.n_vocab;
    if (dict != NULL && self->keep_drafts && sd_add_drafts(dict, self->session, record, n_vocab) < 0)
        Py_CLEAR(dict);
#endif
    return dict;
}

/* Of a sequence that takes no rounds in a call. */
#define SITS_OUT (-1)

/* Guesses of each sequence in the next rounds. */
static int gammas_from(const session_object* self, PyObject* list, int32_t** gammas) {
    int n;
    if (sd_ids_from(list, "gammas", gammas, &n) < 0) return -1;
    sd_status status =
        n == self->borrowed.n_slots
            ? SD_OK
            : sd_fail(SD_ERR_SHAPE, "gammas has %d entries, expected %d", n, self->borrowed.n_slots);
    for (int i = 0; i < n && status == SD_OK; i++)
        if ((*gammas)[i] != SITS_OUT) status = sd_gamma_check((*gammas)[i]);
    if (status == SD_OK) return 0;
    PyMem_Free(*gammas);
    sd_raise(status);
    return -1;
}

static PyObject* round_(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"seconds", "until_end", "gammas", NULL};
    session_object* self = (session_object*)base;
    double seconds = 0.0;
    int until_end = 0;
    PyObject* argument = Py_None;
    int32_t* gammas = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d$pO", names, &seconds, &until_end, &argument))
        return NULL;
    if (enter(self) < 0) return NULL;
    if (argument != Py_None && gammas_from(self, argument, &gammas) < 0) {
        leave(self);
        return NULL;
    }
    if (self->keep_logits || self->keep_drafts) seconds = 0.0; /* only the last round's are there */
    sd_gil_release(&self->exclusive.saved_thread); /* functions of the caller's take it for a while */
    sd_status status = sd_session_rounds(self->session, seconds, until_end, gammas);
    sd_gil_take(&self->exclusive.saved_thread);
    PyMem_Free(gammas);
    if (status != SD_OK) {
        leave(self);
        return sd_raise(status);
    }
    int n;
    const sd_record* records = sd_session_records(self->session, &n);
    PyObject* list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* item = record_to_dict(self, &records[i]);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    leave(self);
    return list;
}

static PyObject* finish(PyObject* base, PyObject* argument) {
    session_object* self = (session_object*)base;
    long sequence = PyLong_AsLong(argument);
    if (sequence == -1 && PyErr_Occurred()) return NULL;
    if (sequence < 0 || sequence > INT32_MAX) sequence = -1; /* refused by the core */
    if (enter(self) < 0) return NULL;
    sd_status status = sd_session_finish(self->session, (int)sequence);
    leave(self);
    return status == SD_OK ? Py_NewRef(Py_None) : sd_raise(status);
}

/* The rest of `replace`, in an entered session. */
static PyObject* replace_in(session_object* self, int sequence, sd_prompt* prompt, PyObject* argument) {
    sd_session_borrowed* b = &self->borrowed;
    if (argument == Py_None) argument = b->usual ? (PyObject*)b->usual : Py_None;
    sd_settings_object* settings =
        sd_settings_from(PyType_GetModuleState(Py_TYPE((PyObject*)self)), argument);
    if (settings == NULL) return NULL;
    sd_slot spare = {0};
    sd_slot* slot =
        sequence >= 0 && sequence < b->n_slots ? &b->slots[sequence] : &spare; /* the core refuses */
    sd_slot with;
    if (sd_slot_with(b, slot, settings, &with) < 0) return NULL;
    prompt->settings = &with.settings;
    sd_status status = sd_session_replace(self->session, sequence, prompt);
    if (status == SD_OK) {
        sd_slot_set(slot, &with);
        return Py_NewRef(Py_None);
    }
    sd_slot_drop(&with);
    if (slot == &spare) {
        sd_state_tree_free(&spare.states);
        sd_constraint_free(spare.constraint);
    }
    return sd_raise(status);
}

static PyObject* replace(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"", "", "", "source", "settings", NULL};
    session_object* self = (session_object*)base;
    int sequence;
    PyObject *ids, *seed, *source = NULL, *argument = Py_None;
    sd_prompt prompt;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOO|$OO", names, &sequence, &ids, &seed, &source,
                                     &argument))
        return NULL;
    if (sd_prompt_from(ids, seed, source, &prompt) < 0) return NULL;
    PyObject* result = NULL;
    if (enter(self) == 0) {
        result = replace_in(self, sequence, &prompt, argument);
        leave(self);
    }
    sd_prompt_free(&prompt);
    return result;
}

static PyObject* swap(PyObject* base, PyObject* args) {
    session_object* self = (session_object*)base;
    PyObject *argument, *draft;
    if (!PyArg_ParseTuple(args, "OO", &argument, &draft)) return NULL;
    sd_corrections_object* corrections = sd_corrections_from(PyType_GetModuleState(Py_TYPE(base)), argument);
    if (corrections == NULL || enter(self) < 0) return NULL;
    int result = sd_swap_watched(self->session, &self->borrowed.context, corrections, draft);
    leave(self);
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

/* What a call asks for: a sequence and, if not the target, a model. Returns the cache of the model, in an
 * entered session, and the model, borrowed; NULL with an exception. */
static const sd_cache* cache_of(const session_object* self, PyObject* args, sd_model_object** model) {
    int sequence;
    PyObject* argument = Py_None;
    if (!PyArg_ParseTuple(args, "i|O", &sequence, &argument)) return NULL;
    if (argument == Py_None) argument = (PyObject*)self->borrowed.target;
    *model = sd_model_from(PyType_GetModuleState(Py_TYPE((PyObject*)self)), argument, "model");
    if (*model == NULL) return NULL;
    const sd_cache* cache = sd_session_cache(self->session, sequence, (*model)->model);
    if (cache == NULL) sd_raise(SD_ERR_VALUE);
    return cache;
}

static PyObject* cached_text(PyObject* base, PyObject* args) {
    session_object* self = (session_object*)base;
    if (enter(self) < 0) return NULL;
    const sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    sd_model_object* model;
    const sd_cache* cache = cache_of(self, args, &model);
    PyObject* text = cache ? sd_cached_text_new(state->cached_text_type, model, cache) : NULL;
    leave(self);
    return text;
}

static PyObject* source_of(const sd_cache* cache) {
    const sd_encoded* encoded = cache->encoded;
    return encoded ? sd_list_of_ints(encoded->source, encoded->n) : Py_NewRef(Py_None);
}

static PyObject* cached_size(PyObject* base, PyObject* args) {
    session_object* self = (session_object*)base;
    if (enter(self) < 0) return NULL;
    sd_model_object* model;
    const sd_cache* cache = cache_of(self, args, &model);
    PyObject* tokens = cache ? sd_list_of_ints(cache->tokens, cache->n_committed) : NULL;
    PyObject* source = tokens ? source_of(cache) : NULL;
    PyObject* size = source ? Py_BuildValue("OOni", tokens, source, (Py_ssize_t)sd_cache_copy_bytes(cache),
                                            sd_cache_copy_low(cache))
                            : NULL;
    Py_XDECREF(tokens);
    Py_XDECREF(source);
    leave(self);
    return size;
}

static PyObject* taps(PyObject* base, PyObject* args) {
    session_object* self = (session_object*)base;
    if (enter(self) < 0) return NULL;
    sd_model_object* model;
    const sd_cache* cache = cache_of(self, args, &model);
    PyObject* tuple = cache ? sd_taps_as_tuple(&cache->taps) : NULL;
    leave(self);
    return tuple;
}

static PyObject* begin_with(PyObject* base, PyObject* args) {
    session_object* self = (session_object*)base;
    int sequence, n = 0;
    PyObject* argument;
    if (!PyArg_ParseTuple(args, "iO", &sequence, &argument)) return NULL;
    const sd_cached_text_object* text = sd_cached_text_from(PyType_GetModuleState(Py_TYPE(base)), argument);
    if (text == NULL || enter(self) < 0) return NULL;
    sd_gil_release(&self->exclusive.saved_thread);
    sd_status status = sd_session_begin_with(self->session, sequence, &text->cache, &n);
    sd_gil_take(&self->exclusive.saved_thread);
    leave(self);
    return status == SD_OK ? PyLong_FromLong(n) : sd_raise(status);
}

static PyObject* close_(PyObject* base, PyObject* ignored) {
    (void)ignored;
    session_object* self = (session_object*)base;
    if (self->session == NULL) return Py_NewRef(Py_None);
    if (enter(self) < 0) return NULL;
    sd_session_free(self->session);
    self->session = NULL;
    leave(self);
    return Py_NewRef(Py_None);
}

static PyObject* adaptive_gamma(PyObject* base, void* ignored) {
    (void)ignored;
    session_object* self = (session_object*)base;
    /* A closed session still has it. */
    if (sd_exclusive_enter(&self->exclusive, 1, "session", "closed") < 0) return NULL;
    const sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    PyObject* result = self->borrowed.is_adaptive
                           ? sd_adaptive_gamma_new(state->adaptive_gamma_type, &self->borrowed.adaptive_gamma)
                           : Py_NewRef(Py_None);
    leave(self);
    return result;
}

#ifdef SPECDEC_TESTING
static PyObject* keep_drafts(PyObject* base, PyObject* ignored) {
    (void)ignored;
    ((session_object*)base)->keep_drafts = 1;
    return Py_NewRef(Py_None);
}
#endif

static PyGetSetDef properties[] = {
    {"adaptive_gamma", adaptive_gamma, NULL, "What gamma='auto' has learnt so far; None without.", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"prefill", prefill, METH_NOARGS, "prefill($self, /)\n--\n\nRead the prompts; return seconds."},
    {"prefill_slice", prefill_slice, METH_NOARGS,
     "prefill_slice($self, /)\n--\n\nRead one slice of the prompts; return the slots whose prompts "
     "are not in yet."},
    {"round", (PyCFunction)(void (*)(void))round_, METH_VARARGS | METH_KEYWORDS,
     "round($self, seconds=0.0, *, until_end=False, gammas=None)\n--\n\nRounds for every unfinished "
     "sequence: one, and more within `seconds`."},
    {"finish", finish, METH_O, "finish($self, sequence, /)\n--\n\nTake no more rounds for this sequence."},
    {"replace", (PyCFunction)(void (*)(void))replace, METH_VARARGS | METH_KEYWORDS,
     "replace($self, sequence, prompt, seed, /, *, source=None, settings=None)\n--\n\nGive a finished "
     "sequence's batch slot, or an empty one, to another prompt."},
    {"swap", swap, METH_VARARGS,
     "swap($self, corrections, draft, /)\n--\n\nLet another draft take the place of the one that is watched "
     "with `corrections`."},
    {"begin_with", begin_with, METH_VARARGS,
     "begin_with($self, sequence, text, /)\n--\n\nBegin a prompt that is not read yet with what a CachedText "
     "has of it; return how many of its tokens are there then."},
    {"cached_text", cached_text, METH_VARARGS,
     "cached_text($self, sequence, model=None, /)\n--\n\nThe keys and values of a sequence's text so far, "
     "as a CachedText."},
    {"taps", taps, METH_VARARGS,
     "taps($self, sequence, model=None, /)\n--\n\nThe hidden states that a sequence's text is kept with."},
    {"cached_size", cached_size, METH_VARARGS,
     "cached_size($self, sequence, model=None, /)\n--\n\nTokens and source of this CachedText, the "
     "memory that it takes, and its n_low."},
    {"close", close_, METH_NOARGS, "close($self, /)\n--\n\nFree caches and scratch; idempotent."},
#ifdef SPECDEC_TESTING
    {"_keep_drafts", keep_drafts, METH_NOARGS, "Records say from now on what their nodes were drawn from."},
#endif
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The rounds of one batch of sequences."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_session_spec = {
    .name = "specdec._core.Session",
    .basicsize = sizeof(session_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
