/* One thread at a time in an object that computes without the GIL. */
#ifndef SD_EXCLUSIVE_H
#define SD_EXCLUSIVE_H

#include <stdatomic.h>

#include "convert.h"

typedef struct sd_exclusive {
    atomic_flag busy;
    /* State of the thread that is in the core without the GIL. A callback into Python restores it and saves
     * it again. */
    PyThreadState* saved_thread;
} sd_exclusive;

/* Enter. Returns 0, or -1 with RuntimeError: if the object is not `there`, because it is in `state`
 * ("closed"), or if another call is inside, of another thread or further up in this one. `name` is for
 * messages. */
int sd_exclusive_enter(sd_exclusive* exclusive, int there, const char* name, const char* state);
void sd_exclusive_leave(sd_exclusive* exclusive);

/* Enter for an `__init__`, which may run Python code and release the GIL, so that a second one can come in
 * between. Returns 0, or -1 with RuntimeError: if the object is `initialised` already, or another call is
 * inside. `name` is the type's. */
int sd_exclusive_enter_init(sd_exclusive* exclusive, int initialised, const char* name);

/* Enter and read prompts slice by slice, without the GIL, until *done is set; Ctrl-C is noticed in between.
 * Returns seconds, or NULL with an exception. `object` is what `slice` reads into, NULL: closed. */
typedef sd_status (*sd_slice)(void* object, int* done);
PyObject* sd_exclusive_prefill(sd_exclusive* exclusive, const char* name, sd_slice slice, void* object);

#endif
