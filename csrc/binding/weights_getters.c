#include "weights_getters.h"

static sd_weights_figures figures_of(PyObject* object, void* closure) {
    return ((const sd_weights_type*)closure)->figures(object);
}

PyObject* sd_weights_get_dtype(PyObject* object, void* closure) {
    const sd_weights_figures f = figures_of(object, closure);
    return PyUnicode_FromString(f.has_weights ? f.dtype : "");
}

PyObject* sd_weights_get_n_bytes(PyObject* object, void* closure) {
    return PyLong_FromSize_t(figures_of(object, closure).n_bytes);
}

PyObject* sd_weights_get_n_parameters(PyObject* object, void* closure) {
    return PyLong_FromLongLong(figures_of(object, closure).n_parameters);
}
