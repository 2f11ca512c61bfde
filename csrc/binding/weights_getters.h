/* What types of packed weights say of them, by the same names: dtype, n_bytes, n_parameters. */
#ifndef SD_WEIGHTS_GETTERS_H
#define SD_WEIGHTS_GETTERS_H

#include "convert.h"

/* Before __init__ has succeeded all of it is 0, and has_weights is. */
typedef struct sd_weights_figures {
    int has_weights;
    const char* dtype; /* of the matrices */
    size_t n_bytes;
    long long n_parameters;
} sd_weights_figures;

/* A type's way to its figures: the closure of its getters. */
typedef struct sd_weights_type {
    sd_weights_figures (*figures)(PyObject* object);
} sd_weights_type;

PyObject* sd_weights_get_dtype(PyObject* object, void* closure);
PyObject* sd_weights_get_n_bytes(PyObject* object, void* closure);
PyObject* sd_weights_get_n_parameters(PyObject* object, void* closure);

/* Entries of a PyGetSetDef; `type` is an sd_weights_type. */
#define SD_GET_DTYPE(type) {"dtype", sd_weights_get_dtype, NULL, "Number format of the matrices.", &(type)}
#define SD_GET_N_BYTES(type) {"n_bytes", sd_weights_get_n_bytes, NULL, "Bytes of packed weights.", &(type)}
#define SD_GET_N_PARAMETERS(type) {"n_parameters", sd_weights_get_n_parameters, NULL, "Weights.", &(type)}

#endif
