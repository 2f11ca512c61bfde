/* The interpreter's lock (GIL): given back while the core computes, taken again to call Python; and one
 * thread at a time in an object that computes without it.
 *
 * A thread without the lock looks for signals now and then (interrupt.h), so that Ctrl-C ends what it
 * computes: the core's function then returns SD_ERR_INTERRUPTED with the exception set. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>

/* Give the lock back. *saved_thread, which must stay where it is until sd_gil_take, keeps the thread's
 * state. */
void sd_gil_release(PyThreadState** saved_thread);

/* Take the lock again; *saved_thread is NULL as long as the thread has it. */
void sd_gil_take(PyThreadState** saved_thread);

/* Run a statement without the lock: one that may call Python, by `saved`, and one that may not. */
#define SD_WITHOUT_GIL_AS(saved, statement) \
    do {                                    \
        sd_gil_release(saved);              \
        statement;                          \
        sd_gil_take(saved);                 \
    } while (0)
#define SD_WITHOUT_GIL(statement)                    \
    do {                                             \
        PyThreadState* saved_thread;                 \
        SD_WITHOUT_GIL_AS(&saved_thread, statement); \
    } while (0)

typedef struct sd_exclusive {
    atomic_flag busy;
    /* State of the thread that is in the core without the GIL. A callback into Python restores it and saves
     * it again. */
    PyThreadState* saved_thread;
} sd_exclusive;

/* Enter. Returns 0, or -1 with RuntimeError: if the object is not `there`, because it is in `state`
 * ("closed"), or if another call is inside, from another thread or further up the stack. `name` is for
 * messages. */
int sd_exclusive_enter(sd_exclusive* exclusive, int there, const char* name, const char* state);
void sd_exclusive_leave(sd_exclusive* exclusive);
