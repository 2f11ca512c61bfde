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

/* A new array with these probabilities. */
static PyObject* array_of(const double* probs, int n_vocab) {
    double* copy;
    PyObject* array = sd_new_array("float64", n_vocab, -1, (void**)&copy);
    if (array != NULL) memcpy(copy, probs, (size_t)n_vocab * sizeof *copy);
    return array;
}

/* Take what the call has returned, NULL for an exception, whose reference is taken. */
static sd_status finish(sd_python_transform* self, PyObject* returned, double* probs, int n_vocab) {
    int result = returned ? take_probs(returned, probs, n_vocab) : -1;
    Py_XDECREF(returned);
    if (result == 0) return SD_OK;
    Py_XSETREF(self->exception, sd_take_exception());
    return SD_ERR_CALLBACK;
}

/* sd_transform.apply: function(probs, tokens) with the GIL, which the thread lacks while it is in the
 * core. The function is given an array and a list of its own. */
static sd_status apply(void* context, const int32_t* tokens, int n_tokens, double* probs, int n_vocab) {
    sd_python_transform* self = context;
    sd_gil_take(self->saved_thread);
    PyObject *array = array_of(probs, n_vocab), *list = array ? sd_list_of_ints(tokens, n_tokens) : NULL;
    PyObject* returned = list ? PyObject_CallFunctionObjArgs(self->function, array, list, NULL) : NULL;
    sd_status status = finish(self, returned, probs, n_vocab);
    Py_XDECREF(array);
    Py_XDECREF(list);
    sd_gil_release(self->saved_thread);
    return status;
}

/* sd_transform.apply_state: state(probs), with the lock that whoever asks for states has taken. */
static sd_status apply_state(void* context, int number, double* probs, int n_vocab) {
    sd_python_transform* self = context;
    PyObject *state = Py_NewRef(sd_python_state(&self->states, number)), *array = array_of(probs, n_vocab);
    PyObject* returned = array ? PyObject_CallFunctionObjArgs(state, array, NULL) : NULL;
    sd_status status = finish(self, returned, probs, n_vocab);
    Py_XDECREF(array);
    Py_DECREF(state);
    return status;
}

sd_transform sd_transform_of(sd_python_transform* python, int has_states) {
    if (has_states) return (sd_transform){.context = python, .apply_state = apply_state};
    return (sd_transform){.apply = apply, .context = python};
}
