/* Model: immutable packed weights. */
#include <string.h>

#include "module.h"

/* A tensor argument (name, array, format) as a source; the view must be released. */
static int source_from(PyObject* array, const char* name, const char* format, Py_buffer* view,
                       sd_source* source, int shape[2]) {
    static const struct {
        const char* format;
        sd_number number;
        Py_ssize_t size;
    } formats[] = {{"f32", SD_F32, 4}, {"f16", SD_F16, 2}, {"bf16", SD_BF16, 2}};
    int i = 0;
    while (i < 3 && strcmp(formats[i].format, format) != 0) i++;
    if (i == 3) {
        PyErr_Format(PyExc_ValueError, "tensor %s: format is \"%s\", expected f32, f16 or bf16", name,
                     format);
        return -1;
    }
    if (PyObject_GetBuffer(array, view, PyBUF_STRIDED_RO) < 0) return -1;
    if (view->itemsize != formats[i].size || view->ndim < 1 || view->ndim > 2 || view->shape[0] > INT32_MAX ||
        view->shape[view->ndim - 1] > INT32_MAX) {
        PyErr_Format(
            PyExc_ValueError,
            "tensor %s: %d dimensions of %zd-byte elements, expected 1 or 2 dimensions of %zd-byte elements",
            name, view->ndim, view->itemsize, formats[i].size);
        PyBuffer_Release(view);
        return -1;
    }
    shape[0] = (int)view->shape[0];
    shape[1] = view->ndim == 2 ? (int)view->shape[1] : 0;
    *source =
        (sd_source){view->buf, formats[i].number, view->strides[0], view->ndim == 2 ? view->strides[1] : 0};
    return 0;
}

static int set_tensor(sd_model* model, PyObject* item) {
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
    Py_BEGIN_ALLOW_THREADS status = sd_model_set(model, name, &source, shape[0], shape[1]);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"config", "tensors", "dtype", NULL};
    sd_model_object* self = (sd_model_object*)base;
    PyObject *mapping, *tensors;
    const char* dtype = "f32";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$s", names, &mapping, &tensors, &dtype)) return -1;
    if (self->model != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a Model cannot be initialised twice");
        return -1;
    }
    if (strcmp(dtype, "f32") != 0) {
        PyErr_Format(PyExc_ValueError, "dtype is \"%s\", expected \"f32\"", dtype);
        return -1;
    }
    sd_model* model = NULL;
    double* inv_freq = NULL;
    PyObject *config = PyDict_New(), *iterator = NULL, *item;
    sd_config c = {0};
    sd_status status;
    if (config == NULL || PyDict_Update(config, mapping) < 0) goto fail;
    if (sd_config_from(config, &c, &inv_freq) < 0) goto fail;
    if ((status = sd_model_create(&c, inv_freq, &model)) != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    if ((iterator = PyObject_GetIter(tensors)) == NULL) goto fail;
    while ((item = PyIter_Next(iterator)) != NULL) {
        int failed = set_tensor(model, item);
        Py_DECREF(item);
        if (failed) goto fail;
    }
    if (PyErr_Occurred()) goto fail;
    if ((status = sd_model_finish(model)) != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    Py_DECREF(iterator);
    PyMem_Free(inv_freq);
    self->config = config;
    self->model = model;
    return 0;
fail:
    Py_XDECREF(iterator);
    Py_XDECREF(config);
    PyMem_Free(inv_freq);
    sd_model_free(model);
    return -1;
}

static void dealloc(PyObject* base) {
    sd_model_object* self = (sd_model_object*)base;
    PyTypeObject* type = Py_TYPE(base);
    sd_model_free(self->model);
    Py_CLEAR(self->config);
    type->tp_free(base);
    Py_DECREF(type);
}

sd_model_object* sd_model_from(const sd_module_state* state, PyObject* object, const char* name) {
    if (!PyObject_TypeCheck(object, state->model_type)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a specdec._core.Model", name);
        return NULL;
    }
    sd_model_object* model = (sd_model_object*)object;
    if (model->model == NULL) {
        PyErr_Format(PyExc_ValueError, "%s: the model was never initialised", name);
        return NULL;
    }
    return model;
}

static PyObject* get_config(PyObject* self, void* closure) {
    (void)closure;
    PyObject* config = ((sd_model_object*)self)->config;
    return config ? PyDict_Copy(config) : PyDict_New();
}

static PyObject* get_n_bytes(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    return PyLong_FromSize_t(model ? model->arena.size : 0);
}

static PyObject* get_n_parameters(PyObject* self, void* closure) {
    (void)closure;
    const sd_model* model = ((sd_model_object*)self)->model;
    long long n = 0;
    for (int i = 0; model != NULL && i < sd_tensor_count(&model->config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&model->config, i, &spec);
        n += (long long)spec.n_rows * (spec.n_cols > 0 ? spec.n_cols : 1);
    }
    return PyLong_FromLongLong(n);
}

static PyGetSetDef getters[] = {
    {"config", get_config, NULL, "Copy of the canonical configuration.", NULL},
    {"n_bytes", get_n_bytes, NULL, "Bytes of packed weights held.", NULL},
    {"n_parameters", get_n_parameters, NULL, "Number of weights.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Model(config, tensors, *, dtype='f32')\n--\n\nImmutable, packed weights."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_getset, getters},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_model_spec = {
    .name = "specdec._core.Model",
    .basicsize = sizeof(sd_model_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
