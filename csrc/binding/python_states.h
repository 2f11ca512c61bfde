/* A Python object whose states follow a text and its draft tokens: a constraint or a transform. */
#pragma once

#include "constraint.h"
#include "convert.h"
#include "verifier.h"

/* The GIL, taken once for several calls unless the thread already holds it. */
typedef struct sd_gate {
    PyThreadState** saved_thread; /* of the thread that is in the core (gil.h); borrowed */
    int depth, taken;
} sd_gate;

typedef struct sd_python_states {
    const char* name;    /* of the argument, for messages */
    PyObject* object;    /* strong reference; NULL: none */
    PyObject* states;    /* strong reference to a list: the states by number */
    PyObject* exception; /* strong reference to the exception of a call, or NULL */
    int n_vocab;
    sd_gate* gate;                     /* borrowed */
    PyObject *fork, *advance, *answer; /* strong references to interned method names */
} sd_python_states;

/* Does a user's object have states: a method `start`? Returns 1 or 0, or -1 with an exception. */
int sd_has_states(PyObject* object);

/* Prepare `python` for an object with the method start(tokens); states have fork(), advance(token) and the
 * method `answer`. Returns 0, or -1 with an exception. */
int sd_python_states_from(PyObject* object, const char* name, const char* answer, int n_vocab, sd_gate* gate,
                          sd_python_states* python);
void sd_python_states_free(sd_python_states* python);
int sd_python_states_traverse(const sd_python_states* python, visitproc visit, void* arg);

/* Callbacks for the core; `python` must outlive them. If a call raises, the exception is stored and cleared:
 * other sequences continue. */
sd_state_source sd_python_states_source(sd_python_states* python);

/* State i, borrowed; the caller holds the lock (`enter`). */
PyObject* sd_python_state(const sd_python_states* python, int i);

/* The same for a constraint, whose states answer with mask(). */
sd_constraint_source sd_python_constraint_source(sd_python_states* python);

/* Must not move during the sequence. */
typedef struct sd_python_transform {
    PyObject* function;           /* borrowed; NULL: none */
    PyObject* exception;          /* strong reference to the function's exception, or NULL */
    sd_python_states states;      /* of a transform with states, instead of `function`; owned */
    PyThreadState** saved_thread; /* of the thread that is in the core without the GIL (gil.h); borrowed */
} sd_python_transform;

/* Callback for the core, of probs and tokens or with states; its context is `python`. If it raises, the
 * exception is stored there and cleared: other sequences continue. */
sd_transform sd_transform_of(sd_python_transform* python, int has_states);
