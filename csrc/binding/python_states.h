/* A Python object whose states follow a text and its guesses: of a constraint, or of a transform. */
#pragma once

#include "constraint.h"
#include "convert.h"
#include "verifier.h"

/* The lock, taken once for several calls; by whom the thread has it already, it is not taken. */
typedef struct sd_gate {
    PyThreadState** saved_thread; /* of the thread that is in the core (gil.h); borrowed */
    int depth, taken;
} sd_gate;

typedef struct sd_python_states {
    const char* name;    /* of the argument, for messages */
    PyObject* object;    /* strong reference, or NULL: there is none */
    PyObject* states;    /* strong reference to a list: the states by number */
    PyObject* exception; /* strong reference to what a call has raised, or NULL */
    int n_vocab;
    sd_gate* gate;                     /* borrowed */
    PyObject *fork, *advance, *answer; /* strong references to the names of methods, made once */
} sd_python_states;

/* Has an object, which is none of the core's, states: a method `start`? Returns 1 or 0, or -1 with an
 * exception. */
int sd_has_states(PyObject* object);

/* Prepare `python` for an object with the method start(tokens); states have fork(), advance(token) and the
 * method `answer`, which says what they know. Returns 0, or -1 with an exception. */
int sd_python_states_from(PyObject* object, const char* name, const char* answer, int n_vocab, sd_gate* gate,
                          sd_python_states* python);
void sd_python_states_free(sd_python_states* python);
int sd_python_states_traverse(const sd_python_states* python, visitproc visit, void* arg);

/* What the core calls; `python` must outlive it. Where a call raises, the exception is kept, and none is set:
 * other sequences go on. */
sd_state_source sd_python_states_source(sd_python_states* python);

/* State i, borrowed, for who has the lock (`enter`). */
PyObject* sd_python_state(const sd_python_states* python, int i);

/* The same of a constraint, whose states answer by mask(). */
sd_constraint_source sd_python_constraint_source(sd_python_states* python);

/* Stays where it is as long as the sequence. */
typedef struct sd_python_transform {
    PyObject* function;           /* borrowed; NULL: there is none */
    PyObject* exception;          /* strong reference to what the function has raised, or NULL */
    sd_python_states states;      /* of a transform that has them, in place of `function`; owned */
    PyThreadState** saved_thread; /* of the thread that is in the core without the GIL (gil.h); borrowed */
} sd_python_transform;

/* What the core calls, a function of probs and tokens or one with states; its context is `python`. Where the
 * function raises, the exception is kept there, and none is set: other sequences go on. */
sd_transform sd_transform_of(sd_python_transform* python, int has_states);
