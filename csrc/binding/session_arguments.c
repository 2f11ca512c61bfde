#include "session_arguments.h"

/* The prompts of a batch as the core takes them; free with free_prompts. */
static void free_prompts(sd_prompt* prompts, int n) {
    for (int i = 0; prompts != NULL && i < n; i++) sd_prompt_free(&prompts[i]);
    PyMem_Free(prompts);
}

void sd_prompt_free(const sd_prompt* prompt) {
    PyMem_Free((void*)prompt->tokens);
    PyMem_Free((void*)prompt->source);
}

int sd_prompt_from(PyObject* ids, PyObject* key, PyObject* source_argument, sd_prompt* prompt) {
    int32_t *tokens, *source;
    unsigned long long seed;
    unsigned int sequence;
    if (!PyTuple_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "seeds: expected (seed, sequence) tuples");
        return -1;
    }
    if (!PyArg_ParseTuple(key, "KI;seeds: expected (seed, sequence)", &seed, &sequence)) return -1;
    if (sd_ids_from(ids, "prompt", &tokens, &prompt->n) < 0) return -1;
    if (sd_optional_ids_from(source_argument, "source", &source, &prompt->n_source) < 0) {
        PyMem_Free(tokens);
        return -1;
    }
    prompt->tokens = tokens;
    prompt->source = source;
    prompt->stream = (sd_stream){seed, sequence};
    prompt->cache = NULL;
    return 0;
}

/* sources: one for each prompt, or NULL or None: there are none. */
static sd_prompt* prompts_from(PyObject* list, PyObject* seeds, PyObject* sources, int* n) {
    PyObject* items = sd_items_from(list, "prompts: expected a sequence of sequences of ids");
    PyObject* keys = items ? sd_items_from(seeds, "seeds: expected a sequence of (seed, sequence)") : NULL;
    PyObject* texts = NULL;
    sd_prompt* prompts = NULL;
    *n = 0;
    if (keys == NULL) goto fail;
    Py_ssize_t size = PyTuple_GET_SIZE(items);
    if (PyTuple_GET_SIZE(keys) != size || size > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "%zd prompts and %zd seeds, expected equal numbers of at most %d",
                     size, PyTuple_GET_SIZE(keys), 1 << 20);
        goto fail;
    }
    if (sources != NULL && sources != Py_None) {
        texts = sd_items_from(sources,
                              "sources: expected a sequence of sequences of ids, or None for each prompt");
        if (texts == NULL) goto fail;
        if (PyTuple_GET_SIZE(texts) != size) {
            PyErr_Format(PyExc_ValueError, "%zd sources, expected one for each of %zd prompts",
                         PyTuple_GET_SIZE(texts), size);
            goto fail;
        }
    }
    if ((prompts = PyMem_Calloc((size_t)size + 1, sizeof *prompts)) == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (; *n < size; ++*n)
        if (sd_prompt_from(PyTuple_GET_ITEM(items, *n), PyTuple_GET_ITEM(keys, *n),
                           texts ? PyTuple_GET_ITEM(texts, *n) : NULL, &prompts[*n]) < 0)
            goto fail;
    Py_DECREF(items);
    Py_DECREF(keys);
    Py_XDECREF(texts);
    return prompts;
fail:
    Py_XDECREF(items);
    Py_XDECREF(keys);
    Py_XDECREF(texts);
    free_prompts(prompts, *n);
    return NULL;
}

/* The rule's name and lenience, and the sampling settings of both models. */
static int rules_from(const char* rule, PyObject* sampling, PyObject* draft_sampling, PyObject* transform,
                      sd_session_borrowed* borrowed, sd_session_arguments* a) {
    sd_session_options* o = &a->options;
    sd_status status = sd_rule_find(rule, &o->verify.rule);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    if (a->draft != NULL && draft_sampling == NULL) {
        PyErr_SetString(PyExc_TypeError, "Session: draft_sampling is missing");
        return -1;
    }
    if (sd_sampling_from(sampling, "sampling", &borrowed->sampling) < 0) return -1;
    o->verify.sampling = &borrowed->sampling;
    if (a->draft != NULL && sd_sampling_from(draft_sampling, "draft_sampling", &borrowed->draft_sampling) < 0)
        return -1;
    return sd_transform_from(transform, borrowed->saved_thread, &borrowed->transform, &o->verify.transform);
}

