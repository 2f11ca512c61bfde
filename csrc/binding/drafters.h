/* From a description in Python to a drafter of the core. */
#ifndef SD_DRAFTERS_H
#define SD_DRAFTERS_H

#include "drafter.h"
#include "module.h"

/* What a drafter is made with, beside its description. */
typedef struct sd_drafter_context {
    sd_drafting drafting;
    const sd_module_state* state;
    /* The model that the drafter drafts for; of an inner drafter, the outer draft. */
    const sd_model* target;
    /* For drafters that call Python (gil.h); borrowed as long as the session lives. */
    PyThreadState** saved_thread;
} sd_drafter_context;

/* Create the drafter of a description: a Model or an Ngram, or a tuple of a method's name and its
 * arguments, which may be descriptions themselves. The caller owns the drafter and keeps the description
 * alive as long as it: drafters borrow from it and hold no references of their own, so whoever owns the
 * description shows the garbage collector everything. Returns 0, or -1 with an exception. */
int sd_drafter_from(PyObject* description, const sd_drafter_context* context, sd_drafter** drafter);

#endif
