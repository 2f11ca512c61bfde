#include "transform.h"

#include <math.h>
#include <string.h>

#include "convert.h"

/* Set InputError for what the function returned. */
static void refuse(PyObject* returned, int n_vocab) {
    PyErr_Clear();
    PyObject* text = sd_shown(returned);
    if (text != NULL)
        sd_refuse("transform returned %U; expected %d numbers of 0 or more, not all 0, with a finite sum",
                  text, n_vocab);
    Py_XDECREF(text);
}

/* Replace probs [n_vocab] by what the caller's function made of them. */
static int take_probs(PyObject* returned, double* probs, int n_vocab) {
    PyObject* array = sd_reals_from(returned);
    Py_buffer view;
    int result = array ? sd_view(array, "transform", 'd', 1, &view) : -1;
    Py_XDECREF(array);
    if (result < 0) {
        if (sd_is_misfit()) refuse(returned, n_vocab);
        return -1;
    }
    const double* values = view.buf;
    double sum = 0.0;
    int wrong = view.shape[0] != n_vocab;
    for (int i = 0; i < n_vocab && !wrong; i++) {
        wrong = !(values[i] >= 0.0 && isfinite(values[i]));
        sum += values[i];
    }
    wrong = wrong || !(sum > 0.0 && isfinite(1.0 / sum) && isfinite(2.0 * sum));
    if (wrong)
        refuse(returned, n_vocab);
    else
        memcpy(probs, values, (size_t)n_vocab * sizeof *probs);
    PyBuffer_Release(&view);
    return wrong ? -1 : 0;
}

/* sd_transform.apply: function(probs, tokens) with the GIL, which the thread lacks while it is in the
 * core. The function is given an array and a list of its own. */
static sd_status apply(void* context, const int32_t* tokens, int n_tokens, double* probs, int n_vocab) {
    sd_python_transform* self = context;
    sd_gil_take(self->saved_thread);
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
    if (result < 0) Py_XSETREF(self->exception, sd_take_exception());
    sd_gil_release(self->saved_thread);
    return result < 0 ? SD_ERR_CALLBACK : SD_OK;
}

sd_transform sd_transform_of(sd_python_transform* python) {
    return python->function == NULL ? (sd_transform){0} : (sd_transform){apply, python};
}
