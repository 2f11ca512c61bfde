/* Tensors passed from Python: (name, array, format) tuples. */
#include <limits.h>
#include <string.h>

#include "blocks.h"
#include "module.h"

static int number_from(const char* name, const char* format, sd_number* number) {
    *number = sd_word_index(format, sd_number_names, SD_N_NUMBERS);
    if (*number < SD_N_NUMBERS) return 0;
    return sd_set_error(PyExc_ValueError,
                        "tensor %s: format is \"%s\", expected f32, f16, bf16 or a type of GGUF", name,
                        format);
}

/* Check rows of a file; view: their order, if it holds one. */
static int are_rows(const sd_source* source, const sd_file_rows* file, const Py_buffer* view,
                    Py_ssize_t n_rows) {
    Py_ssize_t bytes = (Py_ssize_t)sd_number_bytes(source->number);
    if (file->start < 0 || file->start > INT64_MAX / 2 || n_rows < 0 || n_rows > INT32_MAX) return 0;
    if (source->row_stride <= 0 || source->row_stride % bytes != 0 || source->row_stride > INT32_MAX ||
        source->row_stride / bytes > INT32_MAX / sd_number_block(source->number))
        return 0;
    if (view->obj == NULL) return 1;
    if (view->ndim != 1 || view->itemsize != 8 || view->shape[0] != n_rows) return 0;
    for (Py_ssize_t r = 0; r < n_rows; r++)
        if (file->order[r] < 0 || file->order[r] > INT32_MAX) return 0;
    return 1;
}

/* Rows in a file, (file, start, n_rows, row_bytes, order), as a source; release the view if it holds
 * something. */
static int rows_from(PyObject* rows, const char* name, sd_number number, Py_buffer* view, sd_source* source,
                     int shape[2]) {
    PyObject *opened, *order;
    long long start;
    Py_ssize_t n_rows, row_bytes;
    if (!PyArg_ParseTuple(rows, "OLnnO;rows of a file: expected (file, start, n_rows, row_bytes, order)",
                          &opened, &start, &n_rows, &row_bytes, &order))
        return -1;
    sd_file_rows file = {.descriptor = PyObject_AsFileDescriptor(opened), .start = start};
    if (file.descriptor < 0) return -1;
    if (order != Py_None) {
        if (PyObject_GetBuffer(order, view, PyBUF_ND | PyBUF_FORMAT) < 0) return -1;
        file.order = view->buf;
    }
    *source = (sd_source){.number = number, .row_stride = row_bytes, .file = file};
    if (!are_rows(source, &file, view, n_rows)) {
        PyBuffer_Release(view);
        return sd_set_error(PyExc_ValueError,
                            "tensor %s: rows of a file are at %lld, %zd of %zd bytes; expected whole "
                            "elements, and an int64 for each row where there is an order",
                            name, start, n_rows, row_bytes);
    }
    source->col_stride = sd_has_blocks(number) ? 0 : (ptrdiff_t)sd_number_bytes(number);
    shape[0] = (int)n_rows;
    shape[1] = (int)(row_bytes / (Py_ssize_t)sd_number_bytes(number)) * sd_number_block(number);
    return 0;
}

/* An array as a source; release the view. Rows of blocks are [rows, bytes]. */
static int array_from(PyObject* array, const char* name, sd_number number, Py_buffer* view, sd_source* source,
                      int shape[2]) {
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
    *source = (sd_source){.data = view->buf ? view->buf : "",
                          .number = number,
                          .row_stride = view->strides[0],
                          .col_stride = view->ndim == 2 ? view->strides[1] : 0};
    if (!blocks) return 0;
    Py_ssize_t bytes = (Py_ssize_t)sd_number_bytes(number);
    if (view->ndim != 2 || view->shape[1] % bytes != 0 || (view->shape[1] > 1 && view->strides[1] != 1) ||
        view->shape[1] / bytes > INT32_MAX / sd_number_block(number)) {
        PyBuffer_Release(view);
        return sd_set_error(
            PyExc_ValueError,
            "tensor %s: expected [rows, bytes] of blocks in %s, %zd bytes each, a row's one after the other",
            name, sd_number_names[number], bytes);
    }
    shape[1] = (int)(view->shape[1] / bytes) * sd_number_block(number);
    return 0;
}

/* A tensor argument (name, array or rows of a file, format) as a source; release the view. */
static int source_from(PyObject* given, const char* name, const char* format, Py_buffer* view,
                       sd_source* source, int shape[2]) {
    sd_number number;
    *view = (Py_buffer){0};
    if (number_from(name, format, &number) < 0) return -1;
    return PyTuple_Check(given) ? rows_from(given, name, number, view, source, shape)
                                : array_from(given, name, number, view, source, shape);
}

static int set_tensor(PyObject* item, sd_tensor_setter set, void* weights, int n_threads) {
    const char *name, *format;
    PyObject* array;
    Py_buffer view;
    sd_source source;
    int shape[2] = {0}; /* set by source_from, which the compiler does not see */
    if (!PyTuple_Check(item))
        return sd_set_error(PyExc_TypeError, "tensors: expected (name, array, format) tuples");
    if (!PyArg_ParseTuple(item, "sOs;tensors: expected (name, array, format) tuples", &name, &array, &format))
        return -1;
    if (source_from(array, name, format, &view, &source, shape) < 0) return -1;
    sd_status status;
    SD_WITHOUT_GIL(status = set(weights, name, &source, shape[0], shape[1], n_threads));
    PyBuffer_Release(&view);
    return sd_passed(status);
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
    return sd_passed(sd_fail(SD_ERR_VALUE, "there are %d tokens, expected n_draft_vocab, %d", n, n_draft));
}
