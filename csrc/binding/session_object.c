/* Session: the rounds of one batch. */
#include "session_arguments.h"

struct sd_session_object {
    sd_object base;
    sd_session* session;          /* owned; NULL after close */
    sd_session_borrowed borrowed; /* owned; what the session borrows */
    int keep_logits;
    int keep_drafts; /* records include the distributions of nodes: 0 except in tests (testing.h) */
    sd_exclusive exclusive;
};

static int enter(sd_session_object* self) {
    return sd_exclusive_enter(&self->exclusive, self->session != NULL, "session", "closed");
}

static void leave(sd_session_object* self) { sd_exclusive_leave(&self->exclusive); }

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_session_object* self = (sd_session_object*)object;
    self->borrowed.saved_thread = &self->exclusive.saved_thread;
    if (sd_slot_round_begin(PyType_GetModuleState(Py_TYPE(object))) < 0) return -1;
    return sd_session_from_arguments(args, kwargs, &self->borrowed, &self->session, &self->keep_logits);
}

/* May be called while a thread is in the core: what it reads only changes with the GIL held. */
static int traverse(PyObject* self, visitproc visit, void* arg) {
    return sd_session_borrowed_traverse(&((sd_session_object*)self)->borrowed, visit, arg);
}

/* Never called while a thread is in the core: that thread has a reference, so the session is not garbage. */
static void release(PyObject* object) {
    sd_session_object* self = (sd_session_object*)object;
    sd_session_free(self->session); /* first: it borrows from `borrowed` */
    self->session = NULL;
    sd_session_borrowed_free(&self->borrowed);
}

/* Slots whose prompts have not been read yet. */
static PyObject* unread_slots(const sd_session_object* self) {
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
    sd_session_object* self = (sd_session_object*)base;
    int done = 0;
    if (enter(self) < 0) return NULL;
    sd_status status;
    SD_WITHOUT_GIL_AS(&self->exclusive.saved_thread, status = sd_session_prefill(self->session, &done));
    PyObject* unread = status == SD_OK ? unread_slots(self) : sd_raise(status);
    leave(self);
    return unread;
}

/* Take the exception that a user's draft has raised for a sequence: a new reference, or NULL. */
static PyObject* take_failure(const sd_session_object* self, int sequence) {
    PyObject* key = self->borrowed.failures ? PyLong_FromLong(sequence) : NULL;
    PyObject* exception = key ? PyDict_GetItemWithError(self->borrowed.failures, key) : NULL;
    Py_XINCREF(exception);
    if (exception != NULL) PyDict_DelItem(self->borrowed.failures, key);
    PyErr_Clear();
    Py_XDECREF(key);
    return exception;
}

/* The exception of a sequence that has failed in the round. */
static PyObject* error_of(sd_session_object* self, const sd_record* record) {
    if (record->status != SD_ERR_CALLBACK) {
        sd_raise(sd_fail(record->status, "%s", record->message));
        return sd_take_exception();
    }
    PyObject* exception = sd_slot_take_exception(&self->borrowed.slots[record->sequence]);
    if (exception == NULL) exception = take_failure(self, record->sequence);
    if (exception != NULL) return exception;
    PyErr_NoMemory(); /* there was no memory to record it */
    return sd_take_exception();
}

/* A record of the last rounds as a SlotRound; a new reference, or NULL with an exception. */
static PyObject* slot_round_at(const void* object, int i) {
    sd_session_object* self = (sd_session_object*)object;
    int n;
    const sd_record* record = &sd_session_records(self->session, &n)[i];
    PyObject* error = NULL;
    if (record->status != SD_OK && (error = error_of(self, record)) == NULL) return NULL;
    const sd_slot_round_source source = {.session = self->session,
                                         .record = record,
                                         .n_vocab = self->borrowed.target->model->config.n_vocab,
                                         .index = self->borrowed.slots[record->sequence].n_rounds++,
                                         .keep_logits = self->keep_logits,
                                         .keep_drafts = self->keep_drafts,
                                         .error = error};
    PyObject* made = sd_slot_round_new(PyType_GetModuleState(Py_TYPE((PyObject*)self)), &source);
    Py_XDECREF(error);
    return made;
}

