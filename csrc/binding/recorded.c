/* Recorded drafts: created from a description, with an inner draft that can be replaced between rounds. */
#include "recorded_drafter.h"

#include "drafters.h"

/* Key, in the arguments of a recorded drafter, of those of the drafters within: replaced together with the
 * draft. */
#define WITHIN "arguments within"

/* Create the inner drafter of a recorded one, and the list of its arguments, a new reference. Returns 0, or
 * -1 with an exception. */
static int make_inner(PyObject* description, const sd_drafter_context* c, sd_drafter** inner,
                      PyObject** arguments) {
    if ((*arguments = PyList_New(0)) == NULL) return -1;
    sd_drafter_context within = *c;
    within.arguments = *arguments;
    if (sd_drafter_from(description, &within, inner) == 0) return 0;
    Py_CLEAR(*arguments);
    return -1;
}

int sd_make_recorded(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* within;
    sd_online_samples_object* samples = sd_online_samples_from(a->samples, "samples");
    sd_drafter* inner;
    if (samples == NULL || make_inner(a->draft, c, &inner, &within) < 0) return -1;
    int n_hidden = samples->ring.shape.n_hidden, n = inner->captures.n * c->target->config.d_model;
    int result = PyDict_SetItemString(a->dict, WITHIN, within);
    Py_DECREF(within); /* the dict has it */
    if (result == 0 && n_hidden != 0 && n_hidden != n)
        result = sd_refuse("recorded: n_hidden of the samples is %d, expected 0, or %d as the draft reads",
                           n_hidden, n);
    if (result < 0) {
        inner->free(inner);
        return -1;
    }
    const sd_recorded_options options = {&samples->ring, a->dict};
    return sd_passed(sd_recorded_drafter_create(&c->drafting, &options, inner, drafter));
}

int sd_swap_recorded(sd_session* session, const sd_drafter_context* context,
                     const sd_online_samples_object* samples, PyObject* description) {
    sd_drafter *inner, *drafter = sd_session_drafter(session);
    if (drafter != NULL) drafter = sd_recorded_drafter_find(drafter, &samples->ring);
    if (drafter == NULL) return sd_refuse("swap: no draft of the session is recorded with these samples");
    PyObject *owner = sd_recorded_drafter_owner(drafter), *within;
    sd_drafter_context c = *context;
    c.drafting = *sd_recorded_drafter_drafting(drafter);
    if (make_inner(description, &c, &inner, &within) < 0) return -1;
    sd_status status = sd_recorded_drafter_check(drafter, inner);
    if (status == SD_OK) status = sd_session_begin_drafter(session, inner);
    if (status != SD_OK) sd_raise(status);
    /* The old drafter borrows from the old list: keep it until the drafter has been freed. */
    PyObject* old = Py_XNewRef(PyDict_GetItemString(owner, WITHIN));
    int result = status == SD_OK ? PyDict_SetItemString(owner, WITHIN, within) : -1;
    /* The old description would keep the old weights. */
    if (result == 0 && PyDict_SetItemString(owner, "draft", description) < 0) {
        PyDict_SetItemString(owner, WITHIN, old);
        result = -1;
    }
    if (result == 0)
        sd_recorded_drafter_swap(drafter, inner);
    else
        inner->free(inner);
    Py_DECREF(within);
    Py_XDECREF(old);
    return result;
}
