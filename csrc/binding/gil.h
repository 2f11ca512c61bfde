/* The interpreter's lock (GIL): given back while the core computes, taken again to call Python.
 *
 * A thread without the lock looks for signals now and then (interrupt.h), so that Ctrl-C ends what it
 * computes: the core's function then returns SD_ERR_INTERRUPTED with the exception set. */
#ifndef SD_GIL_H
#define SD_GIL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

#endif
