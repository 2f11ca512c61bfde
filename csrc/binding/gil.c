#include "convert.h"

#include "interrupt.h"

static sd_status look_for_signals(void* saved_thread) {
    sd_gil_take(saved_thread);
    int failed = PyErr_CheckSignals() < 0;
    sd_gil_release(saved_thread);
    return failed ? SD_ERR_INTERRUPTED : SD_OK;
}

void sd_gil_release(PyThreadState** saved_thread) {
    *saved_thread = PyEval_SaveThread();
    sd_interrupt_set(look_for_signals, saved_thread);
}

void sd_gil_take(PyThreadState** saved_thread) {
    sd_interrupt_set(NULL, NULL);
    PyEval_RestoreThread(*saved_thread);
    *saved_thread = NULL;
}

int sd_exclusive_enter(sd_exclusive* exclusive, int there, const char* name, const char* state) {
    if (!there) return sd_set_error(PyExc_RuntimeError, "the %s is %s", name, state);
    if (atomic_flag_test_and_set(&exclusive->busy))
        return sd_set_error(PyExc_RuntimeError, "the %s is in use: another call of it has not returned",
                            name);
    return 0;
}

void sd_exclusive_leave(sd_exclusive* exclusive) { atomic_flag_clear(&exclusive->busy); }
