/* The hooks of tests that are in files of their own; hooks.c lists all of them. */
#ifndef SD_HOOKS_H
#define SD_HOOKS_H

#include "testing.h"

/* A session's adaptive gamma, played without a clock on a _core.AdaptiveGamma. */
PyObject* sd_hook_adaptive_gamma_reads(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_start(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_extra(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_begin(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_pays(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_end(PyObject* module, PyObject* args);

/* What products take, for measurements: [repeats][rows] seconds. */
PyObject* sd_hook_product_times(PyObject* module, PyObject* args, PyObject* kwargs);

#endif
