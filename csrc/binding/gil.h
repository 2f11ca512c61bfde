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

#endif
