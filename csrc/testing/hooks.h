/* The hooks of tests that are in files of their own; hooks.c lists all of them. */
#ifndef SD_HOOKS_H
#define SD_HOOKS_H

#include "testing.h"

/* A session's adaptive gamma, played without a clock on an array that is changed in place. */
PyObject* sd_hook_adaptive_gamma_begin(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_pays(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_end(PyObject* module, PyObject* args);

/* The calls of drafter_selection.h for one drafter. The state is given and returned as bytes; b"" begins. */
PyObject* sd_hook_selection_asks(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_hook_selection_spend(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_hook_selection_learn(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_hook_selection_end_round(PyObject* module, PyObject* args, PyObject* kwargs);

#endif
