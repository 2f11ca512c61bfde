#include "pacing.h"

#include <string.h>

int sd_pace_from(PyObject* array, sd_pace* pace, int* found) {
    *found = array != Py_None;
    if (!*found) return 0;
    Py_buffer view;
    if (sd_view(array, "pace", 'd', 1, &view) < 0) return -1;
    sd_status status = SD_OK;
    double numbers[SD_PACE_SIZE]; /* a copy: another thread may change the array after the check */
    if (view.shape[0] != (Py_ssize_t)SD_PACE_SIZE) {
        status = sd_fail(SD_ERR_SHAPE, "pace has %lld entries, expected %d", (long long)view.shape[0],
                         (int)SD_PACE_SIZE);
    } else {
        memcpy(numbers, view.buf, sizeof numbers);
        status = sd_pace_check(numbers);
    }
    if (status == SD_OK) memcpy(pace, numbers, sizeof *pace);
    PyBuffer_Release(&view);
    if (status == SD_OK) return 0;
    sd_raise(status);
    return -1;
}

PyObject* sd_pace_to_array(const sd_pace* pace) {
    void* data;
    PyObject* array = sd_new_array("float64", (Py_ssize_t)SD_PACE_SIZE, -1, &data);
    if (array != NULL) memcpy(data, pace, sizeof *pace);
    return array;
}

PyObject* sd_new_pace(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    sd_pace pace;
    sd_pace_reset(&pace);
    return sd_pace_to_array(&pace);
}

/* [(confidence, chance, guesses), …] of guesses at depth 1, by the middles of the bins. */
static PyObject* by_confidence(const sd_pace* pace) {
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < SD_PACE_CONFIDENCES; i++) {
        double middle = sd_pace_confidence(i);
        PyObject* item =
            Py_BuildValue("(ddd)", middle, sd_pace_chance(pace, middle, 1), pace->by_confidence[i].n);
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

PyObject* sd_pace_view(PyObject* module, PyObject* args) {
    (void)module;
    PyObject* array;
    sd_pace pace;
    int found;
    if (!PyArg_ParseTuple(args, "O", &array)) return NULL;
    if (array == Py_None) {
        PyErr_SetString(PyExc_TypeError, "pace: expected an array");
        return NULL;
    }
    if (sd_pace_from(array, &pace, &found) < 0) return NULL;
    sd_pace_begin(&pace, 1, SD_PACE_HORIZON);
    for (int i = 0; i <= SD_PACE_HORIZON; i++)
        pace.target_s[i] *= pace.slowness, pace.draft_s[i] *= pace.slowness;
    if (pace.slowness > 0.0) pace.rate /= pace.slowness, pace.plain_rate /= pace.slowness;
    PyObject* view = Py_BuildValue("{sdsdsd}", "rate", pace.rate, "plain_rate", pace.plain_rate, "plain_left",
                                   pace.plain_left);
    const int n = SD_PACE_HORIZON + 1;
    if (view != NULL && (put(view, "target_s", sd_list_of_floats(pace.target_s, n)) < 0 ||
                         put(view, "draft_s", sd_list_of_floats(pace.draft_s, n)) < 0 ||
                         put(view, "chance", sd_list_of_floats(pace.chance, n)) < 0 ||
                         put(view, "by_confidence", by_confidence(&pace)) < 0))
        Py_CLEAR(view);
    return view;
}

#ifdef SPECDEC_TESTING
/* The hooks play a session on an array, which they change in place. */
static int play(PyObject* array, sd_pace* pace) {
    int found;
    return sd_pace_from(array, pace, &found) < 0 || !found ? -1 : 0;
}

static int put_back(PyObject* array, const sd_pace* pace) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_CONTIG) < 0) return -1;
    int fits = view.len == (Py_ssize_t)sizeof *pace;
    if (fits)
        memcpy(view.buf, pace, sizeof *pace);
    else
        PyErr_SetString(PyExc_ValueError, "pace: the array has changed its size");
    PyBuffer_Release(&view);
    return fits ? 0 : -1;
}

/* (pace, n_open, gamma): does the round draft? */
PyObject* sd_pace_begin_hook(PyObject* module, PyObject* args) {
    (void)module;
    PyObject* array;
    int n_open, gamma;
    sd_pace pace;
    if (!PyArg_ParseTuple(args, "Oii", &array, &n_open, &gamma) || play(array, &pace) < 0) return NULL;
    int drafting = sd_pace_begin(&pace, n_open, gamma);
    return put_back(array, &pace) < 0 ? NULL : PyLong_FromLong(drafting);
}

/* (pace, confidences of a chain, is the last only looked at): does another guess pay? */
PyObject* sd_pace_pays_hook(PyObject* module, PyObject* args) {
    (void)module;
    PyObject *array, *chain;
    int looked_at;
    sd_pace pace;
    double* confidences;
    if (!PyArg_ParseTuple(args, "OOp", &array, &chain, &looked_at) || play(array, &pace) < 0) return NULL;
    int n;
    if (sd_floats_from(chain, "chain", &confidences, &n) < 0) return NULL;
    n -= looked_at;
    double reach = 1.0, known = -1.0;
    for (int i = 0; i < n + looked_at; i++) {
        double chance = sd_pace_chance(&pace, confidences[i], i + 1);
        if (i < n)
            reach *= chance;
        else
            known = chance;
    }
    PyMem_Free(confidences);
    return PyLong_FromLong(sd_pace_pays(&pace, reach, n, n, known));
}

/* (pace, tuple of chains, tokens, draft_s, rest_s); a chain: (confidences, how many were accepted, depth of
 * the guess that was declined or 0, its confidence). */
PyObject* sd_pace_end_hook(PyObject* module, PyObject* args) {
    (void)module;
    enum { ROOM = 128 };
    PyObject *array, *chains;
    sd_pace pace;
    sd_pace_round round = {0};
    if (!PyArg_ParseTuple(args, "OO!idd", &array, &PyTuple_Type, &chains, &round.n_tokens, &round.draft_s,
                          &round.rest_s) ||
        play(array, &pace) < 0)
        return NULL;
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(chains); c++) {
        PyObject* list;
        int32_t tokens[ROOM] = {0}, parents[ROOM], depths[ROOM], path[ROOM];
        double confidences[ROOM], *given;
        int n_path, n;
        sd_proposal p = {.depths = depths, .confidences = confidences};
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(chains, c), "Oiid", &list, &n_path, &p.declined_at,
                              &p.declined) ||
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
        if (pace.drafting > 0.0) sd_pace_observe(&pace, &p, path, n_path);
        round.n_rows += 1 + n;
        round.n_steps += p.declined_at > n ? p.declined_at : n;
    }
    sd_pace_end(&pace, &round);
    return put_back(array, &pace) < 0 ? NULL : Py_NewRef(Py_None);
}
#endif
