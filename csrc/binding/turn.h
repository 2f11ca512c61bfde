/* One thread at a time in an object that computes without the GIL. */
#ifndef SD_TURN_H
#define SD_TURN_H

#include <stdatomic.h>

#include "convert.h"

typedef struct sd_turn {
    atomic_flag busy;
    PyThreadState* outside; /* of the thread that is in the core without the GIL; who calls Python from there
                             * restores it and saves it again */
} sd_turn;

/* Take the turn. Returns 0, or -1 with RuntimeError: if the object is not there, whose `state` that is
 * ("closed"), or if another call has the turn, of another thread or further up in this one. `name` is for messages. */
int sd_turn_take(sd_turn* turn, int there, const char* name, const char* state);
void sd_turn_end(sd_turn* turn);

/* Take the turn for an `__init__`, which may run Python code and release the GIL, so that a second one can
 * come in between. Returns 0, or -1 with RuntimeError: if the object is `initialised` already, or another call
 * has the turn. `name` is the type's. */
int sd_turn_take_init(sd_turn* turn, int initialised, const char* name);

/* Take the turn and read prompts slice by slice, without the GIL, until *done is set; Ctrl-C is noticed
 * in between. Returns seconds, or NULL with an exception. `object` is what `slice` reads into, NULL: closed. */
typedef sd_status (*sd_slice)(void* object, int* done);
PyObject* sd_turn_prefill(sd_turn* turn, const char* name, sd_slice slice, void* object);

#endif
