#include "turn.h"

#include "clock.h"

int sd_turn_take(sd_turn* turn, int there, const char* name, const char* state) {
    if (!there) {
        PyErr_Format(PyExc_RuntimeError, "the %s is %s", name, state);
        return -1;
    }
    if (atomic_flag_test_and_set(&turn->busy)) {
        PyErr_Format(PyExc_RuntimeError, "the %s is in use: another call of it has not returned", name);
        return -1;
    }
    return 0;
}

void sd_turn_end(sd_turn* turn) { atomic_flag_clear(&turn->busy); }

int sd_turn_take_init(sd_turn* turn, int initialised, const char* name) {
    if (sd_turn_take(turn, 1, name, "there") < 0) return -1;
    if (!initialised) return 0;
    sd_turn_end(turn);
    PyErr_Format(PyExc_RuntimeError, "a %s cannot be initialised twice", name);
    return -1;
}

PyObject* sd_turn_prefill(sd_turn* turn, const char* name, sd_slice slice, void* object) {
    if (sd_turn_take(turn, object != NULL, name, "closed") < 0) return NULL;
    double begun = sd_now();
    sd_status status = SD_OK;
    int interrupted = 0;
    for (int done = 0; !done && status == SD_OK && !interrupted;) {
        sd_gil_release(&turn->outside);
        status = slice(object, &done);
        sd_gil_take(&turn->outside);
        interrupted = status == SD_OK && PyErr_CheckSignals() < 0;
    }
    sd_turn_end(turn);
    if (interrupted) return NULL;
    return status == SD_OK ? PyFloat_FromDouble(sd_now() - begun) : sd_raise(status);
}
