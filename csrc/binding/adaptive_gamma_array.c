#include "adaptive_gamma_array.h"

#include <string.h>

int sd_adaptive_gamma_from(PyObject* array, sd_adaptive_gamma* policy, int* found) {
    *found = array != Py_None;
    if (!*found) return 0;
    Py_buffer view;
    if (sd_view(array, "adaptive_gamma", 'd', 1, &view) < 0) return -1;
    sd_status status = SD_OK;
    double numbers[SD_ADAPTIVE_GAMMA_SIZE]; /* a copy: another thread may change the array after the check */
    if (view.shape[0] != (Py_ssize_t)SD_ADAPTIVE_GAMMA_SIZE) {
        status = sd_fail(SD_ERR_SHAPE, "adaptive_gamma has %lld entries, expected %d", (long long)view.shape[0],
                         (int)SD_ADAPTIVE_GAMMA_SIZE);
    } else {
        memcpy(numbers, view.buf, sizeof numbers);
        status = sd_adaptive_gamma_check(numbers);
    }
    if (status == SD_OK) memcpy(policy, numbers, sizeof *policy);
    PyBuffer_Release(&view);
    if (status == SD_OK) return 0;
    sd_raise(status);
    return -1;
}

PyObject* sd_adaptive_gamma_to_array(const sd_adaptive_gamma* policy) {
    void* data;
    PyObject* array = sd_new_array("float64", (Py_ssize_t)SD_ADAPTIVE_GAMMA_SIZE, -1, &data);
    if (array != NULL) memcpy(data, policy, sizeof *policy);
    return array;
}

PyObject* sd_new_adaptive_gamma(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    sd_adaptive_gamma policy;
    sd_adaptive_gamma_reset(&policy);
    return sd_adaptive_gamma_to_array(&policy);
}

/* [(confidence, chance, guesses), …] of guesses at depth 1, by the middles of the bins. */
static PyObject* by_confidence(const sd_adaptive_gamma* policy) {
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < SD_ADAPTIVE_GAMMA_CONFIDENCES; i++) {
        double middle = sd_adaptive_gamma_confidence(i);
        PyObject* item =
            Py_BuildValue("(ddd)", middle, sd_adaptive_gamma_chance(policy, middle, 1), policy->by_confidence[i].n);
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* dict[key] = value, whose reference is taken. Returns 0, or -1 with an exception, also where value is NULL. */
static int put(PyObject* dict, const char* key, PyObject* value) {
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

PyObject* sd_adaptive_gamma_view(PyObject* module, PyObject* args) {
    (void)module;
    PyObject* array;
    sd_adaptive_gamma policy;
    int found;
    if (!PyArg_ParseTuple(args, "O", &array)) return NULL;
    if (array == Py_None) {
        PyErr_SetString(PyExc_TypeError, "adaptive_gamma: expected an array");
        return NULL;
    }
    if (sd_adaptive_gamma_from(array, &policy, &found) < 0) return NULL;
    sd_adaptive_gamma_begin(&policy, 1, SD_ADAPTIVE_GAMMA_HORIZON);
    for (int i = 0; i <= SD_ADAPTIVE_GAMMA_HORIZON; i++)
        policy.target_s[i] *= policy.slowness, policy.draft_s[i] *= policy.slowness;
    if (policy.slowness > 0.0) policy.rate /= policy.slowness, policy.plain_rate /= policy.slowness;
    PyObject* view = Py_BuildValue("{sdsdsd}", "rate", policy.rate, "plain_rate", policy.plain_rate, "plain_left",
                                   policy.plain_left);
    const int n = SD_ADAPTIVE_GAMMA_HORIZON + 1;
    if (view != NULL && (put(view, "target_s", sd_list_of_floats(policy.target_s, n)) < 0 ||
                         put(view, "draft_s", sd_list_of_floats(policy.draft_s, n)) < 0 ||
                         put(view, "chance", sd_list_of_floats(policy.chance, n)) < 0 ||
                         put(view, "by_confidence", by_confidence(&policy)) < 0))
        Py_CLEAR(view);
    return view;
}

#ifdef SPECDEC_TESTING
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
PyObject* sd_adaptive_gamma_begin_hook(PyObject* module, PyObject* args) {
    (void)module;
    PyObject* array;
    int n_open, gamma;
    sd_adaptive_gamma policy;
    if (!PyArg_ParseTuple(args, "Oii", &array, &n_open, &gamma) || play(array, &policy) < 0) return NULL;
    int drafting = sd_adaptive_gamma_begin(&policy, n_open, gamma);
    return put_back(array, &policy) < 0 ? NULL : PyLong_FromLong(drafting);
}

/* (policy, confidences of a chain, is the last only looked at): does another guess pay? */
PyObject* sd_adaptive_gamma_pays_hook(PyObject* module, PyObject* args) {
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
PyObject* sd_adaptive_gamma_end_hook(PyObject* module, PyObject* args) {
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
#endif