/* Gamma of a sequence that takes no rounds in a call. */
#define SITS_OUT (-1)

/* Draft tokens of each sequence in the next rounds. */
static int gammas_from(const sd_session_object* self, PyObject* list, int32_t** gammas) {
    int n;
    if (sd_ids_from(list, "gammas", gammas, &n) < 0) return -1;
    if (n != self->borrowed.n_slots)
        return sd_refuse("gammas has %d entries, expected %d", n, self->borrowed.n_slots);
    sd_status status = SD_OK;
    for (int i = 0; i < n && status == SD_OK; i++)
        if ((*gammas)[i] != SITS_OUT) status = sd_gamma_check((*gammas)[i]);
    return sd_passed(status);
}

static PyObject* round_(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"seconds", "until_end", "gammas", NULL};
    sd_session_object* self = (sd_session_object*)base;
    double seconds = 0.0;
    int until_end = 0, n = 0;
    PyObject *argument = Py_None, *list = NULL;
    int32_t* gammas = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d$pO", names, &seconds, &until_end, &argument))
        return NULL;
    if (enter(self) < 0) return NULL;
    if (argument == Py_None || gammas_from(self, argument, &gammas) == 0) {
        if (self->keep_logits || self->keep_drafts) seconds = 0.0; /* only the last round's are available */
        sd_status status;
        SD_WITHOUT_GIL_AS(&self->exclusive.saved_thread, /* user callbacks take it temporarily */
                          status = sd_session_rounds(self->session, seconds, until_end, gammas));
        if (sd_passed(status) == 0) {
            sd_session_records(self->session, &n);
            list = sd_list_of(n, slot_round_at, self);
        }
    }
    PyMem_Free(gammas);
    leave(self);
    return list;
}

static PyObject* finish(PyObject* base, PyObject* argument) {
    sd_session_object* self = (sd_session_object*)base;
    long sequence = PyLong_AsLong(argument);
    if (sequence == -1 && PyErr_Occurred()) return NULL;
    if (sequence < 0 || sequence > INT32_MAX) sequence = -1; /* rejected by the core */
    if (enter(self) < 0) return NULL;
    sd_status status = sd_session_finish(self->session, (int)sequence);
    leave(self);
    return sd_none_if(status);
}

/* Continue `admit` in an entered session. */
static PyObject* admit_in(sd_session_object* self, int sequence, sd_prompt* prompt, PyObject* argument) {
    sd_session_borrowed* b = &self->borrowed;
    sd_settings_object* settings = sd_settings_from(argument, "settings");
    if (settings == NULL) return NULL;
    if (sequence < 0 || sequence >= b->n_slots)
        return PyErr_Format(PyExc_ValueError, "sequence is %d, expected 0 to %d", sequence, b->n_slots - 1);
    sd_slot *slot = &b->slots[sequence], with;
    if (sd_slot_with(b, slot, settings, &with) < 0) return NULL;
    prompt->settings = &with.settings;
    sd_status status = sd_session_admit(self->session, sequence, prompt);
    if (status != SD_OK) {
        sd_slot_drop(&with);
        return sd_raise(status);
    }
    sd_slot_set(slot, &with);
    return PyUnicode_FromString(sd_rule_name(sd_session_rule(self->session, sequence)));
}

static PyObject* admit(PyObject* base, PyObject* args) {
    sd_session_object* self = (sd_session_object*)base;
    int sequence;
    PyObject *ids, *seed, *settings, *source = NULL;
    sd_prompt prompt;
    if (!PyArg_ParseTuple(args, "iOOO|O", &sequence, &ids, &seed, &settings, &source)) return NULL;
    if (sd_prompt_from(ids, seed, source, &prompt) < 0) return NULL;
    PyObject* result = NULL;
    if (enter(self) == 0) {
        result = admit_in(self, sequence, &prompt, settings);
        leave(self);
    }
    sd_prompt_free(&prompt);
    return result;
}

