#include <string.h>

#include "adaptive_gamma_array.h"
#include "hooks.h"

/* The hooks play a session on an array, which they change in place. */
static int play(PyObject* array, sd_adaptive_gamma* policy) {
    int found;
    return sd_adaptive_gamma_from(array, policy, &found) < 0 || !found ? -1 : 0;
}

static int put_back(PyObject* array, const sd_adaptive_gamma* policy) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_CONTIG) < 0) return -1;
    int fits = view.len == (Py_ssize_t)sizeof *policy;
    if (fits)
        memcpy(view.buf, policy, sizeof *policy);
    else
        PyErr_SetString(PyExc_ValueError, "adaptive_gamma: the array has changed its size");
    PyBuffer_Release(&view);
    return fits ? 0 : -1;
}

/* (policy, n_open, gamma): does the round draft? */
PyObject* sd_hook_adaptive_gamma_begin(PyObject* module, PyObject* args) {
    (void)module;
    PyObject* array;
    int n_open, gamma;
    sd_adaptive_gamma policy;
    if (!PyArg_ParseTuple(args, "Oii", &array, &n_open, &gamma) || play(array, &policy) < 0) return NULL;
    int drafting = sd_adaptive_gamma_begin(&policy, n_open, gamma);
    return put_back(array, &policy) < 0 ? NULL : PyLong_FromLong(drafting);
}

/* (policy, confidences of a chain, is the last only looked at): does another guess pay? */
PyObject* sd_hook_adaptive_gamma_pays(PyObject* module, PyObject* args) {
    (void)module;
    PyObject *array, *chain;
    int looked_at;
    sd_adaptive_gamma policy;
    double* confidences;
    if (!PyArg_ParseTuple(args, "OOp", &array, &chain, &looked_at) || play(array, &policy) < 0) return NULL;
    int n;
    if (sd_floats_from(chain, "chain", &confidences, &n) < 0) return NULL;
    n -= looked_at;
    double path_prob = 1.0, known = -1.0;
    for (int i = 0; i < n + looked_at; i++) {
        double chance = sd_adaptive_gamma_chance(&policy, confidences[i], i + 1);
        if (i < n)
            path_prob *= chance;
        else
            known = chance;
    }
    PyMem_Free(confidences);
    return PyLong_FromLong(sd_adaptive_gamma_pays(&policy, path_prob, n, n, known));
}

/* (policy, tuple of chains, tokens, draft_s, rest_s); a chain: (confidences, how many were accepted, depth of
 * the guess that was declined or 0, its confidence). */
PyObject* sd_hook_adaptive_gamma_end(PyObject* module, PyObject* args) {
    (void)module;
    enum { ROOM = 128 };
    PyObject *array, *chains;
    sd_adaptive_gamma policy;
    sd_adaptive_gamma_round round = {0};
    if (!PyArg_ParseTuple(args, "OO!idd", &array, &PyTuple_Type, &chains, &round.n_tokens, &round.draft_s,
                          &round.rest_s) ||
        play(array, &policy) < 0)
        return NULL;
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(chains); c++) {
        PyObject* list;
        int32_t tokens[ROOM] = {0}, parents[ROOM], depths[ROOM], path[ROOM];
        double confidences[ROOM], *given;
        int n_path, n;
        sd_proposal p = {.depths = depths, .confidences = confidences};
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(chains, c), "Oiid", &list, &n_path, &p.rejected_at,
                              &p.rejected_confidence) ||
            sd_floats_from(list, "chain", &given, &n) < 0)
            return NULL;
        int fits = n < ROOM && n_path <= n;
        for (int i = 0; i <= n && fits; i++) {
            parents[i] = i - 1, depths[i] = i, path[i] = i + 1;
            confidences[i] = i ? given[i - 1] : 1.0;
        }
        PyMem_Free(given);
        if (!fits) return PyErr_Format(PyExc_ValueError, "a chain of %d guesses", n);
        p.tree = (sd_tree){n + 1, tokens, parents, NULL};
        if (policy.drafting > 0.0) sd_adaptive_gamma_observe(&policy, &p, path, n_path);
        round.n_rows += 1 + n;
        round.n_steps += p.rejected_at > n ? p.rejected_at : n;
    }
    sd_adaptive_gamma_end(&policy, &round);
    return put_back(array, &policy) < 0 ? NULL : Py_NewRef(Py_None);
}
