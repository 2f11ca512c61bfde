/* TokenMatrix: the most promising next tokens of every token. */
#include "module.h"

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"rows", NULL};
    sd_token_matrix_object* self = (sd_token_matrix_object*)object;
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->matrix.rows != NULL, "TokenMatrix") < 0) return -1;
    if (sd_view(argument, "rows", 'i', 2, &view) < 0) {
        sd_exclusive_leave(&self->exclusive);
        return -1;
    }
    Py_ssize_t n_vocab = view.shape[0], k = view.shape[1];
    const int32_t* rows = view.buf;
    sd_token_matrix m = {(int)n_vocab, (int)k, NULL};
    sd_status status = SD_OK;
    if (n_vocab < 1 || n_vocab > INT32_MAX / SD_TOKEN_MATRIX_MAX_K || k < 1 || k > SD_TOKEN_MATRIX_MAX_K)
        status = sd_fail(SD_ERR_VALUE, "rows has shape [%zd, %zd], expected [n_vocab, 1 to %d]", n_vocab, k,
                         SD_TOKEN_MATRIX_MAX_K);
    else if ((m.rows = sd_alloc((size_t)(n_vocab * k) * sizeof *m.rows)) == NULL)
        status = SD_ERR_MEMORY;
    for (Py_ssize_t i = 0; status == SD_OK && i < n_vocab * k; i++) {
        int32_t token = rows[i];
        if (token < -1 || token >= n_vocab)
            status = sd_fail(SD_ERR_VALUE, "rows[%zd, %zd] is %d, expected -1 to %zd", i / k, i % k,
                             (int)token, n_vocab - 1);
        atomic_init(&m.rows[i], token);
    }
    PyBuffer_Release(&view);
    if (status == SD_OK)
        self->matrix = m;
    else
        sd_free(m.rows);
    sd_exclusive_leave(&self->exclusive);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    sd_free(((sd_token_matrix_object*)object)->matrix.rows);
    type->tp_free(object);
    Py_DECREF(type);
}

sd_token_matrix_object* sd_token_matrix_from(const sd_module_state* state, PyObject* object,
                                             const char* name) {
    sd_token_matrix_object* self = (sd_token_matrix_object*)object;
    if (!PyObject_TypeCheck(object, state->token_matrix_type))
        PyErr_Format(PyExc_TypeError, "%s: expected a TokenMatrix, not %s", name, Py_TYPE(object)->tp_name);
    else if (self->matrix.rows == NULL)
        PyErr_Format(PyExc_ValueError, "%s: the TokenMatrix has not been initialised", name);
    else
        return self;
    return NULL;
}

static PyObject* rows(PyObject* object, PyObject* ignored) {
    (void)ignored;
    const sd_token_matrix_object* self =
        sd_token_matrix_from(PyType_GetModuleState(Py_TYPE(object)), object, "self");
    int32_t* values;
    if (self == NULL) return NULL;
    const sd_token_matrix* m = &self->matrix;
    PyObject* array = sd_new_array("int32", m->n_vocab, m->k, (void**)&values);
    for (int32_t token = 0; array != NULL && token < m->n_vocab; token++)
        for (int rank = 0; rank < m->k; rank++) *values++ = sd_token_matrix_at(m, token, rank);
    return array;
}

static PyMethodDef methods[] = {
    {"rows", rows, METH_NOARGS, "rows($self, /)\n--\n\nA copy of the matrix, [n_vocab, k]."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "TokenMatrix(rows)\n--\n\nThe most promising next tokens of every token."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_token_matrix_spec = {
    .name = "specdec._core.TokenMatrix",
    .basicsize = sizeof(sd_token_matrix_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
