/* A Python object drafts: specdec.drafts.Drafter. */
#ifndef SD_PYTHON_DRAFTER_H
#define SD_PYTHON_DRAFTER_H

#include "drafters.h"

/* Make the drafter of arguments (drafters.h), from which it borrows:
 *
 *     name                     for messages
 *     propose, begin, commit   the object's methods; begin and commit may be None
 *     proposal_type            the type Proposal
 *     generator                None, or a function that makes the random numbers of a round
 *     trees                    whether the object is known to propose trees
 *     reads_source             whether begin is told the source of a prompt, as source=
 *
 * What the methods raise is the exception of the round; InputError if what they return cannot be used.
 * Returns 0, or -1 with an exception. */
int sd_make_python_drafter(const sd_draft_arguments* arguments, const sd_drafter_context* context,
                           sd_drafter** drafter);

#endif
