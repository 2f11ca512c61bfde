/* Session: the rounds of one batch. */
#include <stdatomic.h>
#include <string.h>

#include "clock.h"
#include "module.h"
#include "transform.h"

typedef struct session_object {
    PyObject_HEAD sd_session* session;    /* owned; NULL before __init__ and after close */
    sd_model_object *target, *draft;      /* strong references; draft may be NULL */
    sd_settings settings, draft_settings; /* owned; the session borrows their arrays */
    sd_python_transform transform;
    int keep_logits;
    atomic_flag busy;
} session_object;

static int enter(session_object* self) {
    if (self->session == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the session is closed");
        return -1;
    }
    if (atomic_flag_test_and_set(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "the session is in use by another thread");
        return -1;
    }
    return 0;
}

static void leave(session_object* self) { atomic_flag_clear(&self->busy); }

/* The prompts of a batch as the core takes them; free with free_prompts. */
static void free_prompts(sd_prompt* prompts, int n) {
    for (int i = 0; prompts != NULL && i < n; i++) PyMem_Free((void*)prompts[i].tokens);
    PyMem_Free(prompts);
}

static sd_prompt* prompts_from(PyObject* list, PyObject* seeds, int* n) {
    PyObject* items = PySequence_Fast(list, "prompts: expected a sequence of sequences of ids");
    PyObject* keys = items ? PySequence_Fast(seeds, "seeds: expected a sequence of (seed, sequence)") : NULL;
    sd_prompt* prompts = NULL;
    *n = 0;
    if (keys == NULL) goto fail;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(items);
    if (PySequence_Fast_GET_SIZE(keys) != size || size > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "%zd prompts and %zd seeds, expected equal numbers of at most %d",
                     size, PySequence_Fast_GET_SIZE(keys), 1 << 20);
        goto fail;
    }
    if ((prompts = PyMem_Calloc((size_t)size + 1, sizeof *prompts)) == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (; *n < size; ++*n) {
        int32_t* ids;
        unsigned long long seed;
        unsigned int sequence;
        PyObject* key = PySequence_Fast_GET_ITEM(keys, *n);
        if (!PyTuple_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "seeds: expected (seed, sequence) tuples");
            goto fail;
        }
        if (!PyArg_ParseTuple(key, "KI;seeds: expected (seed, sequence)", &seed, &sequence)) goto fail;
        if (sd_ids_from(PySequence_Fast_GET_ITEM(items, *n), "prompt", &ids, &prompts[*n].n) < 0) goto fail;
        prompts[*n].tokens = ids;
        prompts[*n].stream = (sd_stream){seed, sequence};
    }
    Py_DECREF(items);
    Py_DECREF(keys);
    return prompts;
fail:
    Py_XDECREF(items);
    Py_XDECREF(keys);
    free_prompts(prompts, *n);
    return NULL;
}

/* What Session.__init__ is given, as the core takes it. */
typedef struct arguments {
    sd_session_options options;
    sd_settings draft_settings;
    const sd_model* draft; /* or NULL */
    sd_prompt* prompts;    /* [n_prompts] */
    int n_prompts;
    sd_prompt* foreseen; /* [n_foreseen] of a dialled drafter; NULL: none */
    int n_foreseen;
    double alpha;
    int32_t* stop_ids;
} arguments;

/* The drafter of a session; everything is checked by the core. */
static sd_status create_drafter(const arguments* a, sd_drafter** drafter) {
    const sd_session_options* o = &a->options;
    int n = a->n_prompts, n_vocab = o->target->config.n_vocab;
    if (a->draft->config.n_vocab != n_vocab)
        return sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                       a->draft->config.n_vocab, n_vocab);
    int* n_prompt = sd_alloc((size_t)(n + 1) * sizeof *n_prompt);
    if (n_prompt == NULL) return SD_ERR_MEMORY;
    for (int i = 0; i < n; i++) n_prompt[i] = a->prompts[i].n;
    const sd_model_drafter_options options = {
        .model = a->draft,
        .adjustment = a->draft_settings.adjustment,
        .sampling = a->draft_settings.sampling,
        .coupled = o->rule == SD_RULE_COUPLED,
        .gamma = o->gamma,
        .max_new_tokens = o->max_new_tokens,
        .n_threads = o->n_threads,
    };
    sd_status status = sd_model_drafter_create(&options, n_prompt, n, drafter);
    sd_free(n_prompt);
    if (status != SD_OK || a->foreseen == NULL) return status;
    sd_foreseen* foreseen = sd_alloc((size_t)(n + 1) * sizeof *foreseen);
    if (foreseen == NULL) {
        (*drafter)->free(*drafter);
        return SD_ERR_MEMORY;
    }
    for (int i = 0; i < n; i++) foreseen[i] = (sd_foreseen){a->foreseen[i].tokens, a->foreseen[i].n};
    status = sd_dialled_drafter_create(*drafter, a->alpha, n_vocab, foreseen, n, drafter);
    sd_free(foreseen);
    return status;
}

