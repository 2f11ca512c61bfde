/* What a build with SPECDEC_TESTING=ON has beside the others: it is defined in csrc/testing, which is
 * compiled for such a build only. */
#ifndef SD_TESTING_H
#define SD_TESTING_H

#include "drafters.h"
#include "session.h"

#ifdef SPECDEC_TESTING

/* Functions of the module; their names begin with an underscore. */
extern PyMethodDef sd_testing_functions[];

/* The drafting method "fixed_acceptance"; arguments: {draft, alpha, texts}: the description of a drafter,
 * its acceptance rate, and a text for each sequence. Returns 0, or -1 with an exception. */
int sd_make_fixed_acceptance(PyObject* arguments, const sd_drafter_context* context, sd_drafter** drafter);

/* Add to a record's dict what its nodes were drawn from (draft_probs, draft_points) and what the target said
 * after each (node_logits). Returns 0, or -1 with an exception. */
int sd_add_drafts(PyObject* dict, const sd_session* session, const sd_record* record, int n_vocab);

#endif

#endif
