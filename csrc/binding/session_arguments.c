#include "session_arguments.h"

void sd_prompt_free(const sd_prompt* prompt) {
    PyMem_Free((void*)prompt->tokens);
    PyMem_Free((void*)prompt->source);
}

int sd_prompt_from(PyObject* ids, PyObject* key, PyObject* source_argument, sd_prompt* prompt) {
    int32_t *tokens, *source;
    unsigned long long seed;
    unsigned int sequence;
    if (!PyTuple_Check(key)) return sd_set_error(PyExc_TypeError, "seeds: expected (seed, sequence) tuples");
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

/* Allocate memory for the states of a slot, unless it exists. */
static sd_status reserve(const sd_session_borrowed* borrowed, sd_slot* slot, const sd_slot* with) {
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
    if (sd_passed(reserve(borrowed, slot, with)) < 0) return -1;
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
    PyObject** exceptions[] = {&slot->transform.exception, &slot->transform.states.exception,
                               &slot->constraining.exception};
    for (int i = 0; i < 3; i++) {
        PyObject* exception = *exceptions[i];
        *exceptions[i] = NULL;
        if (exception != NULL) return exception;
    }
    return NULL;
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
    Py_CLEAR(borrowed->target);
    Py_CLEAR(borrowed->draft_arguments);
    Py_CLEAR(borrowed->failures);
}

int sd_session_borrowed_traverse(const sd_session_borrowed* borrowed, visitproc visit, void* arg) {
    Py_VISIT((PyObject*)borrowed->target);
    Py_VISIT(borrowed->draft_arguments);
    Py_VISIT(borrowed->failures);
    for (int i = 0; i < borrowed->n_slots; i++) {
        Py_VISIT((PyObject*)borrowed->slots[i].object);
        Py_VISIT(borrowed->slots[i].transform.exception);
        int result = sd_python_states_traverse(&borrowed->slots[i].transform.states, visit, arg);
        if (result == 0) result = sd_python_states_traverse(&borrowed->slots[i].constraining, visit, arg);
        if (result != 0) return result;
    }
    return 0;
}

/* Create a session with these options and the drafter of a description; NULL: none. */
static int make_session(const sd_session_options* o, PyObject* draft, sd_session_borrowed* borrowed,
                        sd_session** session) {
    sd_drafter* drafter = NULL;
    if (sd_passed(sd_session_check(o)) < 0) return -1;
    borrowed->slots = PyMem_Calloc((size_t)o->n_slots, sizeof *borrowed->slots);
    if (borrowed->slots == NULL) return sd_no_memory();
    borrowed->n_slots = o->n_slots;
    if (draft != NULL) {
        if ((borrowed->draft_arguments = PyList_New(0)) == NULL) return -1;
        if ((borrowed->failures = PyDict_New()) == NULL) return -1;
        borrowed->context = (sd_drafter_context){
            .drafting = sd_session_drafting(o),
            .target = o->target,
            .saved_thread = borrowed->saved_thread,
            .arguments = borrowed->draft_arguments,
            .failures = borrowed->failures,
        };
        if (sd_drafter_from(draft, &borrowed->context, &drafter) < 0) return -1;
    }
    return sd_passed(sd_session_create(o, drafter, session));
}

int sd_session_from_arguments(PyObject* args, PyObject* kwargs, sd_session_borrowed* borrowed,
                              sd_session** session, int* keep_logits) {
    PyObject *target, *draft, *settings = Py_None, *adaptive = Py_None;
    sd_session_options o = {0};
    const sd_field fields[] = {
        SD_INTEGER("gamma", &o.gamma),
        SD_INTEGER("n_slots", &o.n_slots),
        SD_INTEGER("n_text", &o.n_text),
        SD_INTEGER("n_threads", &o.n_threads),
        SD_OPTIONAL(OBJECT, "settings", &settings),
        SD_OPTIONAL(INTEGER, "max_top", &o.n_top),
        SD_OPTIONAL(FLAG, "keep_logits", keep_logits),
        SD_OPTIONAL(INTEGER, "node_budget", &o.node_budget),
        SD_OPTIONAL(OBJECT, "adaptive_gamma", &adaptive),
    };
    const sd_settings_object* all = NULL;
    const sd_adaptive_gamma_object* learned = NULL;
    if (!PyArg_ParseTuple(args, "OO:Session", &target, &draft)) return -1;
    PyObject* own =
        kwargs ? PyDict_Copy(kwargs) : PyDict_New(); /* a private copy, which owns what is borrowed */
    int result =
        own != NULL && SD_FIELDS_FROM(own, "Session", fields) == 0 &&
                sd_model_from(target, "target") != NULL &&
                (settings == Py_None || (all = sd_settings_from(settings, "settings"))) &&
                (adaptive == Py_None || (learned = sd_adaptive_gamma_from(adaptive, "adaptive_gamma")))
            ? 0
            : -1;
    if (result == 0) {
        borrowed->target = (sd_model_object*)Py_NewRef(target);
        borrowed->gate = (sd_gate){.saved_thread = borrowed->saved_thread};
        borrowed->n_nodes =
            o.gamma > 0 && o.gamma <= SD_MAX_GAMMA ? o.gamma : 0; /* the core rejects others */
        borrowed->is_adaptive = learned != NULL;
        if (learned) borrowed->adaptive_gamma = learned->learned;
        o.target = borrowed->target->model;
        o.settings = all ? &all->settings : NULL;
        o.constrained = all && all->constraint != NULL;
        o.adaptive_gamma = learned ? &borrowed->adaptive_gamma : NULL;
        result = make_session(&o, draft == Py_None ? NULL : draft, borrowed, session);
    }
    Py_XDECREF(own);
    return result;
}
