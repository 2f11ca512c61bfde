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
    prompt->settings = NULL;
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

/* Move what is no argument of the session's own from a dict to a new one: settings that are given by name.
 * NULL with an exception. */
static PyObject* split(PyObject* own, const sd_field* fields, int n) {
    PyObject *rest = PyDict_New(), *keys = rest ? PyDict_Keys(own) : NULL;
    int result = keys ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(keys); i++) {
        PyObject* key = PyList_GET_ITEM(keys, i);
        int known = 0;
        for (int j = 0; j < n && PyUnicode_CheckExact(key); j++)
            known |= PyUnicode_CompareWithASCIIString(key, fields[j].name) == 0;
        if (known) continue;
        PyObject* value = PyDict_GetItemWithError(own, key);
        result = value && PyDict_SetItem(rest, key, value) == 0 ? PyDict_DelItem(own, key) : -1;
    }
    Py_XDECREF(keys);
    if (result < 0) Py_CLEAR(rest);
    return rest;
}

/* The settings where none are named: those given by name in `rest`. Returns 0, or -1 with an exception. */
static int usual_from(PyObject* rest, const sd_module_state* state, sd_session_borrowed* borrowed) {
    PyObject* none = PyTuple_New(0);
    PyObject* made = none ? PyObject_Call((PyObject*)state->settings_type, none, rest) : NULL;
    Py_XDECREF(none);
    borrowed->usual = (sd_settings_object*)made;
    return made ? 0 : -1;
}

/* Room for the states of a slot; what is there already is kept. */
static sd_status make_room(const sd_session_borrowed* borrowed, sd_slot* slot, const sd_slot* with) {
    sd_status status = SD_OK;
    int n_vocab = borrowed->target->model->config.n_vocab, n_nodes = borrowed->n_nodes;
    if (with->object->has_states && slot->states.nodes == NULL) {
        const sd_state_source source = sd_python_states_source(&slot->transform.states);
        status = sd_state_tree_create(&slot->states, &source, 2 * (n_nodes + SD_MAX_FORCED + 2));
    }
    if (status == SD_OK && with->object->constraint != NULL && slot->constraint == NULL) {
        const sd_constraint_source source = sd_python_constraint_source(&slot->constraining);
        status = sd_constraint_create(&source, n_vocab, n_nodes, &slot->constraint);
    }
    return status;
}

int sd_slot_with(sd_session_borrowed* borrowed, sd_slot* slot, sd_settings_object* object, sd_slot* with) {
    int n_vocab = borrowed->target->model->config.n_vocab;
    *with = (sd_slot){.object = object,
                      .settings = object->settings,
                      .transform = {.function = object->transform, .saved_thread = borrowed->saved_thread}};
    sd_verifier_options* verify = &with->settings.verify;
    sd_status status = make_room(borrowed, slot, with);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
    if (object->transform != NULL) verify->transform = sd_transform_of(&slot->transform, object->has_states);
    if (object->has_states) verify->transform.states = &slot->states;
    if (object->constraint != NULL) verify->constraint = slot->constraint;
    if (object->has_states && sd_python_states_from(object->transform, "transform", "__call__", n_vocab,
                                                    &borrowed->gate, &with->transform.states) < 0)
        return -1;
    if (object->constraint == NULL || sd_python_states_from(object->constraint, "constraint", "mask", n_vocab,
                                                            &borrowed->gate, &with->constraining) == 0)
        return 0;
    sd_slot_drop(with);
    return -1;
}

void sd_slot_drop(sd_slot* with) {
    sd_python_states_free(&with->transform.states);
    sd_python_states_free(&with->constraining);
    Py_CLEAR(with->transform.exception);
}

void sd_slot_set(sd_slot* slot, const sd_slot* with) {
    sd_slot old = *slot;
    *slot = *with;
    slot->states = old.states;
    slot->constraint = old.constraint;
    Py_INCREF((PyObject*)slot->object);
    Py_XDECREF((PyObject*)old.object);
    sd_slot_drop(&old);
}

PyObject* sd_slot_take_exception(sd_slot* slot) {
    PyObject** places[] = {&slot->transform.exception, &slot->transform.states.exception,
                           &slot->constraining.exception};
    for (int i = 0; i < 3; i++) {
        PyObject* exception = *places[i];
        *places[i] = NULL;
        if (exception != NULL) return exception;
    }
    return NULL;
}

/* The slots of the prompts, and of those to come. settings: NULL or None, for the usual ones, a Settings, or
 * one for each prompt. Returns 0, or -1 with an exception. */
