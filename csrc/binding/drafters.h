/* From a description in Python to a drafter of the core. */
#ifndef SD_DRAFTERS_H
#define SD_DRAFTERS_H

#include "drafter.h"
#include "guess.h"
#include "module.h"

/* The session that a drafter is for. */
typedef struct sd_drafting {
    const sd_module_state* state;
    const sd_model* target;
    sd_guessing guessing;
    int gamma;       /* most guesses of a round */
    int n_sequences; /* of the session */
    int n_text;      /* tokens of its longest text */
    int n_threads;
    sd_rule rule; /* that judges what is proposed */
    /* for drafters that call Python (gil.h); borrowed as long as the session lives */
    PyThreadState** saved_thread;
} sd_drafting;

/* Create the drafter of a description: a Model or an Ngram, or a tuple of a method's name and its
 * arguments, which may be descriptions themselves. The caller owns the drafter and keeps the description
 * alive as long as it: drafters borrow from it and hold no references of their own, so whoever owns the
 * description shows the garbage collector everything. Returns 0, or -1 with an exception. */
int sd_drafter_from(PyObject* description, const sd_drafting* drafting, sd_drafter** drafter);

#endif
