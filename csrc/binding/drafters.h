/* From a Python description to a drafter of the core. */
#pragma once

#include "drafter.h"
#include "module.h"
#include "session.h"

/* Most levels of nested drafters (a draft of a draft): they recurse. */
#define SD_MAX_DRAFTS_WITHIN 64

/* Context for creating a drafter from its description. */
typedef struct sd_drafter_context {
    sd_drafting drafting;
    /* Model that the drafter drafts for; for an inner drafter, the outer draft. */
    const sd_model* target;
    /* For drafters that call Python (gil.h); borrowed as long as the session lives. */
    PyThreadState** saved_thread;
    /* List that collects the arguments of each created drafter, which borrows from them. Its owner frees the
     * drafter first, and visits the list in tp_traverse. */
    PyObject* arguments;
    /* Dict that collects exceptions of a user's draft by sequence, so that the sequence fails alone. NULL:
     * the exception stays set, and the call fails. */
    PyObject* failures;
    /* Nesting depth of the drafter. */
    int depth;
} sd_drafter_context;

/* Arguments of all methods, F(type, name); drafters.c lists those of each method. */
/* clang-format off */
#define SD_DRAFT_ARGUMENTS(F)                                                                         \
    F(FLAG, adaptive) F(REAL, alpha) F(OBJECT, begin) F(FLAG, branches) F(INTEGER, candidates)        \
    F(OBJECT, chances) F(OBJECT, commit) F(OBJECT, documents) F(OBJECT, draft) F(OBJECT, drafts)      \
    F(REAL, factor) F(INTEGER, gamma) F(OBJECT, gammas) F(OBJECT, generator) F(WORD, how)             \
    F(OBJECT, matrix) F(FLAG, measured) F(OBJECT, memory) F(INTEGER, min_match)                       \
    F(REAL, min_probability) F(OBJECT, model) F(INTEGER, n_candidates) F(INTEGER, n_chains)           \
    F(OBJECT, name) F(INTEGER, ngram) F(OBJECT, parents) F(OBJECT, proposal_type)                     \
    F(OBJECT, propose) F(FLAG, reads_source) F(OBJECT, samples) F(REAL, sharpness)                    \
    F(OBJECT, skipped) F(OBJECT, source) F(INTEGER, start) F(INTEGER, steps) F(OBJECT, table)         \
    F(OBJECT, texts) F(OBJECT, translation) F(FLAG, trees) F(INTEGER, width) F(INTEGER, window)
/* clang-format on */

/* Arguments of a description, all borrowed from `dict`, a private copy. */
#define SD_DRAFT_ARGUMENT(type, name) SD_C_##type name;
typedef struct sd_draft_arguments {
    PyObject* dict;
    SD_DRAFT_ARGUMENTS(SD_DRAFT_ARGUMENT)
} sd_draft_arguments;

/* Create the drafter of a description: a tuple (method, arguments), whose arguments may be descriptions
 * themselves; or a Model or an Ngram, short for the method with no other argument. The caller owns the
 * drafter. Returns 0, or -1 with an exception. */
int sd_drafter_from(PyObject* description, const sd_drafter_context* context, sd_drafter** drafter);

/* Makers of methods in their own files, besides that of testing.h. Each returns 0, or -1 with an
 * exception. For a user's draft, begin, commit and generator (of a round's random numbers) may be None;
 * reads_source: begin takes the source of a prompt. Exceptions of these functions end the round; unusable
 * results raise InputError. */
int sd_make_python_drafter(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter);
int sd_make_recorded(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter);

/* Replace the inner draft that is recorded with `samples` by that of a description, in a session whose
 * drafter was created with `context`. Returns 0, or -1 with an exception: then nothing has changed. */
int sd_swap_recorded(sd_session* session, const sd_drafter_context* context,
                     const sd_online_samples_object* samples, PyObject* description);