static sd_status create(const arguments* a, sd_session** session) {
    sd_drafter* drafter = NULL;
    sd_status status = a->draft ? create_drafter(a, &drafter) : SD_OK;
    if (status != SD_OK) return status;
    return sd_session_create(&a->options, a->prompts, a->n_prompts, drafter, session);
}

/* dial=(alpha, texts): the texts of a dialled drafter, one for each prompt. */
static int dial_from(PyObject* dial, PyObject* seeds, arguments* a) {
    PyObject* texts;
    if (!PyTuple_Check(dial) || !PyArg_ParseTuple(dial, "dO", &a->alpha, &texts)) {
        PyErr_SetString(PyExc_TypeError, "dial: expected (alpha, texts)");
        return -1;
    }
    if (a->draft == NULL) {
        PyErr_SetString(PyExc_ValueError, "dial: there is no draft");
        return -1;
    }
    a->foreseen = prompts_from(texts, seeds, &a->n_foreseen);
    return a->foreseen == NULL ? -1 : 0;
}

/* The rule's name and lenience, and the sampling settings of both models. */
static int rules_from(const char* rule, PyObject* sampling, PyObject* draft_sampling, PyObject* transform,
                      session_object* self, arguments* a) {
    sd_session_options* o = &a->options;
    sd_status status = sd_rule_find(rule, &o->rule);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    if (sampling == NULL || (a->draft && draft_sampling == NULL)) {
        PyErr_SetString(PyExc_TypeError, "sampling or draft_sampling is missing");
        return -1;
    }
    if (sd_settings_from(sampling, "sampling", &self->settings) < 0) return -1;
    o->sampling = self->settings.sampling;
    o->adjustment = self->settings.adjustment;
    if (a->draft && sd_settings_from(draft_sampling, "draft_sampling", &self->draft_settings) < 0) return -1;
    a->draft_settings = self->draft_settings;
    return sd_transform_from(transform, &self->transform, &o->transform);
}

/* Forget what a failed __init__ has taken. */
static void forget(session_object* self) {
    sd_settings_free(&self->settings);
    sd_settings_free(&self->draft_settings);
    Py_CLEAR(self->transform.function);
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"target",      "draft",     "prompts", "gamma",    "max_new_tokens", "sampling",
                            "seeds",       "n_threads", "rule",    "lenience", "draft_sampling", "transform",
                            "keep_logits", "stop_ids",  "dial",    NULL};
    session_object* self = (session_object*)base;
    PyObject *target_argument, *draft_argument, *prompts, *seeds = NULL, *stop_ids = NULL, *dial = Py_None;
    PyObject *sampling = NULL, *draft_sampling = NULL, *transform = Py_None;
    const char* rule = "rejection";
    /* what is not given is refused by the core's checks, but for what stands behind n_threads */
    arguments a = {.options = {.gamma = -1, .lenience = 1.0}};
    sd_session_options* o = &a.options;
    int keep_logits = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$iiOOisdOOpOO", names, &target_argument,
                                     &draft_argument, &prompts, &o->gamma, &o->max_new_tokens, &sampling,
                                     &seeds, &o->n_threads, &rule, &o->lenience, &draft_sampling, &transform,
                                     &keep_logits, &stop_ids, &dial))
        return -1;
    if (self->target != NULL || seeds == NULL) {
        PyErr_SetString(self->target ? PyExc_RuntimeError : PyExc_TypeError,
                        self->target ? "a Session cannot be initialised twice" : "seeds are missing");
        return -1;
    }
    sd_module_state* state = PyType_GetModuleState(Py_TYPE(base));
    sd_model_object* target = sd_model_from(state, target_argument, "target");
    sd_model_object* draft = NULL;
    if (target == NULL) return -1;
    if (draft_argument != Py_None && (draft = sd_model_from(state, draft_argument, "draft")) == NULL)
        return -1;
    o->target = target->model;
    a.draft = draft ? draft->model : NULL;
    int result = -1;
    if (rules_from(rule, sampling, draft_sampling, transform, self, &a) < 0) goto end;
    if ((a.prompts = prompts_from(prompts, seeds, &a.n_prompts)) == NULL) goto end;
    if (stop_ids != NULL && sd_ids_from(stop_ids, "stop_ids", &a.stop_ids, &o->n_stop_ids) < 0) goto end;
    o->stop_ids = a.stop_ids;
    if (dial != Py_None && dial_from(dial, seeds, &a) < 0) goto end;
    sd_status status = create(&a, &self->session);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    self->target = (sd_model_object*)Py_NewRef((PyObject*)target);
    if (draft) self->draft = (sd_model_object*)Py_NewRef((PyObject*)draft);
    self->keep_logits = keep_logits;
    result = 0;
