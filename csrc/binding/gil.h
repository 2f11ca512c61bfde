/* The interpreter's lock (GIL): released while the core computes and taken to call Python. While an object
 * computes without it, only one thread may use that object.
 *
 * A thread without the lock checks for signals periodically (interrupt.h), so that Ctrl-C ends its
 * computation: the core's function then returns SD_ERR_INTERRUPTED with the exception set. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>

/* Release the lock. *saved_thread keeps the thread's state and must not move before sd_gil_take. */
void sd_gil_release(PyThreadState** saved_thread);

/* Take the lock; *saved_thread is NULL while the thread holds it. */
void sd_gil_take(PyThreadState** saved_thread);

/* Run a statement without the lock: one that may call Python, through `saved`, and one that may not. */
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

/* Enter an object. Returns 0, or -1 with RuntimeError: the object is not `there` because of its `state`
 * ("closed"), or another call is inside, from another thread or further up the stack. `name` is for
 * messages. */
int sd_exclusive_enter(sd_exclusive* exclusive, int there, const char* name, const char* state);
void sd_exclusive_leave(sd_exclusive* exclusive);
