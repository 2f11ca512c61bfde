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
        status = sd_fail(SD_ERR_SHAPE, "adaptive_gamma has %lld entries, expected %d",
                         (long long)view.shape[0], (int)SD_ADAPTIVE_GAMMA_SIZE);
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
        PyObject* item = Py_BuildValue("(ddd)", middle, sd_adaptive_gamma_chance(policy, middle, 1),
                                       policy->by_confidence[i].n);
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* dict[key] = value, whose reference is taken. Returns 0, or -1 with an exception, also where value is
 * NULL. */
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
    PyObject* view = Py_BuildValue("{sdsdsd}", "rate", policy.rate, "plain_rate", policy.plain_rate,
                                   "plain_left", policy.plain_left);
    const int n = SD_ADAPTIVE_GAMMA_HORIZON + 1;
    if (view != NULL && (put(view, "target_s", sd_list_of_floats(policy.target_s, n)) < 0 ||
                         put(view, "draft_s", sd_list_of_floats(policy.draft_s, n)) < 0 ||
                         put(view, "chance", sd_list_of_floats(policy.chance, n)) < 0 ||
                         put(view, "by_confidence", by_confidence(&policy)) < 0))
        Py_CLEAR(view);
    return view;
}
