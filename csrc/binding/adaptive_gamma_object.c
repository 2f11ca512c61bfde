/* The type AdaptiveGamma: the learned state of gamma="auto". Python keeps it from one session to the next. */
#include "module.h"

static sd_adaptive_gamma* of(PyObject* self) { return &((sd_adaptive_gamma_object*)self)->learned; }

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) return -1;
    sd_adaptive_gamma_reset(of(self));
    return 0;
}

static PyObject* copy(PyObject* self, PyObject* ignored) {
    PyObject* other = sd_object_new(self, SD_TYPE_adaptive_gamma);
    if (other != NULL) *of(other) = *of(self);
    return other;
}

/* (confidence, chance, number) of draft tokens at depth 1, by the middles of the bins. */
static PyObject* by_confidence(const void* acceptance, int i) {
    double middle = sd_acceptance_confidence(i);
    return Py_BuildValue("(ddd)", middle, sd_acceptance_chance(acceptance, middle, 1),
                         ((const sd_acceptance*)acceptance)->by_confidence[i].n);
}

static PyObject* view(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"n_sequences", NULL};
    int n_open = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &n_open)) return NULL;
    if (n_open < 1) return PyErr_Format(PyExc_ValueError, "n_sequences is %d, expected at least 1", n_open);
    sd_adaptive_gamma learned = *of(self);
    const sd_throughput* t = &learned.throughput;
    sd_drafter_policy* p = &learned.drafter;
    sd_adaptive_gamma_enter(&learned, n_open);
    double pause_left = p->schedule.pause_left;
    p->schedule.pause_left = 0.0; /* plan a round even while the drafter is paused */
    sd_adaptive_gamma_begin(&learned, n_open, SD_POLICY_HORIZON);
    double slowness = t->slowness > 0.0 ? t->slowness : 1.0;
    for (int i = 0; i <= SD_POLICY_HORIZON; i++) p->target_s[i] *= slowness, p->draft_s[i] *= slowness;
    const int n = SD_POLICY_HORIZON + 1;
    return Py_BuildValue("{sdsdsdsNsNsNsN}", "rate", p->rate / slowness, "plain_rate",
                         t->plain_rate / slowness, "pause_left", pause_left, "target_s",
                         sd_list_of_floats(p->target_s, n), "draft_s", sd_list_of_floats(p->draft_s, n),
                         "chance", sd_list_of_floats(p->chance, n), "by_confidence",
                         sd_list_of(SD_ACCEPTANCE_CONFIDENCES, by_confidence, &p->acceptance));
}

static PyMethodDef methods[] = {
    {"copy", copy, METH_NOARGS, "copy($self, /)\n--\n\n"},
    {"view", (PyCFunction)(void (*)(void))view, METH_VARARGS | METH_KEYWORDS,
     "view($self, /, n_sequences=1)\n--\n\n"},
    {0},
};

const sd_type_spec sd_adaptive_gamma_type = {
    .doc = "AdaptiveGamma()\n--\n\n",
    .size = sizeof(sd_adaptive_gamma_object),
    .make = make,
    .methods = methods,
};