/* Any thread may call it while another is in the core: what it reads only changes by `close`. */
static PyObject* check(PyObject* base, PyObject* argument) {
    const sd_session_object* self = (sd_session_object*)base;
    const sd_settings_object* settings = sd_settings_from(argument, "settings");
    if (settings == NULL) return NULL;
    if (self->session == NULL) return Py_NewRef(Py_None); /* closed meanwhile */
    return sd_none_if(sd_session_check_settings(self->session, &settings->settings));
}

static PyObject* swap(PyObject* base, PyObject* args) {
    sd_session_object* self = (sd_session_object*)base;
    PyObject *argument, *draft;
    if (!PyArg_ParseTuple(args, "OO", &argument, &draft)) return NULL;
    sd_online_samples_object* samples = sd_online_samples_from(argument, "samples");
    if (samples == NULL || enter(self) < 0) return NULL;
    int result = sd_swap_recorded(self->session, &self->borrowed.context, samples, draft);
    leave(self);
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

/* Call `describe` on the cache of a sequence and of a model, by default the target. */
static PyObject* with_cache(PyObject* base, PyObject* args,
                            PyObject* (*describe)(sd_model_object* model, const sd_cache* cache)) {
    sd_session_object* self = (sd_session_object*)base;
    int sequence;
    PyObject *argument = (PyObject*)self->borrowed.target, *result = NULL;
    if (!PyArg_ParseTuple(args, "i|O", &sequence, &argument)) return NULL;
    if (argument == Py_None) argument = (PyObject*)self->borrowed.target;
    if (enter(self) < 0) return NULL;
    sd_model_object* model = sd_model_from(argument, "model");
    const sd_cache* cache = model ? sd_session_cache(self->session, sequence, model->model) : NULL;
    if (cache != NULL)
        result = describe(model, cache);
    else if (model != NULL)
        sd_raise(SD_ERR_VALUE);
    leave(self);
    return result;
}

static PyObject* size_of(sd_model_object* model, const sd_cache* cache) {
    const sd_encoded* encoded = cache->encoded;
    return Py_BuildValue("NNni", sd_list_of_ints(cache->tokens, cache->n_committed),
                         encoded ? sd_list_of_ints(encoded->source, encoded->n) : Py_NewRef(Py_None),
                         (Py_ssize_t)sd_cache_copy_bytes(cache), sd_cache_copy_low(cache));
}

static PyObject* captures_of(sd_model_object* model, const sd_cache* cache) {
    return sd_tuple_of_ints(cache->captures.layers, cache->captures.n);
}

static PyObject* snapshots_of_copy(sd_model_object* model, const sd_cache* cache) {
    return sd_snapshots_of(cache, sd_cache_copy_window_low(cache));
}

static PyObject* snapshots(PyObject* self, PyObject* args) {
    return with_cache(self, args, snapshots_of_copy);
}

static PyObject* keep_snapshots(PyObject* base, PyObject* args) {
    sd_session_object* self = (sd_session_object*)base;
    int most;
    Py_ssize_t max_bytes;
    if (!PyArg_ParseTuple(args, "in", &most, &max_bytes) || enter(self) < 0) return NULL;
    sd_session_keep_snapshots(self->session, most, (size_t)max_bytes);
    leave(self);
    Py_RETURN_NONE;
}

static PyObject* cached_text(PyObject* self, PyObject* args) {
    return with_cache(self, args, sd_cached_text_new);
}

static PyObject* cached_size(PyObject* self, PyObject* args) { return with_cache(self, args, size_of); }

static PyObject* captures(PyObject* self, PyObject* args) { return with_cache(self, args, captures_of); }

static PyObject* begin_with(PyObject* base, PyObject* args) {
    sd_session_object* self = (sd_session_object*)base;
    int sequence, n = 0;
    PyObject* argument;
    if (!PyArg_ParseTuple(args, "iO", &sequence, &argument)) return NULL;
    const sd_cached_text_object* text = sd_cached_text_from(argument, "text");
    if (text == NULL || enter(self) < 0) return NULL;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_session_begin_with(self->session, sequence, &text->cache, &n));
    leave(self);
    return status == SD_OK ? PyLong_FromLong(n) : sd_raise(status);
}

