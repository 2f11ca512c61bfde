/* A pace (decode/pace.h) as an array of Python's. */
#ifndef SD_PACING_H
#define SD_PACING_H

#include "module.h"
#include "pace.h"

/* A pace from an array, float64 [SD_PACE_SIZE], as new_pace() makes it; None is NULL's: *found is 0 then.
 * Returns 0, or -1 with an exception. */
int sd_pace_from(PyObject* array, sd_pace* pace, int* found);

/* A new array of it. */
PyObject* sd_pace_to_array(const sd_pace* pace);

/* The module's functions. */
PyObject* sd_new_pace(PyObject* module, PyObject* ignored);
PyObject* sd_pace_view(PyObject* module, PyObject* args);
#ifdef SPECDEC_TESTING
PyObject* sd_pace_begin_hook(PyObject* module, PyObject* args);
PyObject* sd_pace_pays_hook(PyObject* module, PyObject* args);
PyObject* sd_pace_end_hook(PyObject* module, PyObject* args);
#endif

#endif