static int slots_from(PyObject* settings, const sd_module_state* state, sd_session_borrowed* borrowed,
                      sd_session_arguments* a) {
    int given = settings != NULL && settings != Py_None;
    PyObject* each = NULL;
    if (given && !PyObject_TypeCheck(settings, state->settings_type)) {
        each = sd_items_from(settings, "settings: expected Settings, or one for each prompt");
        if (each == NULL) return -1;
        if (PyTuple_GET_SIZE(each) != a->n_prompts) {
            PyErr_Format(PyExc_ValueError, "%zd settings, expected one for each of %d prompts",
                         PyTuple_GET_SIZE(each), a->n_prompts);
            Py_DECREF(each);
            return -1;
        }
    }
    int n_slots = a->options.n_slots > a->n_prompts ? a->options.n_slots : a->n_prompts, result = 0;
    if ((borrowed->slots = PyMem_Calloc((size_t)n_slots + 1, sizeof *borrowed->slots)) == NULL) {
        PyErr_NoMemory();
        result = -1;
    } else {
        borrowed->n_slots = n_slots;
    }
    for (int i = 0; i < a->n_prompts && result == 0; i++) {
        PyObject* one = each ? PyTuple_GET_ITEM(each, i) : given ? settings : (PyObject*)borrowed->usual;
        if (one == NULL) {
            PyErr_SetString(PyExc_TypeError, "Session: settings are missing");
            result = -1;
            break;
        }
        sd_settings_object* object = sd_settings_from(state, one);
        if (object == NULL) {
            result = -1;
            break;
        }
        sd_slot* slot = &borrowed->slots[i];
        sd_slot with;
        if ((result = sd_slot_with(borrowed, slot, object, &with)) < 0) break;
        sd_slot_set(slot, &with);
        a->prompts[i].settings = &slot->settings;
    }
    Py_XDECREF(each);
    return result;
}

int sd_session_arguments_from(PyObject* args, PyObject* kwargs, const sd_module_state* state,
                              sd_session_borrowed* borrowed, sd_session_arguments* a) {
    PyObject *target_argument, *prompts, *seeds, *settings = NULL, *adaptive = Py_None, *sources = NULL;
    *a = (sd_session_arguments){0};
    sd_session_options* o = &a->options;
    const sd_field fields[] = {
        {"gamma", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &o->gamma},
        {"seeds", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &seeds},
        {"n_threads", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &o->n_threads},
        {"settings", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &settings},
        {"keep_logits", SD_FIELD_FLAG, SD_FIELD_OPTIONAL, &a->keep_logits},
        {"n_slots", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->n_slots},
        {"n_text", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->n_text},
        {"max_top", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->n_top},
        {"mixed", SD_FIELD_FLAG, SD_FIELD_OPTIONAL, &o->mixed},
        {"node_budget", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &o->node_budget},
        {"adaptive_gamma", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &adaptive},
        {"sources", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &sources},
    };
    if (!PyArg_ParseTuple(args, "OOO:Session", &target_argument, &a->draft, &prompts)) return -1;
    if ((a->own = kwargs ? PyDict_Copy(kwargs) : PyDict_New()) == NULL) return -1;
    PyObject* rest = split(a->own, fields, (int)(sizeof fields / sizeof *fields));
    if (rest == NULL) return -1;
    int result = SD_FIELDS_FROM(a->own, "Session", fields);
    int named = settings != NULL && settings != Py_None;
    if (result == 0 && !named && PyDict_GET_SIZE(rest) > 0) {
        result = usual_from(rest, state, borrowed);
    } else if (result == 0 && named && PyDict_GET_SIZE(rest) > 0) {
        PyErr_SetString(PyExc_TypeError, "Session: settings are given, expected no setting by name beside");
        result = -1;
    }
    Py_DECREF(rest);
    if (result < 0) return -1;
    sd_model_object* target = sd_model_from(state, target_argument, "target");
    if (target == NULL) return -1;
    o->target = target->model;
    if (a->draft == Py_None) a->draft = NULL;
    if (o->n_slots < 0 || o->n_slots > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "n_slots is %d, expected 0 to %d", o->n_slots, 1 << 20);
        return -1;
    }
    if ((a->prompts = prompts_from(prompts, seeds, sources, &a->n_prompts)) == NULL) return -1;
    borrowed->target = (sd_model_object*)Py_NewRef((PyObject*)target);
    borrowed->gate = (sd_gate){.saved_thread = borrowed->saved_thread};
    borrowed->n_nodes = o->gamma > 0 && o->gamma <= SD_MAX_GAMMA ? o->gamma : 0; /* the core refuses others */
    if (slots_from(settings, state, borrowed, a) < 0) return -1;
    borrowed->is_adaptive = adaptive != Py_None;
    if (borrowed->is_adaptive) {
        if (sd_adaptive_gamma_from(state, adaptive, &borrowed->adaptive_gamma) < 0) return -1;
        o->adaptive_gamma = &borrowed->adaptive_gamma;
    }
    return 0;
}

