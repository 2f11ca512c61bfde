/* LookAheadEmbeddings: vectors appended to a text, after which its target predicts ahead. */
#include <math.h>
#include <string.h>

#include "module.h"

/* Copy a view [n, d_model] of f32. Returns 0, or -1 with an exception. */
static int copy_embeddings(const Py_buffer* view, sd_look_ahead_object* self) {
    Py_ssize_t n = view->shape[0], d_model = view->shape[1];
    if (n < 1 || n > SD_MAX_GAMMA || d_model < 1 || d_model > INT32_MAX)
        return sd_refuse("embeddings: shape is (%zd, %zd), expected 1 to %d rows", n, d_model, SD_MAX_GAMMA);
    size_t size = (size_t)n * (size_t)d_model;
    float* copy = self->memory = PyMem_Calloc(size, sizeof *copy);
    if (copy == NULL) return sd_no_memory();
    memcpy(copy, view->buf, size * sizeof *copy);
    for (size_t i = 0; i < size; i++)
        if (!isfinite(copy[i]))
            return sd_passed(sd_fail(SD_ERR_NOT_FINITE,
                                     "tensor embeddings: element [%zu, %zu] is not finite, expected a finite "
                                     "number",
                                     i / (size_t)d_model, i % (size_t)d_model));
    self->extra = (sd_extra_queries){(int)n, (int)d_model, copy};
    return 0;
}

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"embeddings", NULL};
    PyObject* argument;
    Py_buffer view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &argument)) return -1;
    if (sd_view(argument, "embeddings", 'f', 2, &view) < 0) return -1;
    int result = copy_embeddings(&view, (sd_look_ahead_object*)self);
    PyBuffer_Release(&view);
    return result;
}

static void release(PyObject* self) { PyMem_Free(((sd_look_ahead_object*)self)->memory); }

static PyMemberDef members[] = {
    SD_MEMBER("n_tokens", T_INT, sd_look_ahead_object, extra.n, "Number of vectors."),
    SD_MEMBER("d_model", T_INT, sd_look_ahead_object, extra.d_model, "Width of each."),
    {0},
};

const sd_type_spec sd_look_ahead_type = {
    .doc = "LookAheadEmbeddings(embeddings)\n--\n\n",
    .size = sizeof(sd_look_ahead_object),
    .make = make,
    .release = release,
    .members = members,
};
