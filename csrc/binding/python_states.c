#include "python_states.h"

#include <math.h>
#include <string.h>

int sd_has_states(PyObject* object) {
    PyObject* start = PyObject_GetAttrString(object, "start");
    if (start == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    int result = start != NULL && PyCallable_Check(start);
    Py_XDECREF(start);
    return result;
}

int sd_python_states_from(PyObject* object, const char* name, const char* answer, int n_vocab, sd_gate* gate,
                          sd_python_states* python) {
    int result = sd_has_states(object);
    if (result == 0)
        PyErr_Format(PyExc_TypeError, "%s: expected an object with the method start(tokens)", name);
    if (result <= 0) return -1;
    PyObject* states = PyList_New(0);
    if (states == NULL) return -1;
    *python = (sd_python_states){name,
                                 Py_NewRef(object),
                                 states,
                                 NULL,
                                 n_vocab,
                                 gate,
                                 PyUnicode_InternFromString("fork"),
                                 PyUnicode_InternFromString("advance"),
                                 PyUnicode_InternFromString(answer)};
    if (!PyErr_Occurred()) return 0;
    sd_python_states_free(python);
    return -1;
}

void sd_python_states_free(sd_python_states* p) {
    Py_CLEAR(p->object);
    Py_CLEAR(p->states);
    Py_CLEAR(p->exception);
    Py_CLEAR(p->fork);
    Py_CLEAR(p->advance);
    Py_CLEAR(p->answer);
}

int sd_python_states_traverse(const sd_python_states* p, visitproc visit, void* arg) {
    Py_VISIT(p->object);
    Py_VISIT(p->states);
    Py_VISIT(p->exception);
    return 0;
}

static void enter(void* context) {
    sd_gate* gate = ((sd_python_states*)context)->gate;
    if (gate->depth++ > 0) return;
    gate->taken = *gate->saved_thread != NULL;
    if (gate->taken) sd_gil_take(gate->saved_thread);
}

static void leave(void* context) {
    sd_gate* gate = ((sd_python_states*)context)->gate;
    if (--gate->depth == 0 && gate->taken) sd_gil_release(gate->saved_thread);
}

/* The status of a call that may have set an exception. */
static sd_status status_of(sd_python_states* p) {
    if (!PyErr_Occurred()) return SD_OK;
    Py_XSETREF(p->exception, sd_take_exception());
    return SD_ERR_CALLBACK;
}

/* Keep a state (stolen) under its number. */
static sd_status keep_as(sd_python_states* p, int number, PyObject* state) {
    int failed = state == NULL;
    while (!failed && PyList_GET_SIZE(p->states) <= number) failed = PyList_Append(p->states, Py_None) < 0;
    if (failed)
        Py_XDECREF(state);
    else
        PyList_SetItem(p->states, number, state);
    return status_of(p);
}

/* Return the result of a method (stolen) if it has the methods of a state; else NULL with an exception. */
static PyObject* checked(const sd_python_states* p, const char* method, PyObject* state) {
    PyObject* names[] = {p->fork, p->advance, p->answer};
    for (int i = 0; state != NULL && i < 3; i++) {
        PyObject* found = PyObject_GetAttr(state, names[i]);
        int lacks = found == NULL ? PyErr_ExceptionMatches(PyExc_AttributeError) : !PyCallable_Check(found);
        if (lacks) {
            PyErr_Clear();
            PyObject* text = sd_shown(state);
            if (text != NULL)
                sd_refuse("%s: %s() returned %U, which has no method %U; expected fork, advance and %U",
                          p->name, method, text, names[i], p->answer);
            Py_XDECREF(text);
        }
        if (found == NULL || lacks) Py_CLEAR(state);
        Py_XDECREF(found);
    }
    return state;
}

PyObject* sd_python_state(const sd_python_states* p, int i) {
    return i < PyList_GET_SIZE(p->states) ? PyList_GET_ITEM(p->states, i) : Py_None;
}

static sd_status start(void* context, const int32_t* tokens, int n) {
    sd_python_states* p = context;
    enter(p);
    PyObject *ids = sd_list_of_ints(tokens, n), *state = NULL;
    if (ids != NULL) state = PyObject_CallMethod(p->object, "start", "O", ids);
    Py_XDECREF(ids);
    sd_status status = keep_as(p, 0, checked(p, "start", state));
    leave(p);
    return status;
}

static sd_status advance(void* context, int from, int32_t token, int to) {
    sd_python_states* p = context;
    enter(p);
    PyObject* before = Py_NewRef(sd_python_state(p, from)); /* the call may run any code */
    PyObject* state = PyObject_CallMethodNoArgs(before, p->fork);
    if (state != NULL && Py_TYPE(state) != Py_TYPE(before)) state = checked(p, "fork", state);
    PyObject* id = state ? PyLong_FromLong(token) : NULL;
    PyObject* ignored = id ? PyObject_CallMethodOneArg(state, p->advance, id) : NULL;
    if (ignored == NULL) Py_CLEAR(state);
    Py_XDECREF(ignored);
    Py_XDECREF(id);
    Py_DECREF(before);
    sd_status status = keep_as(p, to, state);
    leave(p);
    return status;
}

static void keep(void* context, int from) {
    sd_python_states* p = context;
    enter(p);
    PyObject* state = Py_NewRef(sd_python_state(p, from));
    Py_ssize_t n = PyList_GET_SIZE(p->states);
    if (n == 0 || PyList_SetItem(p->states, 0, state) < 0 || PyList_SetSlice(p->states, 1, n, NULL) < 0)
        PyErr_Clear(); /* the list is never empty; the states are overwritten */
    leave(p);
}

static int forgive(void* context) {
    sd_python_states* p = context;
    enter(p);
    /* An object may declare the exceptions that it raises itself: others may come from a signal handler. */
    PyObject* raised = PyObject_GetAttrString(p->object, "raises");
    if (raised == NULL) {
        PyErr_Clear();
        raised = Py_NewRef(PyExc_Exception);
    }
    int forgiven = p->exception == NULL || PyErr_GivenExceptionMatches(p->exception, raised);
    Py_DECREF(raised);
    if (forgiven) Py_CLEAR(p->exception);
    leave(p);
    return forgiven;
}

sd_state_source sd_python_states_source(sd_python_states* python) {
    return (sd_state_source){start, advance, keep, forgive, enter, leave, python};
}

static void refuse_mask(const sd_python_states* p, PyObject* returned) {
    if (PyErr_Occurred() && !sd_is_misfit()) return;
    PyErr_Clear();
    PyObject* text = sd_shown(returned);
    if (text != NULL)
        sd_refuse(
            "%s: mask() returned %U; expected %d truth values, %d words of 32 bits, or None where the "
            "text is complete",
            p->name, text, p->n_vocab, (p->n_vocab + 31) / 32);
    Py_XDECREF(text);
}

/* Read the words of a mask, given as words or as a truth value for each token. */
static int words_from(const sd_python_states* p, PyObject* returned, uint32_t* words) {
    Py_buffer view;
    if (PyObject_GetBuffer(returned, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return -1;
    size_t n_words = ((size_t)p->n_vocab + 31) / 32, size = n_words * sizeof *words;
    const char* format = view.format ? view.format : "B";
    if (*format == '<' || *format == '=' || *format == '@') format++;
    int flags = strcmp(format, "?") == 0 && view.ndim == 1 && view.len == p->n_vocab;
    int packed = strcmp(format, "?") != 0 && strchr("BbIiLl", *format) && (size_t)view.len == size;
    if (packed) {
        memcpy(words, view.buf, size);
    } else if (flags) {
        const unsigned char* values = view.buf;
        memset(words, 0, size);
        for (int i = 0; i < p->n_vocab; i++) words[i >> 5] |= (uint32_t)(values[i] != 0) << (i & 31);
    }
    PyBuffer_Release(&view);
    return flags || packed ? 0 : -1;
}

static sd_status mask(void* context, int number, uint32_t* words, int* complete) {
    sd_python_states* p = context;
    enter(p);
    PyObject* state = Py_NewRef(sd_python_state(p, number));
    PyObject* returned = PyObject_CallMethodNoArgs(state, p->answer);
    *complete = returned == Py_None;
    if (returned != NULL && !*complete && words_from(p, returned, words) < 0) refuse_mask(p, returned);
    Py_XDECREF(returned);
    Py_DECREF(state);
    sd_status status = status_of(p);
    leave(p);
    return status;
}

sd_constraint_source sd_python_constraint_source(sd_python_states* python) {
    return (sd_constraint_source){sd_python_states_source(python), mask};
}

/* ------------------------------------------------------------------------------------------- transforms */

/* Set InputError for what the function returned. */
static void refuse(PyObject* returned, int n_vocab) {
    PyErr_Clear();
    PyObject* text = sd_shown(returned);
    if (text != NULL)
        sd_refuse("transform returned %U; expected %d numbers of 0 or more, not all 0, with a finite sum",
                  text, n_vocab);
    Py_XDECREF(text);
}

/* Replace probs [n_vocab] by the result of the user's function. */
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
    return sd_array_of("float64", probs, sizeof *probs, n_vocab, -1);
}

/* Take the result of the call (stolen); NULL: an exception. */
static sd_status finish(sd_python_transform* self, PyObject* returned, double* probs, int n_vocab) {
    int result = returned ? take_probs(returned, probs, n_vocab) : -1;
    Py_XDECREF(returned);
    if (result == 0) return SD_OK;
    Py_XSETREF(self->exception, sd_take_exception());
    return SD_ERR_CALLBACK;
}

/* sd_transform.apply: call function(probs, tokens) with the GIL, which the thread lacks while it is in the
 * core. The function gets its own array and list. */
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

/* sd_transform.apply_state: call state(probs) with the lock that `enter` has taken. */
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
