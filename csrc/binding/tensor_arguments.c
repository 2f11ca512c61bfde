#include "tensor_arguments.h"

#include <limits.h>
#include <string.h>

#include "blocks.h"
#include "module.h"

/* A tensor argument (name, array, format) as a source; the view must be released. Rows of blocks are [rows,
 * bytes]. */
static int source_from(PyObject* array, const char* name, const char* format, Py_buffer* view,
                       sd_source* source, int shape[2]) {
    sd_number number = SD_F32;
    while (number < SD_N_NUMBERS && strcmp(sd_number_names[number], format) != 0) number++;
    if (number == SD_N_NUMBERS) {
        PyErr_Format(PyExc_ValueError,
                     "tensor %s: format is \"%s\", expected f32, f16, bf16 or a type of GGUF", name, format);
        return -1;
    }
    if (PyObject_GetBuffer(array, view, PyBUF_STRIDED_RO) < 0) return -1;
    int blocks = sd_has_blocks(number);
    Py_ssize_t size = blocks ? 1 : (Py_ssize_t)sd_number_bytes(number);
    if (view->itemsize != size || view->ndim < 1 || view->ndim > 2 || view->shape[0] > INT32_MAX ||
        view->shape[view->ndim - 1] > INT32_MAX) {
        PyErr_Format(
            PyExc_ValueError,
            "tensor %s: %d dimensions of %zd-byte elements, expected 1 or 2 dimensions of %zd-byte elements",
            name, view->ndim, view->itemsize, size);
        PyBuffer_Release(view);
        return -1;
    }
    shape[0] = (int)view->shape[0];
    shape[1] = view->ndim == 2 ? (int)view->shape[1] : 0;
    *source = (sd_source){view->buf, number, view->strides[0], view->ndim == 2 ? view->strides[1] : 0};
    if (!blocks) return 0;
    Py_ssize_t bytes = (Py_ssize_t)sd_number_bytes(number);
    if (view->ndim != 2 || view->shape[1] % bytes != 0 || (view->shape[1] > 1 && view->strides[1] != 1) ||
        view->shape[1] / bytes > INT32_MAX / sd_number_block(number)) {
        PyErr_Format(
            PyExc_ValueError,
            "tensor %s: expected [rows, bytes] of blocks in %s, %zd bytes each, a row's one after the other",
            name, format, bytes);
        PyBuffer_Release(view);
        return -1;
    }
    shape[1] = (int)(view->shape[1] / bytes) * sd_number_block(number);
    return 0;
}

static int set_tensor(PyObject* item, sd_tensor_setter set, void* weights, int n_threads) {
    const char *name, *format;
    PyObject* array;
    Py_buffer view;
    sd_source source;
    int shape[2];
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "tensors: expected (name, array, format) tuples");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "sOs;tensors: expected (name, array, format) tuples", &name, &array, &format))
        return -1;
    if (source_from(array, name, format, &view, &source, shape) < 0) return -1;
    sd_status status;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    status = set(weights, name, &source, shape[0], shape[1], n_threads);
    sd_gil_take(&saved_thread);
    PyBuffer_Release(&view);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

int sd_set_tensors(PyObject* tensors, sd_tensor_setter set, void* weights, int n_threads) {
    PyObject *iterator = PyObject_GetIter(tensors), *item;
    if (iterator == NULL) return -1;
    while ((item = PyIter_Next(iterator)) != NULL) {
        int failed = set_tensor(item, set, weights, n_threads);
        Py_DECREF(item);
        if (failed) break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? -1 : 0;
}

int sd_weights_arguments_from(PyObject* args, PyObject* kwargs, sd_weights_arguments* a) {
    static char* names[] = {"config", "tensors", "tokens", "dtype", "n_threads", NULL};
    const char* dtype = "f32";
    *a = (sd_weights_arguments){.n_threads = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$Osi", names, &a->config, &a->tensors, &a->tokens,
                                     &dtype, &a->n_threads))
        return -1;
    return sd_format_from(dtype, "dtype", &a->format);
}

int sd_draft_tokens_from(PyObject* argument, int n_draft, int32_t** tokens) {
    int n;
    if (sd_optional_ids_from(argument, "tokens", tokens, &n) < 0) return -1;
    if (*tokens == NULL || n == n_draft) return 0;
    PyMem_Free(*tokens);
    sd_raise(sd_fail(SD_ERR_VALUE, "there are %d tokens, expected n_draft_vocab, %d", n, n_draft));
    return -1;
}