static PyObject* close_(PyObject* base, PyObject* ignored) {
    sd_session_object* self = (sd_session_object*)base;
    if (self->session == NULL) return Py_NewRef(Py_None);
    if (enter(self) < 0) return NULL;
    sd_session_free(self->session);
    self->session = NULL;
    leave(self);
    return Py_NewRef(Py_None);
}

static PyObject* adaptive_gamma(PyObject* base, void* ignored) {
    sd_session_object* self = (sd_session_object*)base;
    /* A closed session still has it. */
    if (sd_exclusive_enter(&self->exclusive, 1, "session", "closed") < 0) return NULL;
    int learns = self->borrowed.is_adaptive;
    PyObject* result = learns ? sd_object_new(base, SD_TYPE_adaptive_gamma) : Py_NewRef(Py_None);
    if (learns && result != NULL)
        ((sd_adaptive_gamma_object*)result)->learned = self->borrowed.adaptive_gamma;
    leave(self);
    return result;
}

#ifdef SPECDEC_TESTING
static PyObject* keep_drafts(PyObject* base, PyObject* ignored) {
    ((sd_session_object*)base)->keep_drafts = 1;
    return Py_NewRef(Py_None);
}
#endif

static PyGetSetDef properties[] = {
    {"adaptive_gamma", adaptive_gamma, NULL, "What gamma='auto' has learned so far; None without.", NULL},
    {0},
};

static PyMethodDef methods[] = {
    {"prefill_slice", prefill_slice, METH_NOARGS, "prefill_slice($self, /)\n--\n\n"},
    {"round", SD_KEYWORDS(round_), "round($self, seconds=0.0, *, until_end=False, gammas=None)\n--\n\n"},
    {"finish", finish, METH_O, "finish($self, sequence, /)\n--\n\n"},
    {"admit", admit, METH_VARARGS, "admit($self, slot, prompt, seed, settings, source=None, /)\n--\n\n"},
    {"check", check, METH_O, "check($self, settings, /)\n--\n\n"},
    {"swap", swap, METH_VARARGS, "swap($self, samples, draft, /)\n--\n\n"},
    {"begin_with", begin_with, METH_VARARGS, "begin_with($self, sequence, text, /)\n--\n\n"},
    {"cached_text", cached_text, METH_VARARGS, "cached_text($self, sequence, model=None, /)\n--\n\n"},
    {"captures", captures, METH_VARARGS, "captures($self, sequence, model=None, /)\n--\n\n"},
    {"cached_size", cached_size, METH_VARARGS, "cached_size($self, sequence, model=None, /)\n--\n\n"},
    {"snapshots", snapshots, METH_VARARGS, "snapshots($self, sequence, model=None, /)\n--\n\n"},
    {"keep_snapshots", keep_snapshots, METH_VARARGS, "keep_snapshots($self, most, max_bytes, /)\n--\n\n"},
    {"close", close_, METH_NOARGS, "close($self, /)\n--\n\n"},
#ifdef SPECDEC_TESTING
    {"_keep_drafts", keep_drafts, METH_NOARGS, "Add the distributions of nodes to records from now on."},
#endif
    {0},
};

const sd_type_spec sd_session_type = {
    .doc = "The rounds of one batch of sequences.",
    .size = sizeof(sd_session_object),
    .make = make,
    .release = release,
    .traverse = traverse,
    .methods = methods,
    .getters = properties,
};
