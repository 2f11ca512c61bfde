/* A Python function as the transform of a sequence. */
#ifndef SD_TRANSFORM_H
#define SD_TRANSFORM_H

#include "convert.h"
#include "python_states.h"
#include "verifier.h"

/* Stays where it is as long as the sequence. */
typedef struct sd_python_transform {
    PyObject* function;      /* borrowed; NULL: there is none */
    PyObject* exception;     /* strong reference to what the function has raised, or NULL */
    sd_python_states states; /* of a transform that has them, in place of `function`; owned */
    PyThreadState**
        saved_thread; /* of the thread that is in the core without the GIL (exclusive.h); borrowed */
} sd_python_transform;

/* What the core calls, a function of probs and tokens or one with states; its context is `python`. Where the
 * function raises, the exception is kept there, and none is set: other sequences go on. */
sd_transform sd_transform_of(sd_python_transform* python, int has_states);

#endif
