/* A Python object drafts: specdec.drafts.Drafter. */
#ifndef SD_PYTHON_DRAFTER_H
#define SD_PYTHON_DRAFTER_H

#include "drafters.h"

/* Make the drafter of arguments {name, propose, begin, commit, proposal_type, generator, trees}: a name for messages;
 * the object's methods, of which begin and commit may be None; the type Proposal; and None, or a function that
 * makes the random numbers of a round; and whether it is known to propose trees. All are borrowed from the arguments (drafters.h). Whatever the methods raise, or
 * InputError if what they return cannot be used, is the exception of the round. Returns 0, or -1 with an
 * exception. */
int sd_make_python_drafter(PyObject* arguments, const sd_drafter_context* context, sd_drafter** drafter);

#endif