void sd_session_arguments_free(sd_session_arguments* a) {
    free_prompts(a->prompts, a->n_prompts);
    Py_XDECREF(a->own);
}

void sd_session_borrowed_free(sd_session_borrowed* borrowed) {
    sd_slot* slots = borrowed->slots;
    int n_slots = borrowed->n_slots;
    borrowed->slots = NULL;
    borrowed->n_slots = 0;
    for (int i = 0; i < n_slots; i++) {
        Py_XDECREF((PyObject*)slots[i].object);
        sd_slot_drop(&slots[i]);
        sd_state_tree_free(&slots[i].states);
        sd_constraint_free(slots[i].constraint);
    }
    PyMem_Free(slots);
    Py_CLEAR(borrowed->usual);
    Py_CLEAR(borrowed->target);
    Py_CLEAR(borrowed->draft_arguments);
    Py_CLEAR(borrowed->failures);
}

int sd_session_borrowed_traverse(const sd_session_borrowed* borrowed, visitproc visit, void* arg) {
    Py_VISIT((PyObject*)borrowed->target);
    Py_VISIT(borrowed->draft_arguments);
    Py_VISIT(borrowed->failures);
    Py_VISIT((PyObject*)borrowed->usual);
    for (int i = 0; i < borrowed->n_slots; i++) {
        Py_VISIT((PyObject*)borrowed->slots[i].object);
        Py_VISIT(borrowed->slots[i].transform.exception);
        int result = sd_python_states_traverse(&borrowed->slots[i].transform.states, visit, arg);
        if (result == 0) result = sd_python_states_traverse(&borrowed->slots[i].constraining, visit, arg);
        if (result != 0) return result;
    }
    return 0;
}

int sd_session_make(const sd_session_arguments* a, const sd_module_state* state,
                    sd_session_borrowed* borrowed, sd_session** session) {
    const sd_session_options* o = &a->options;
    sd_drafter* drafter = NULL;
    sd_status status = sd_session_check(o, a->prompts, a->n_prompts);
    if (status == SD_OK && a->draft != NULL) {
        if ((borrowed->draft_arguments = PyList_New(0)) == NULL) return -1;
        if ((borrowed->failures = PyDict_New()) == NULL) return -1;
        borrowed->context = (sd_drafter_context){
            .drafting = sd_session_drafting(o, a->prompts, a->n_prompts),
            .state = state,
            .target = o->target,
            .saved_thread = borrowed->saved_thread,
            .arguments = borrowed->draft_arguments,
            .failures = borrowed->failures,
        };
        if (sd_drafter_from(a->draft, &borrowed->context, &drafter) < 0) return -1;
    }
    if (status == SD_OK) status = sd_session_create(o, a->prompts, a->n_prompts, drafter, session);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

/* Make a drafter for one short text, and ask the rule about its trees. Returns 0, or -1 with an exception. */
static int check_draft(PyObject* description, const sd_drafter_context* context, sd_rule rule) {
    sd_drafter* drafter;
    if (sd_drafter_from(description, context, &drafter) < 0) return -1;
    sd_status status =
        sd_drafter_check_rule(drafter, rule, context->drafting.draws, SD_EVERY_DRAFTER, "verify");
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
    if ((status = sd_sampling_check(&sampling, target->model->config.n_vocab)) != SD_OK) {
        sd_raise(status);
        goto end;
    }
    rule = sd_rule_at(rule, temperature);
    PyThreadState* saved_thread; /* of a drafter that calls Python; here it never does */
    const sd_drafter_context context = {
        .drafting = {.n_vocab = target->model->config.n_vocab,
                     .draws = sampling.temperature > 0.0,
                     .couples = rule == SD_RULE_COUPLED && sampling.temperature > 0.0,
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
    if (check_draft(draft, &context, rule) == 0) result = Py_NewRef(Py_None);
end:
    sd_sampling_free(&sampling);
    Py_XDECREF(own);
    Py_XDECREF(arguments);
    return result;
}