end:
    if (result < 0) forget(self);
    free_prompts(a.prompts, a.n_prompts);
    free_prompts(a.foreseen, a.n_foreseen);
    PyMem_Free(a.stop_ids);
    return result;
}

static void dealloc(PyObject* base) {
    session_object* self = (session_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    sd_session_free(self->session);
    forget(self);
    Py_XDECREF((PyObject*)self->target);
    Py_XDECREF((PyObject*)self->draft);
    type->tp_free(base);
    Py_DECREF(type);
}

static PyObject* prefill(PyObject* base, PyObject* ignored) {
    (void)ignored;
    session_object* self = (session_object*)base;
    if (enter(self) < 0) return NULL;
    double begun = sd_now();
    for (int done = 0; !done;) {
        sd_status status;
        Py_BEGIN_ALLOW_THREADS status = sd_session_prefill(self->session, &done);
        Py_END_ALLOW_THREADS if (status != SD_OK) sd_raise(status);
        if (status != SD_OK || PyErr_CheckSignals() < 0) {
            leave(self);
            return NULL;
        }
    }
    leave(self);
    return PyFloat_FromDouble(sd_now() - begun);
}

/* Tokens of the accepted path, then the target's own. */
static PyObject* new_tokens(const sd_record* record) {
    const sd_verdict* v = &record->verdict;
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
    if (!self->keep_logits) return Py_NewRef(Py_None);
    size_t n_vocab = (size_t)self->target->model->config.n_vocab;
    ptrdiff_t stride;
    const float* logits = sd_session_logits(self->session, &stride);
    float* out;
    const sd_verdict* v = &record->verdict;
    PyObject* array = sd_new_array("float32", v->n_path + 1, (Py_ssize_t)n_vocab, (void**)&out);
    for (int i = 0; array != NULL && i <= v->n_path; i++) {
        ptrdiff_t row = record->logits_row + (i == 0 ? 0 : v->path[i - 1]);
        memcpy(out + (size_t)i * n_vocab, logits + row * stride, n_vocab * sizeof *out);
    }
    return array;
}

static PyObject* record_to_dict(const session_object* self, const sd_record* record) {
    const sd_verdict* v = &record->verdict;
    int n_drafted = record->tree.n_nodes - 1;
    PyObject* parts[] = {
        sd_list_of_ints(record->tree.tokens + 1, n_drafted),
        sd_list_of_ints(record->tree.parents + 1, n_drafted),
        sd_list_of_ints(v->path, v->n_path),
        new_tokens(record),
        sd_list_of_floats(v->betas, v->n_betas),
        new_logits(self, record),
    };
    int complete = 1;
    for (int i = 0; i < 6; i++) complete = complete && parts[i] != NULL;
    PyObject* dict =
        complete ? Py_BuildValue("{sisOsOsOsOsOsOsdsdsd}", "sequence", record->sequence, "drafted", parts[0],
                                 "parents", parts[1], "accepted", parts[2], "tokens", parts[3], "betas",
                                 parts[4], "logits", parts[5], "draft_s", record->draft_s, "verify_s",
                                 record->verify_s, "other_s", record->other_s)
                 : NULL;
    for (int i = 0; i < 6; i++) Py_XDECREF(parts[i]);
    return dict;
}

static PyObject* round_(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"seconds", NULL};
    session_object* self = (session_object*)base;
    double seconds = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d", names, &seconds)) return NULL;
    if (enter(self) < 0) return NULL;
    if (self->keep_logits) seconds = 0.0;          /* only the last round's are there */
    self->transform.outside = PyEval_SaveThread(); /* kept, because a transform comes back for a while */
    sd_status status = sd_session_rounds(self->session, seconds);
    PyEval_RestoreThread(self->transform.outside);
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

static PyMethodDef methods[] = {
    {"prefill", prefill, METH_NOARGS, "prefill($self, /)\n--\n\nRead the prompts; return seconds."},
    {"round", (PyCFunction)(void (*)(void))round_, METH_VARARGS | METH_KEYWORDS,
     "round($self, seconds=0.0)\n--\n\nRounds for every unfinished sequence: one, and more within "
     "`seconds`."},
    {"finish", finish, METH_O, "finish($self, sequence, /)\n--\n\nTake no more rounds for this sequence."},
    {"close", close_, METH_NOARGS, "close($self, /)\n--\n\nFree caches and scratch; idempotent."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The rounds of one batch of sequences."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_session_spec = {
    .name = "specdec._core.Session",
    .basicsize = sizeof(session_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
