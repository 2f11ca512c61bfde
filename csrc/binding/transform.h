/* A Python function as the transform of a session. */
#ifndef SD_TRANSFORM_H
#define SD_TRANSFORM_H

#include "convert.h"
#include "verifier.h"

typedef struct sd_python_transform {
    PyObject* function; /* strong reference, or NULL */
    PyThreadState**
        saved_thread; /* of the thread that is in the core without the GIL (exclusive.h); borrowed */
} sd_python_transform;

/* A function probs, tokens → probs, or None. `python` must outlive the session that takes `transform`;
 * the caller releases its reference. Returns 0, or -1 with an exception. */
int sd_transform_from(PyObject* function, PyThreadState** saved_thread, sd_python_transform* python,
                      sd_transform* transform);

#endif
