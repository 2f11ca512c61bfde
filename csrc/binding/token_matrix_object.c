/* TokenMatrix: the most probable next tokens of every token. */
#include "module.h"

/* Copy and check a view [n_vocab, k]. */
static sd_status copy_rows(const Py_buffer* view, sd_token_matrix* m) {
    Py_ssize_t n_vocab = view->shape[0], k = view->shape[1];
    const int32_t* rows = view->buf;
    if (n_vocab < 1 || n_vocab > INT32_MAX / SD_TOKEN_MATRIX_MAX_K || k < 1 || k > SD_TOKEN_MATRIX_MAX_K)
        return sd_fail(SD_ERR_VALUE, "rows has shape [%zd, %zd], expected [n_vocab, 1 to %d]", n_vocab, k,
                       SD_TOKEN_MATRIX_MAX_K);
    *m = (sd_token_matrix){(int)n_vocab, (int)k, sd_alloc((size_t)(n_vocab * k) * sizeof *m->rows)};
    if (m->rows == NULL) return SD_ERR_MEMORY;
    for (Py_ssize_t i = 0; i < n_vocab * k; i++) {
        int32_t token = rows[i]; /* another thread may change the array */
        if (token < -1 || token >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "rows[%zd, %zd] is %d, expected -1 to %zd", i / k, i % k, (int)token,
                           n_vocab - 1);
        atomic_init(&m->rows[i], token);
    }
    return SD_OK;
}

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"rows", NULL};
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_view(argument, "rows", 'i', 2, &view) < 0) return -1;
    sd_status status = copy_rows(&view, &((sd_token_matrix_object*)self)->matrix);
    PyBuffer_Release(&view);
    return sd_passed(status);
}

static void release(PyObject* self) { sd_free(((sd_token_matrix_object*)self)->matrix.rows); }

static PyObject* rows(PyObject* self, PyObject* ignored) {
    const sd_token_matrix* m = &((sd_token_matrix_object*)self)->matrix;
    int32_t* values;
    PyObject* array = sd_new_array("int32", m->n_vocab, m->k, (void**)&values);
    for (int32_t token = 0; array != NULL && token < m->n_vocab; token++)
        for (int rank = 0; rank < m->k; rank++) *values++ = sd_token_matrix_at(m, token, rank);
    return array;
}

static PyMethodDef methods[] = {
    {"rows", rows, METH_NOARGS, "rows($self, /)\n--\n\n"},
    {0},
};

const sd_type_spec sd_token_matrix_type = {
    .doc = "TokenMatrix(rows)\n--\n\n",
    .size = sizeof(sd_token_matrix_object),
    .make = make,
    .release = release,
    .methods = methods,
};
