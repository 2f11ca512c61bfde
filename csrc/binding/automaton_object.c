/* Automaton: which pieces of a text occur in it, and where. */
#include "interrupt.h"
#include "module.h"

/* Tokens appended between two checks for an interruption: at first each may need new pages of memory. */
#define PIECE 16

/* Build the automaton of tokens [n] in an arena that the caller owns, also on failure. */
static sd_status build(const int32_t* tokens, Py_ssize_t n, sd_arena* arena, sd_automaton* automaton) {
    if (n > SD_AUTOMATON_MAX_TOKENS)
        return sd_fail(SD_ERR_VALUE, "there are %zd ids, expected at most %d", n, SD_AUTOMATON_MAX_TOKENS);
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

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"ids", NULL};
    sd_automaton_object* self = (sd_automaton_object*)object;
    sd_automaton* automaton = &self->automaton;
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_view(argument, "ids", 'i', 1, &view) < 0) return -1;
    sd_status status;
    SD_WITHOUT_GIL(status = build(view.buf, view.shape[0], &self->arena, automaton));
    PyBuffer_Release(&view);
    for (int i = 0; status == SD_OK && i < automaton->n_tokens; i++)
        if (automaton->text[i] > self->max_token) self->max_token = automaton->text[i];
    return sd_passed(status);
}

static void release(PyObject* self) { sd_arena_free(&((sd_automaton_object*)self)->arena); }

static PyObject* occurrence(const sd_automaton* a, sd_match match) {
    return Py_BuildValue("(ii)", match.length, match.length ? a->states[match.state].end : -1);
}

static PyObject* find(PyObject* self, PyObject* argument) {
    const sd_automaton* automaton = &((sd_automaton_object*)self)->automaton;
    int32_t* ids;
    int n;
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_match match = {0, 0};
    for (int i = 0; i < n; i++) sd_match_advance(&match, automaton, ids[i]);
    PyMem_Free(ids);
    return occurrence(automaton, match);
}

static PyObject* repeated(PyObject* self, PyObject* ignored) {
    const sd_automaton* automaton = &((sd_automaton_object*)self)->automaton;
    return occurrence(automaton, sd_automaton_repeated(automaton));
}

static PyMethodDef methods[] = {
    {"find", find, METH_O, "find($self, ids, /)\n--\n\n"},
    {"repeated", repeated, METH_NOARGS, "repeated($self, /)\n--\n\n"},
    {0},
};

#define MEMBER(name, type, member, doc) SD_MEMBER(name, type, sd_automaton_object, member, doc)
static PyMemberDef members[] = {
    MEMBER("n_tokens", T_INT, automaton.n_tokens, "Tokens of the text, separators included."),
    MEMBER("n_states", T_INT, automaton.n_states, "States, at most twice the tokens and one."),
    MEMBER("n_bytes", T_PYSSIZET, arena.size, "Memory held."),
    {0},
};

const sd_type_spec sd_automaton_type = {
    .doc = "Automaton(ids)\n--\n\n",
    .size = sizeof(sd_automaton_object),
    .make = make,
    .release = release,
    .methods = methods,
    .members = members,
};