int sd_session_arguments_from(PyObject* args, PyObject* kwargs, const sd_module_state* state,
                              sd_session_borrowed* borrowed, sd_session_arguments* a) {
    PyObject *target_argument, *prompts, *sampling, *seeds;
    PyObject *draft_sampling = NULL, *transform = Py_None, *stop_ids = NULL, *adaptive = Py_None,
             *sources = NULL;
    const char *rule = "rejection", *law = NULL;
    *a = (sd_session_arguments){.options = {.verify = {.lenience = 1.0}}};
    sd_session_options* o = &a->options;
    const sd_field fields[] = {
        {"gamma", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &o->gamma},
        {"max_new_tokens", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &o->max_new_tokens},
        {"sampling", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &sampling},
        {"seeds", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &seeds},
        {"n_threads", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &o->n_threads},
        {"rule", SD_FIELD_WORD, SD_FIELD_OPTIONAL, &rule},
        {"lenience", SD_FIELD_REAL, SD_FIELD_OPTIONAL, &o->verify.lenience},
        {"draft_sampling", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &draft_sampling},
        {"transform", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &transform},
        {"keep_logits", SD_FIELD_FLAG, SD_FIELD_OPTIONAL, &a->keep_logits},
        {"stop_ids", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &stop_ids},
        {"n_text", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->n_text},
        {"node_budget", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->node_budget},
        {"adaptive_gamma", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &adaptive},
        {"sources", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &sources},
        {"law", SD_FIELD_WORD, SD_FIELD_OPTIONAL, &law},
        {"n_top", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->laws.n_top},
    };
    if (!PyArg_ParseTuple(args, "OOO:Session", &target_argument, &a->draft, &prompts)) return -1;
    if ((a->own = kwargs ? PyDict_Copy(kwargs) : PyDict_New()) == NULL) return -1;
    if (SD_FIELDS_FROM(a->own, "Session", fields) < 0) return -1;
    sd_model_object* target = sd_model_from(state, target_argument, "target");
    if (target == NULL) return -1;
    o->target = target->model;
    if (a->draft == Py_None) a->draft = NULL;
    if (rules_from(rule, sampling, draft_sampling, transform, borrowed, a) < 0) return -1;
    sd_status status = law ? sd_token_law_find(law, &o->laws.law) : SD_OK;
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    if ((a->prompts = prompts_from(prompts, seeds, sources, &a->n_prompts)) == NULL) return -1;
    if (stop_ids != NULL && sd_ids_from(stop_ids, "stop_ids", &a->stop_ids, &o->n_stop_ids) < 0) return -1;
    o->stop_ids = a->stop_ids;
    borrowed->is_adaptive = adaptive != Py_None;
    if (borrowed->is_adaptive) {
        if (sd_adaptive_gamma_from(state, adaptive, &borrowed->adaptive_gamma) < 0) return -1;
        o->adaptive_gamma = &borrowed->adaptive_gamma;
    }
    borrowed->target = (sd_model_object*)Py_NewRef((PyObject*)target);
    return 0;
}

void sd_session_arguments_free(sd_session_arguments* a) {
    free_prompts(a->prompts, a->n_prompts);
    PyMem_Free(a->stop_ids);
    Py_XDECREF(a->own);
}

void sd_session_borrowed_free(sd_session_borrowed* borrowed) {
    sd_sampling_free(&borrowed->sampling);
    sd_sampling_free(&borrowed->draft_sampling);
    Py_CLEAR(borrowed->transform.function);
    Py_CLEAR(borrowed->target);
    Py_CLEAR(borrowed->draft_arguments);
}

int sd_session_borrowed_traverse(const sd_session_borrowed* borrowed, visitproc visit, void* arg) {
    Py_VISIT((PyObject*)borrowed->target);
    Py_VISIT(borrowed->draft_arguments);
    Py_VISIT(borrowed->transform.function);
    return 0;
}

