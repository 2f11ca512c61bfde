/* Test hooks of builds with SPECDEC_TESTING=ON, defined in csrc/testing, which only these compile. */
#pragma once

#include "drafters.h"
#include "session.h"

#ifdef SPECDEC_TESTING

/* Functions of the module; their names begin with an underscore. */
extern PyMethodDef sd_testing_functions[];

/* The drafting method "fixed_acceptance"; arguments: {draft, alpha, texts}: the description of a drafter,
 * its acceptance rate, and a text for each sequence. Returns 0, or -1 with an exception. */
int sd_make_fixed_acceptance(const sd_draft_arguments* arguments, const sd_drafter_context* context,
                             sd_drafter** drafter);

/* A new dict of a record's nodes: the distributions that they were drawn from (draft_probs, draft_points),
 * and the target's logits after each (node_logits). NULL with an exception. */
PyObject* sd_drafts_of(const sd_session* session, const sd_record* record, int n_vocab);

/* Hooks in their own files; hooks.c lists all of them. */
PyObject* sd_hook_adaptive_gamma_reads(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_start(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_begin(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_asks(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_pays(PyObject* module, PyObject* args);
PyObject* sd_hook_adaptive_gamma_end(PyObject* module, PyObject* args);
PyObject* sd_hook_recurrence(PyObject* module, PyObject* args);
PyObject* sd_hook_product_times(PyObject* module, PyObject* args, PyObject* kwargs);

#endif
