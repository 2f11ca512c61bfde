#include <string.h>

#include "drafter_selection.h"
#include "hooks.h"

typedef struct state {
    sd_selection selection;
    sd_drafter_stats stats;
} state;

/* Returns 0, or -1 with an exception. */
static int load(state* s, const char* bytes, Py_ssize_t size) {
    memset(s, 0, sizeof *s);
    if (size == (Py_ssize_t)sizeof *s) memcpy(s, bytes, sizeof *s);
    if (size == 0 || size == (Py_ssize_t)sizeof *s) return 0;
    PyErr_Format(PyExc_ValueError, "state: %zd bytes, expected 0 or %zd", size, (Py_ssize_t)sizeof *s);
    return -1;
}

static PyObject* save(const state* s) { return PyBytes_FromStringAndSize((const char*)s, sizeof *s); }

/* (state, *, expected, n_rows, now): (state, is the drafter asked?) */
PyObject* sd_hook_selection_asks(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"state", "expected", "n_rows", "now", NULL};
    const char* bytes;
    Py_ssize_t size;
    state s;
    double expected = 0.0, now = 0.0;
    int n_rows = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|$did", names, &bytes, &size, &expected, &n_rows,
                                     &now) ||
        load(&s, bytes, size) < 0)
        return NULL;
    int asked = sd_selection_asks(&s.selection, &s.stats, expected, n_rows, now);
    return Py_BuildValue("(NO)", save(&s), asked ? Py_True : Py_False);
}

/* (state, *, n_sequences, n_nodes, seconds, now): state */
PyObject* sd_hook_selection_spend(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"state", "n_sequences", "n_nodes", "seconds", "now", NULL};
    const char* bytes;
    Py_ssize_t size;
    state s;
    int n_sequences = 0, n_nodes = 0;
    double seconds = 0.0, now = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|$iidd", names, &bytes, &size, &n_sequences, &n_nodes,
                                     &seconds, &now) ||
        load(&s, bytes, size) < 0)
        return NULL;
    sd_selection_spend(&s.stats, n_sequences, n_nodes, seconds, now);
    return save(&s);
}

/* (state, *, expected, alone, added): state */
PyObject* sd_hook_selection_learn(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"state", "expected", "alone", "added", NULL};
    const char* bytes;
    Py_ssize_t size;
    state s;
    double expected = 0.0, alone = 0.0, added = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|$ddd", names, &bytes, &size, &expected, &alone,
                                     &added) ||
        load(&s, bytes, size) < 0)
        return NULL;
    sd_selection_learn(&s.stats, expected, alone, added);
    return save(&s);
}

/* (state, *, n_tokens, seconds, n_rows, target_s): state */
PyObject* sd_hook_selection_end_round(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"state", "n_tokens", "seconds", "n_rows", "target_s", NULL};
    const char* bytes;
    Py_ssize_t size;
    state s;
    int n_tokens = 0, n_rows = 0;
    double seconds = 0.0, target_s = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#|$idid", names, &bytes, &size, &n_tokens, &seconds,
                                     &n_rows, &target_s) ||
        load(&s, bytes, size) < 0)
        return NULL;
    sd_selection_end_round(&s.selection, n_tokens, seconds, n_rows, target_s);
    sd_selection_end_round_of(&s.stats);
    return save(&s);
}
