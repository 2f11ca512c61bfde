/* Drafts that are watched: made from their description, and given another draft within between rounds. */
#ifndef SD_WATCHED_H
#define SD_WATCHED_H

#include "drafters.h"
#include "session.h"

/* The maker of the method `watched` (drafters.c). Returns 0, or -1 with an exception. */
int sd_make_watched(const sd_draft_arguments* arguments, const sd_drafter_context* context,
                    sd_drafter** drafter);

/* Let the draft of a description take the place of the one that is watched with `corrections`, in a
 * session whose drafter was made with `context`. Returns 0, or -1 with an exception: then nothing has
 * changed. */
int sd_swap_watched(sd_session* session, const sd_drafter_context* context,
                    const sd_corrections_object* corrections, PyObject* description);

#endif
