#include "session_arguments.h"

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

/* draft: a Model, a Bigram or None. */
static int draft_from(const sd_module_state* state, PyObject* draft, sd_session_arguments* a) {
    a->drafting = draft != Py_None;
    if (!a->drafting) return 0;
    if (PyObject_TypeCheck(draft, state->bigram_type)) {
        a->bigram = &((sd_bigram_object*)draft)->table;
        if (a->bigram->base != NULL) return 0;
        PyErr_SetString(PyExc_ValueError, "draft: the Bigram has not been initialised");
        return -1;
    }
    const sd_model_object* model = sd_model_from(state, draft, "draft");
    if (model == NULL) return -1;
    a->draft = model->model;
    return 0;
}

/* dial=(alpha, texts): the texts of a dialled drafter, one for each prompt. */
static int dial_from(PyObject* dial, PyObject* seeds, sd_session_arguments* a) {
    PyObject* texts;
    if (!PyTuple_Check(dial) || !PyArg_ParseTuple(dial, "dO", &a->alpha, &texts)) {
        PyErr_SetString(PyExc_TypeError, "dial: expected (alpha, texts)");
        return -1;
    }
    if (!a->drafting) {
        PyErr_SetString(PyExc_ValueError, "dial: there is no draft");
        return -1;
    }
    a->foreseen = prompts_from(texts, seeds, &a->n_foreseen);
    return a->foreseen == NULL ? -1 : 0;
}

/* The rule's name and lenience, and the sampling settings of both models. */
static int rules_from(const char* rule, PyObject* sampling, PyObject* draft_sampling, PyObject* transform,
                      sd_session_needs* needs, sd_session_arguments* a) {
    sd_session_options* o = &a->options;
    sd_status status = sd_rule_find(rule, &o->rule);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    if (sampling == NULL || (a->drafting && draft_sampling == NULL)) {
        PyErr_SetString(PyExc_TypeError, "sampling or draft_sampling is missing");
        return -1;
    }
    if (sd_settings_from(sampling, "sampling", &needs->settings) < 0) return -1;
    o->sampling = needs->settings.sampling;
    o->adjustment = needs->settings.adjustment;
    if (a->drafting && sd_settings_from(draft_sampling, "draft_sampling", &needs->draft_settings) < 0)
        return -1;
    a->guessing = (sd_guessing){needs->draft_settings.adjustment, needs->draft_settings.sampling,
                                o->rule == SD_RULE_COUPLED};
    return sd_transform_from(transform, &needs->transform, &o->transform);
}

int sd_session_arguments_from(PyObject* args, PyObject* kwargs, const sd_module_state* state,
                              sd_session_needs* needs, sd_session_arguments* a) {
    static char* names[] = {"target",      "draft",     "prompts", "gamma",    "max_new_tokens", "sampling",
                            "seeds",       "n_threads", "rule",    "lenience", "draft_sampling", "transform",
                            "keep_logits", "stop_ids",  "dial",    NULL};
    PyObject *target_argument, *draft_argument, *prompts, *seeds = NULL, *stop_ids = NULL, *dial = Py_None;
    PyObject *sampling = NULL, *draft_sampling = NULL, *transform = Py_None;
    const char* rule = "rejection";
    /* what is not given is refused by the core's checks, but for what stands behind n_threads */
    *a = (sd_session_arguments){.options = {.gamma = -1, .lenience = 1.0}};
    sd_session_options* o = &a->options;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$iiOOisdOOpOO", names, &target_argument,
                                     &draft_argument, &prompts, &o->gamma, &o->max_new_tokens, &sampling,
                                     &seeds, &o->n_threads, &rule, &o->lenience, &draft_sampling, &transform,
                                     &a->keep_logits, &stop_ids, &dial))
        return -1;
    if (seeds == NULL) {
        PyErr_SetString(PyExc_TypeError, "seeds are missing");
        return -1;
    }
    sd_model_object* target = sd_model_from(state, target_argument, "target");
    if (target == NULL) return -1;
    o->target = target->model;
    if (draft_from(state, draft_argument, a) < 0) return -1;
    if (rules_from(rule, sampling, draft_sampling, transform, needs, a) < 0) return -1;
    if ((a->prompts = prompts_from(prompts, seeds, &a->n_prompts)) == NULL) return -1;
    if (stop_ids != NULL && sd_ids_from(stop_ids, "stop_ids", &a->stop_ids, &o->n_stop_ids) < 0) return -1;
    o->stop_ids = a->stop_ids;
    if (dial != Py_None && dial_from(dial, seeds, a) < 0) return -1;
    needs->target = (sd_model_object*)Py_NewRef((PyObject*)target);
    needs->draft = a->drafting ? Py_NewRef(draft_argument) : NULL;
    return 0;
}

void sd_session_arguments_free(sd_session_arguments* a) {
    free_prompts(a->prompts, a->n_prompts);
    free_prompts(a->foreseen, a->n_foreseen);
    PyMem_Free(a->stop_ids);
}

void sd_session_needs_free(sd_session_needs* needs) {
    sd_settings_free(&needs->settings);
    sd_settings_free(&needs->draft_settings);
    Py_CLEAR(needs->transform.function);
    Py_CLEAR(needs->target);
    Py_CLEAR(needs->draft);
}

static sd_status create_model_drafter(const sd_session_arguments* a, sd_drafter** drafter) {
    const sd_session_options* o = &a->options;
    int n = a->n_prompts;
    int* n_prompt = sd_alloc((size_t)(n + 1) * sizeof *n_prompt);
    if (n_prompt == NULL) return SD_ERR_MEMORY;
    for (int i = 0; i < n; i++) n_prompt[i] = a->prompts[i].n;
    const sd_model_drafter_options options = {a->draft, a->guessing, o->gamma, o->max_new_tokens,
                                              o->n_threads};
    sd_status status = sd_model_drafter_create(&options, n_prompt, n, drafter);
    sd_free(n_prompt);
    return status;
}

static sd_status dial(const sd_session_arguments* a, int n_vocab, sd_drafter** drafter) {
    int n = a->n_prompts;
    sd_foreseen* foreseen = sd_alloc((size_t)(n + 1) * sizeof *foreseen);
    if (foreseen == NULL) {
        (*drafter)->free(*drafter);
        return SD_ERR_MEMORY;
    }
    for (int i = 0; i < n; i++) foreseen[i] = (sd_foreseen){a->foreseen[i].tokens, a->foreseen[i].n};
    sd_status status = sd_dialled_drafter_create(*drafter, a->alpha, n_vocab, foreseen, n, drafter);
    sd_free(foreseen);
    return status;
}

/* The drafter of a session; everything is checked by the core. */
static sd_status create_drafter(const sd_session_arguments* a, sd_drafter** drafter) {
    const sd_session_options* o = &a->options;
    int n_vocab = o->target->config.n_vocab,
        n_draft = a->draft ? a->draft->config.n_vocab : a->bigram->n_vocab;
    if (n_draft != n_vocab)
        return sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                       n_draft, n_vocab);
    sd_status status = a->draft ? create_model_drafter(a, drafter)
                                : sd_bigram_drafter_create(a->bigram, &a->guessing, o->gamma, drafter);
    return status == SD_OK && a->foreseen ? dial(a, n_vocab, drafter) : status;
}

sd_status sd_session_make(const sd_session_arguments* a, sd_session** session) {
    sd_drafter* drafter = NULL;
    sd_status status = a->drafting ? create_drafter(a, &drafter) : SD_OK;
    if (status != SD_OK) return status;
    return sd_session_create(&a->options, a->prompts, a->n_prompts, drafter, session);
}
