#include "transform.h"

#include <math.h>
#include <string.h>

#include "convert.h"

/* Replace probs [n_vocab] by what the caller's function made of them. */
static int take_probs(PyObject* returned, double* probs, int n_vocab) {
    PyObject* numpy = PyImport_ImportModule("numpy");
    PyObject* array =
        numpy ? PyObject_CallMethod(numpy, "ascontiguousarray", "Os", returned, "float64") : NULL;
    Py_XDECREF(numpy);
    Py_buffer view;
    if (array == NULL) return -1;
    int result = sd_view(array, "transform", 'd', 1, &view);
    Py_DECREF(array);
    if (result < 0) return -1;
    const double* values = view.buf;
    double sum = 0.0;
    int wrong = view.shape[0] != n_vocab;
    for (int i = 0; i < n_vocab && !wrong; i++) {
        wrong = !(values[i] >= 0.0 && isfinite(values[i]));
        sum += values[i];
    }
    wrong = wrong || !(sum > 0.0 && isfinite(1.0 / sum));
    if (wrong)
        PyErr_Format(PyExc_ValueError,
                     "transform: expected %d finite numbers of 0 or more, not all 0, from the function",
                     n_vocab);
    else
        memcpy(probs, values, (size_t)n_vocab * sizeof *probs);
    PyBuffer_Release(&view);
    return wrong ? -1 : 0;
}

/* sd_transform.apply: function(probs, tokens) with the GIL, which the thread lacks while it is in the
 * core. The function is given an array and a list of its own. */
static sd_status apply(void* context, const int32_t* tokens, int n_tokens, double* probs, int n_vocab) {
    sd_python_transform* self = context;
    sd_gil_take(self->outside);
    double* copy;
    PyObject* array = sd_new_array("float64", n_vocab, -1, (void**)&copy);
    PyObject *list = array ? sd_list_of_ints(tokens, n_tokens) : NULL, *returned = NULL;
    if (list != NULL) {
        memcpy(copy, probs, (size_t)n_vocab * sizeof *copy);
        returned = PyObject_CallFunctionObjArgs(self->function, array, list, NULL);
    }
    int result = returned ? take_probs(returned, probs, n_vocab) : -1;
    Py_XDECREF(array);
    Py_XDECREF(list);
    Py_XDECREF(returned);
    sd_gil_release(self->outside);
    return result < 0 ? SD_ERR_CALLBACK : SD_OK;
}

int sd_transform_from(PyObject* function, PyThreadState** outside, sd_python_transform* python,
                      sd_transform* transform) {
    if (function == Py_None) return 0;
    if (!PyCallable_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "transform: expected a function of (probs, tokens)");
        return -1;
    }
    python->function = Py_NewRef(function);
    python->outside = outside;
    *transform = (sd_transform){apply, python};
    return 0;
}