int sd_session_make(const sd_session_arguments* a, const sd_module_state* state,
                    sd_session_borrowed* borrowed, sd_session** session) {
    const sd_session_options* o = &a->options;
    sd_drafter* drafter = NULL;
    sd_status status = sd_session_check(o, a->prompts, a->n_prompts);
    int n_text = status == SD_OK ? sd_session_text_room(o, a->prompts, a->n_prompts) : 0;
    if (status == SD_OK && a->draft != NULL) {
        if ((borrowed->draft_arguments = PyList_New(0)) == NULL) return -1;
        borrowed->context = (sd_drafter_context){
            .drafting = {.n_vocab = o->target->config.n_vocab,
                         .sampling = &borrowed->draft_sampling,
                         .rule = sd_rule_at(o->verify.rule, o->verify.sampling->temperature),
                         .gamma = o->gamma,
                         .n_sequences = a->n_prompts,
                         .n_text = n_text,
                         .n_threads = o->n_threads,
                         .has_sources = o->target->encoder != NULL,
                         .reading = sd_reading_of(&o->target->config)},
            .state = state,
            .target = o->target,
            .saved_thread = borrowed->saved_thread,
            .arguments = borrowed->draft_arguments,
        };
        if (sd_drafter_from(a->draft, &borrowed->context, &drafter) < 0) return -1;
    }
    if (status == SD_OK) status = sd_session_create(o, a->prompts, a->n_prompts, drafter, session);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

/* Make a drafter for one short text, and ask the rule about its trees. Returns 0, or -1 with an exception. */
static int check_draft(PyObject* description, const sd_drafter_context* context) {
    sd_drafter* drafter;
    if (sd_drafter_from(description, context, &drafter) < 0) return -1;
    sd_status status = sd_rule_check_trees(context->drafting.rule, drafter->tree_kind, "verify");
    drafter->free(drafter);
    if (status == SD_OK) return 0;
    sd_raise(status);
    return -1;
}

PyObject* sd_check_draft(PyObject* module, PyObject* args, PyObject* kwargs) {
    const sd_module_state* state = PyModule_GetState(module);
    PyObject *target_argument, *draft, *draft_sampling;
    const char* name;
    double temperature;
    const sd_field fields[] = {
        {"rule", SD_FIELD_WORD, SD_FIELD_REQUIRED, &name},
        {"temperature", SD_FIELD_REAL, SD_FIELD_REQUIRED, &temperature},
        {"draft_sampling", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &draft_sampling},
    };
    if (!PyArg_ParseTuple(args, "OO:check_draft", &target_argument, &draft)) return NULL;
    const sd_model_object* target = sd_model_from(state, target_argument, "target");
    if (target == NULL) return NULL;
    PyObject *own = kwargs ? PyDict_Copy(kwargs) : PyDict_New(), *arguments = PyList_New(0), *result = NULL;
    sd_sampling sampling = {0};
    sd_rule rule;
    if (own == NULL || arguments == NULL || SD_FIELDS_FROM(own, "check_draft", fields) < 0) goto end;
    if (sd_sampling_from(draft_sampling, "draft_sampling", &sampling) < 0) goto end;
    sd_status status = sd_rule_find(name, &rule);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    PyThreadState* saved_thread; /* of a drafter that calls Python; here it never does */
    const sd_drafter_context context = {
        .drafting = {.n_vocab = target->model->config.n_vocab,
                     .sampling = &sampling,
                     .rule = sd_rule_at(rule, temperature),
                     .gamma = 1,
                     .n_sequences = 1,
                     .n_text = 1,
                     .n_threads = 1,
                     .has_sources = target->model->encoder != NULL,
                     .reading = sd_reading_of(&target->model->config)},
        .state = state,
        .target = target->model,
        .saved_thread = &saved_thread,
        .arguments = arguments,
    };
    if (check_draft(draft, &context) == 0) result = Py_NewRef(Py_None);
end:
    sd_sampling_free(&sampling);
    Py_XDECREF(own);
    Py_XDECREF(arguments);
    return result;
}
