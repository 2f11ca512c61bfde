#include "gil.h"

#include "interrupt.h"

static sd_status look_for_signals(void* outside) {
    sd_gil_take(outside);
    int failed = PyErr_CheckSignals() < 0;
    sd_gil_release(outside);
    return failed ? SD_ERR_CALLBACK : SD_OK;
}

void sd_gil_release(PyThreadState** outside) {
    *outside = PyEval_SaveThread();
    sd_interrupt_set(look_for_signals, outside);
}

void sd_gil_take(PyThreadState** outside) {
    sd_interrupt_set(NULL, NULL);
    PyEval_RestoreThread(*outside);
}
