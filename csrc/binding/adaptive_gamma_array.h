/* A policy (decode/adaptive_gamma.h) as an array of Python's. */
#ifndef SD_ADAPTIVE_GAMMA_ARRAY_H
#define SD_ADAPTIVE_GAMMA_ARRAY_H

#include "adaptive_gamma.h"
#include "module.h"

/* A policy from an array, float64 [SD_ADAPTIVE_GAMMA_SIZE], as new_adaptive_gamma() makes it; None is NULL's:
 * *found is 0 then. Returns 0, or -1 with an exception. */
int sd_adaptive_gamma_from(PyObject* array, sd_adaptive_gamma* policy, int* found);

/* A new array of it. */
PyObject* sd_adaptive_gamma_to_array(const sd_adaptive_gamma* policy);

/* The module's functions. */
PyObject* sd_new_adaptive_gamma(PyObject* module, PyObject* ignored);
PyObject* sd_adaptive_gamma_view(PyObject* module, PyObject* args);

#endif
