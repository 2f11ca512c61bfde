/* From a description in Python to a drafter of the core. */
#pragma once

#include "drafter.h"
#include "module.h"
#include "session.h"

/* How many drafters may stand within one another, as a draft of a draft does: they call one another. */
#define SD_MAX_DRAFTS_WITHIN 64

/* What a drafter is made with, beside its description. */
typedef struct sd_drafter_context {
    sd_drafting drafting;
    /* The model that the drafter drafts for; of an inner drafter, the outer draft. */
    const sd_model* target;
    /* For drafters that call Python (gil.h); borrowed as long as the session lives. */
    PyThreadState** saved_thread;
    /* A list that gets the arguments of each drafter that is made: drafters borrow from these. Its owner
     * frees the drafter first, and shows the list to the garbage collector. */
    PyObject* arguments;
    /* A dict that gets what a draft of the caller's has raised, by sequence: then the sequence fails alone.
     * NULL: it is set as the exception of the thread, and everything fails. */
    PyObject* failures;
    /* How many drafters the one that is made is nested in. */
    int depth;
} sd_drafter_context;

/* The arguments of all methods, F(type, name); drafters.c says which of them a method takes. */
/* clang-format off */
#define SD_DRAFT_ARGUMENTS(F)                                                                         \
    F(FLAG, adaptive) F(REAL, alpha) F(OBJECT, begin) F(FLAG, branches) F(INTEGER, candidates)        \
    F(OBJECT, chances) F(OBJECT, commit) F(OBJECT, samples) F(OBJECT, documents) F(OBJECT, draft) \
    F(OBJECT, drafts) F(REAL, factor) F(INTEGER, gamma) F(OBJECT, gammas) F(OBJECT, generator)        \
    F(WORD, how) F(OBJECT, matrix) F(FLAG, measured) F(OBJECT, memory) F(INTEGER, min_match)          \
    F(REAL, min_probability) F(OBJECT, model) F(INTEGER, n_candidates) F(INTEGER, n_chains)           \
    F(OBJECT, name) F(INTEGER, ngram) F(OBJECT, parents) F(OBJECT, proposal_type) F(OBJECT, propose)  \
    F(FLAG, reads_source) F(REAL, sharpness) F(OBJECT, skipped) F(OBJECT, source) F(INTEGER, start)   \
    F(INTEGER, steps) F(OBJECT, table) F(OBJECT, texts) F(OBJECT, translation) F(FLAG, trees)         \
    F(INTEGER, width) F(INTEGER, window)
/* clang-format on */

/* Those that a description has, all borrowed from `dict`, which no caller has. */
#define SD_DRAFT_ARGUMENT(type, name) SD_C_##type name;
typedef struct sd_draft_arguments {
    PyObject* dict;
    SD_DRAFT_ARGUMENTS(SD_DRAFT_ARGUMENT)
} sd_draft_arguments;

/* Create the drafter of a description: a tuple of a method's name and a dict of its arguments, which may be
 * descriptions themselves; or a Model or an Ngram, short for the method with no other argument. The caller
 * owns the drafter. Returns 0, or -1 with an exception. */
int sd_drafter_from(PyObject* description, const sd_drafter_context* context, sd_drafter** drafter);

/* The makers of methods that have files of their own, beside that of testing.h. Each returns 0, or -1 with an
 * exception. Of a draft of the caller's begin and commit may be None, generator None or a function that makes
 * the random numbers of a round; reads_source says whether begin is told the source of a prompt. What these
 * raise is the exception of the round; InputError if what they return cannot be used. */
int sd_make_python_drafter(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter);
int sd_make_recorded(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter);

/* Let the draft of a description take the place of the one that is watched with `corrections`, in a session
 * whose drafter was made with `context`. Returns 0, or -1 with an exception: then nothing has changed. */
int sd_swap_recorded(sd_session* session, const sd_drafter_context* context,
                     const sd_online_samples_object* samples, PyObject* description);
