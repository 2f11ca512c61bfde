/* A Python object drafts: specdec.drafts.Drafter. */
#ifndef SD_PYTHON_DRAFTER_H
#define SD_PYTHON_DRAFTER_H

#include "drafters.h"

/* Make the drafter of arguments (name, propose, begin, commit, Proposal, InputError): a name for messages,
 * the object's methods, of which begin and commit may be None, and two types of the package. All are borrowed
 * from the description (drafters.h), where the garbage collector sees them. Whatever the methods raise, or
 * InputError if what they return cannot be used, is the exception of the round. Returns 0, or -1 with an
 * exception. */
int sd_make_python_drafter(PyObject* arguments, const sd_drafter_context* context, sd_drafter** drafter);

#endif
