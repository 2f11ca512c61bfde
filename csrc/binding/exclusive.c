#include "exclusive.h"

#include "clock.h"

int sd_exclusive_enter(sd_exclusive* exclusive, int there, const char* name, const char* state) {
    if (!there) {
        PyErr_Format(PyExc_RuntimeError, "the %s is %s", name, state);
        return -1;
    }
    if (atomic_flag_test_and_set(&exclusive->busy)) {
        PyErr_Format(PyExc_RuntimeError, "the %s is in use: another call of it has not returned", name);
        return -1;
    }
    return 0;
}

void sd_exclusive_leave(sd_exclusive* exclusive) { atomic_flag_clear(&exclusive->busy); }

int sd_exclusive_enter_init(sd_exclusive* exclusive, int initialised, const char* name) {
    if (sd_exclusive_enter(exclusive, 1, name, "there") < 0) return -1;
    if (!initialised) return 0;
    sd_exclusive_leave(exclusive);
    PyErr_Format(PyExc_RuntimeError, "a %s cannot be initialised twice", name);
    return -1;
}

PyObject* sd_exclusive_prefill(sd_exclusive* exclusive, const char* name, sd_slice slice, void* object) {
    if (sd_exclusive_enter(exclusive, object != NULL, name, "closed") < 0) return NULL;
    double begun = sd_now();
    sd_status status = SD_OK;
    int interrupted = 0;
    for (int done = 0; !done && status == SD_OK && !interrupted;) {
        sd_gil_release(&exclusive->saved_thread);
        status = slice(object, &done);
        sd_gil_take(&exclusive->saved_thread);
        interrupted = status == SD_OK && PyErr_CheckSignals() < 0;
    }
    sd_exclusive_leave(exclusive);
    if (interrupted) return NULL;
    return status == SD_OK ? PyFloat_FromDouble(sd_now() - begun) : sd_raise(status);
}
