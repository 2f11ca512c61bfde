/* Automaton: which pieces of a text occur in it, and where. */
#include "interrupt.h"
#include "module.h"

/* Tokens that are taken in between two looks for an interruption: at first each may need new pages of
 * memory. */
#define PIECE 16

/* The automaton of tokens [n], in an arena that the caller owns, also when the call fails. */
static sd_status build(const int32_t* tokens, Py_ssize_t n, sd_arena* arena, sd_automaton* automaton) {
    sd_status status = SD_ARENA_BUILD(arena, *automaton = sd_automaton_take(arena, (int)n));
    if (status != SD_OK) return status;
    sd_automaton_clear(automaton);
    for (Py_ssize_t i = 0; i < n && status == SD_OK; i++) {
        if (i % PIECE == 0) status = sd_interrupted();
        if (status != SD_OK) break;
        int32_t token = tokens[i]; /* another thread may change the array */
        status = token >= -1
                     ? sd_automaton_append(automaton, token)
                     : sd_fail(SD_ERR_VALUE, "ids[%zd] is %d, expected a token, or -1 between two texts", i,
                               (int)token);
    }
    return status;
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", NULL};
    sd_automaton_object* self = (sd_automaton_object*)object;
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_view(argument, "ids", 'i', 1, &view) < 0) return -1;
    sd_arena arena = {0};
    sd_automaton automaton = {0};
    sd_status status;
    if (view.shape[0] > SD_AUTOMATON_MAX_TOKENS) {
        status = sd_fail(SD_ERR_VALUE, "there are %zd ids, expected at most %d", view.shape[0],
                         SD_AUTOMATON_MAX_TOKENS);
    } else {
        PyThreadState* saved_thread;
        sd_gil_release(&saved_thread);
        status = build(view.buf, view.shape[0], &arena, &automaton);
        sd_gil_take(&saved_thread);
    }
    PyBuffer_Release(&view);
    if (status == SD_OK && self->automaton.states != NULL)
        status = sd_fail(SD_ERR_STATE, "an Automaton cannot be initialised twice");
    if (status != SD_OK) {
        sd_arena_free(&arena);
        sd_raise(status);
        return -1;
    }
    self->arena = arena;
    self->automaton = automaton;
    for (int i = 0; i < automaton.n_tokens; i++)
        if (automaton.text[i] > self->max_token) self->max_token = automaton.text[i];
    return 0;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    sd_arena_free(&((sd_automaton_object*)object)->arena);
    type->tp_free(object);
    Py_DECREF(type);
}

sd_automaton_object* sd_automaton_from(const sd_module_state* state, PyObject* object, const char* name) {
    sd_automaton_object* self = (sd_automaton_object*)object;
    if (!PyObject_TypeCheck(object, state->automaton_type))
        PyErr_Format(PyExc_TypeError, "%s: expected an Automaton, not %s", name, Py_TYPE(object)->tp_name);
    else if (self->automaton.states == NULL)
        PyErr_Format(PyExc_ValueError, "%s: the Automaton has not been initialised", name);
    else
        return self;
    return NULL;
}

static sd_automaton_object* initialised(PyObject* object) {
    return sd_automaton_from(PyType_GetModuleState(Py_TYPE(object)), object, "self");
}

static PyObject* occurrence(const sd_automaton* a, sd_match match) {
    return Py_BuildValue("(ii)", match.length, match.length ? a->states[match.state].end : -1);
}

static PyObject* find(PyObject* object, PyObject* argument) {
    const sd_automaton_object* self = initialised(object);
    int32_t* ids;
    int n;
    if (self == NULL || sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_match match = {0, 0};
    for (int i = 0; i < n; i++) sd_match_advance(&match, &self->automaton, ids[i]);
    PyMem_Free(ids);
    return occurrence(&self->automaton, match);
}

static PyObject* repeated(PyObject* object, PyObject* ignored) {
    (void)ignored;
    const sd_automaton_object* self = initialised(object);
    if (self == NULL) return NULL;
    return occurrence(&self->automaton, sd_automaton_repeated(&self->automaton));
}

static PyObject* get_n_tokens(PyObject* object, void* closure) {
    (void)closure;
    return PyLong_FromLong(((sd_automaton_object*)object)->automaton.n_tokens);
}

static PyObject* get_n_states(PyObject* object, void* closure) {
    (void)closure;
    return PyLong_FromLong(((sd_automaton_object*)object)->automaton.n_states);
}

static PyObject* get_n_bytes(PyObject* object, void* closure) {
    (void)closure;
    return PyLong_FromSize_t(((sd_automaton_object*)object)->arena.size);
}

static PyMethodDef methods[] = {
    {"find", find, METH_O,
     "find($self, ids, /)\n--\n\nThe longest suffix of ids in the text: (length, index of its last token)."},
    {"repeated", repeated, METH_NOARGS,
     "repeated($self, /)\n--\n\nThe longest suffix of the text that occurs earlier in it, as `find`."},
    {0},
};

static PyGetSetDef properties[] = {
    {"n_tokens", get_n_tokens, NULL, "Tokens of the text, separators included.", NULL},
    {"n_states", get_n_states, NULL, "States, at most twice the tokens and one.", NULL},
    {"n_bytes", get_n_bytes, NULL, "Memory held.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Automaton(ids)\n--\n\nThe suffix automaton of a text, immutable."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_automaton_spec = {
    .name = "specdec._core.Automaton",
    .basicsize = sizeof(sd_automaton_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
