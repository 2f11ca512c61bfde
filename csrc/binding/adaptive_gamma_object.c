/* The type AdaptiveGamma: what gamma="auto" has learnt. Python keeps it from one session to the next. */
#include "convert.h"
#include "module.h"

static sd_adaptive_gamma* of(PyObject* object) { return &((sd_adaptive_gamma_object*)object)->learnt; }

PyObject* sd_adaptive_gamma_new(PyTypeObject* type, const sd_adaptive_gamma* learnt) {
    PyObject* object = type->tp_alloc(type, 0);
    if (object != NULL) *of(object) = *learnt;
    return object;
}

static PyObject* new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static char* names[] = {NULL};
    sd_adaptive_gamma nothing;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) return NULL;
    sd_adaptive_gamma_reset(&nothing);
    return sd_adaptive_gamma_new(type, &nothing);
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

int sd_adaptive_gamma_from(const sd_module_state* state, PyObject* object, sd_adaptive_gamma* learnt) {
    if (!PyObject_TypeCheck(object, state->adaptive_gamma_type)) {
        PyErr_Format(PyExc_TypeError, "adaptive_gamma: expected an AdaptiveGamma, not %s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    *learnt = *of(object);
    return 0;
}

static PyObject* copy(PyObject* object, PyObject* ignored) {
    (void)ignored;
    return sd_adaptive_gamma_new(Py_TYPE(object), of(object));
}

/* [(confidence, chance, guesses), …] of guesses at depth 1, by the middles of the bins. */
static PyObject* by_confidence(const sd_acceptance* acceptance) {
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < SD_ACCEPTANCE_CONFIDENCES; i++) {
        double middle = sd_acceptance_confidence(i);
        PyObject* item = Py_BuildValue("(ddd)", middle, sd_acceptance_chance(acceptance, middle, 1),
                                       acceptance->by_confidence[i].n);
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject* view(PyObject* object, PyObject* ignored) {
    (void)ignored;
    sd_adaptive_gamma learnt = *of(object);
    const sd_throughput* t = &learnt.throughput;
    sd_drafter_policy* p = &learnt.drafter;
    double rest_left = p->schedule.rest_left;
    p->schedule.rest_left = 0.0; /* what a round is planned by, also while the drafter rests */
    sd_adaptive_gamma_begin(&learnt, 1, SD_POLICY_HORIZON);
    double slowness = t->slowness > 0.0 ? t->slowness : 1.0;
    for (int i = 0; i <= SD_POLICY_HORIZON; i++) p->target_s[i] *= slowness, p->draft_s[i] *= slowness;
    const int n = SD_POLICY_HORIZON + 1;
    return Py_BuildValue(
        "{sdsdsdsNsNsNsN}", "rate", p->rate / slowness, "plain_rate", t->plain_rate / slowness, "rest_left",
        rest_left, "target_s", sd_list_of_floats(p->target_s, n), "draft_s", sd_list_of_floats(p->draft_s, n),
        "chance", sd_list_of_floats(p->chance, n), "by_confidence", by_confidence(&p->acceptance));
}

static PyMethodDef methods[] = {
    {"copy", copy, METH_NOARGS, "copy($self, /)\n--\n\nAnother one that has learnt the same."},
    {"view", view, METH_NOARGS, "view($self, /)\n--\n\nWhat was learnt, in units."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "AdaptiveGamma()\n--\n\nWhat gamma='auto' has learnt; nothing at first."},
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec sd_adaptive_gamma_spec = {
    .name = "specdec._core.AdaptiveGamma",
    .basicsize = sizeof(sd_adaptive_gamma_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
