/* Settings: how a sequence is decoded. Immutable, so sequences may share them. */
#include "module.h"
#include "python_states.h"

/* Arguments before they are checked. */
typedef struct given {
    PyObject *sampling, *draft_sampling, *transform, *constraint, *stop_ids, *drafters, *prediction, *model;
    const char *rule, *logprobs_of;
} given;

static int transform_from(sd_settings_object* self, PyObject* transform) {
    if (transform == Py_None) return 0;
    int has_states = sd_has_states(transform);
    if (has_states < 0) return -1;
    if (!has_states && !PyCallable_Check(transform))
        return sd_set_error(
            PyExc_TypeError,
            "transform: expected a function of (probs, tokens), or an object with the method start(tokens)");
    self->has_states = has_states;
    self->transform = Py_NewRef(transform);
    return 0;
}

/* Check and fill in all of *g. Returns 0, or -1 with an exception. */
static int fill(sd_settings_object* self, const given* g) {
    sd_settings* s = &self->settings;
    if (sd_sampling_from(g->sampling, "sampling", &self->sampling) < 0) return -1;
    s->verify.sampling = s->draft_sampling = &self->sampling;
    if (g->draft_sampling != NULL) {
        if (sd_sampling_from(g->draft_sampling, "draft_sampling", &self->draft_sampling) < 0) return -1;
        s->draft_sampling = &self->draft_sampling;
    }
    if (sd_passed(sd_rule_find(g->rule, &s->verify.rule)) < 0) return -1;
    if (g->logprobs_of != NULL && sd_passed(sd_logprobs_find(g->logprobs_of, &s->logprobs.of)) < 0) return -1;
    if (transform_from(self, g->transform) < 0) return -1;
    int constrains = g->constraint == Py_None ? 0 : sd_has_states(g->constraint);
    if (constrains == 0 && g->constraint != Py_None)
        PyErr_SetString(PyExc_TypeError, "constraint: expected an object with the method start(tokens)");
    if (PyErr_Occurred()) return -1;
    if (constrains) self->constraint = Py_NewRef(g->constraint);
    if (sd_optional_ids_from(g->stop_ids, "stop_ids", &self->stop_ids, &s->n_stop_ids) < 0) return -1;
    if (sd_optional_ids_from(g->prediction, "prediction", &self->prediction, &s->n_prediction) < 0) return -1;
    s->stop_ids = self->sampling.end_ids = self->draft_sampling.end_ids = self->stop_ids;
    self->sampling.n_end_ids = self->draft_sampling.n_end_ids = s->n_stop_ids;
    s->prediction = self->prediction;
    if (g->model != Py_None) {
        const sd_model_object* model = sd_model_from(g->model, "model");
        if (model == NULL) return -1;
        self->model = Py_NewRef(g->model);
        s->model = model->model;
    }
    /* which drafters may draft: None, for all, or an integer with a bit for each */
    s->drafters = g->drafters == Py_None ? SD_EVERY_DRAFTER : PyLong_AsUnsignedLongLong(g->drafters);
    return PyErr_Occurred() ? -1 : 0;
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_settings_object* self = (sd_settings_object*)object;
    sd_settings* s = &self->settings;
    s->gamma = SD_MAX_GAMMA;
    s->verify.lenience = 1.0;
    given g = {
        .transform = Py_None, .constraint = Py_None, .drafters = Py_None, .model = Py_None, .rule = "auto"};
    const sd_field fields[] = {
        SD_INTEGER("max_new_tokens", &s->max_new_tokens),
        SD_OBJECT("sampling", &g.sampling),
        SD_OPTIONAL(INTEGER, "gamma", &s->gamma),
        SD_OPTIONAL(WORD, "rule", &g.rule),
        SD_OPTIONAL(REAL, "lenience", &s->verify.lenience),
        SD_OPTIONAL(OBJECT, "draft_sampling", &g.draft_sampling),
        SD_OPTIONAL(OBJECT, "transform", &g.transform),
        SD_OPTIONAL(OBJECT, "constraint", &g.constraint),
        SD_OPTIONAL(OBJECT, "stop_ids", &g.stop_ids),
        SD_OPTIONAL(WORD, "logprobs_of", &g.logprobs_of),
        SD_OPTIONAL(INTEGER, "n_top", &s->logprobs.n_top),
        SD_OPTIONAL(OBJECT, "drafters", &g.drafters),
        SD_OPTIONAL(OBJECT, "prediction", &g.prediction),
        SD_OPTIONAL(OBJECT, "model", &g.model),
    };
    if (!PyArg_ParseTuple(args, ":Settings")) return -1;
    PyObject* own = kwargs ? PyDict_Copy(kwargs) : PyDict_New();
    int result = own != NULL && SD_FIELDS_FROM(own, "Settings", fields) == 0 ? fill(self, &g) : -1;
    Py_XDECREF(own);
    return result;
}

static void release(PyObject* object) {
    sd_settings_object* self = (sd_settings_object*)object;
    sd_sampling_free(&self->sampling);
    sd_sampling_free(&self->draft_sampling);
    PyMem_Free(self->stop_ids);
    PyMem_Free(self->prediction);
}

const sd_type_spec sd_settings_type = {
    .doc = "How a sequence is decoded.",
    .size = sizeof(sd_settings_object),
    .make = make,
    .release = release,
    .references = {offsetof(sd_settings_object, transform), offsetof(sd_settings_object, constraint),
                   offsetof(sd_settings_object, model)},
};
