/* Settings: how a sequence is decoded. They never change, so sequences may share them. */
#include "fields.h"
#include "module.h"
#include "python_states.h"

/* What is read of the arguments before it is checked. */
typedef struct given {
    PyObject *sampling, *draft_sampling, *transform, *constraint, *stop_ids, *drafters, *prediction, *model;
    const char *rule, *law;
} given;

/* Which drafters may draft: None, for all, or an integer with a bit for each. */
static int drafters_from(PyObject* object, uint64_t* drafters) {
    *drafters = SD_EVERY_DRAFTER;
    if (object == Py_None) return 0;
    *drafters = PyLong_AsUnsignedLongLong(object);
    return *drafters == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static int transform_from(sd_settings_object* self, PyObject* transform) {
    if (transform == Py_None) return 0;
    int has_states = sd_has_states(transform);
    if (has_states < 0) return -1;
    if (!has_states && !PyCallable_Check(transform)) {
        PyErr_SetString(
            PyExc_TypeError,
            "transform: expected a function of (probs, tokens), or an object with the method start(tokens)");
        return -1;
    }
    self->has_states = has_states;
    self->transform = Py_NewRef(transform);
    return 0;
}

/* Everything of *g. Returns 0, or -1 with an exception; either way what is owned is the object's. */
static int fill(sd_settings_object* self, const given* g) {
    sd_settings* s = &self->settings;
    if (sd_sampling_from(g->sampling, "sampling", &self->sampling) < 0) return -1;
    s->verify.sampling = s->draft_sampling = &self->sampling;
    if (g->draft_sampling != NULL) {
        if (sd_sampling_from(g->draft_sampling, "draft_sampling", &self->draft_sampling) < 0) return -1;
        s->draft_sampling = &self->draft_sampling;
    }
    sd_status status = sd_rule_find(g->rule, &s->verify.rule);
    if (status == SD_OK && g->law != NULL) status = sd_logprobs_find(g->law, &s->logprobs.of);
    if (status != SD_OK) {
        sd_raise(status);
        return -1;
    }
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
        const sd_module_state* state = PyType_GetModuleState(Py_TYPE((PyObject*)self));
        const sd_model_object* model = sd_model_from(state, g->model, "model");
        if (model == NULL) return -1;
        self->model = Py_NewRef(g->model);
        s->model = model->model;
    }
    return drafters_from(g->drafters, &s->drafters);
}

static void release(sd_settings_object* self) {
    sd_sampling_free(&self->sampling);
    sd_sampling_free(&self->draft_sampling);
    PyMem_Free(self->stop_ids);
    PyMem_Free(self->prediction);
    Py_CLEAR(self->transform);
    Py_CLEAR(self->constraint);
    Py_CLEAR(self->model);
    self->stop_ids = self->prediction = NULL;
    self->settings = (sd_settings){0};
}

static int init(PyObject* base, PyObject* args, PyObject* kwargs) {
    sd_settings_object* self = (sd_settings_object*)base;
    if (sd_exclusive_enter_init(&self->exclusive, self->settings.max_new_tokens > 0, "Settings") < 0)
        return -1;
    sd_settings settings = {.gamma = SD_MAX_GAMMA, .verify.lenience = 1.0};
    given g = {.transform = Py_None,
               .constraint = Py_None,
               .drafters = Py_None,
               .model = Py_None,
               .rule = "rejection"};
    const sd_field fields[] = {
        {"max_new_tokens", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &settings.max_new_tokens},
        {"sampling", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &g.sampling},
        {"gamma", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &settings.gamma},
        {"rule", SD_FIELD_WORD, SD_FIELD_OPTIONAL, &g.rule},
        {"lenience", SD_FIELD_REAL, SD_FIELD_OPTIONAL, &settings.verify.lenience},
        {"draft_sampling", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.draft_sampling},
        {"transform", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.transform},
        {"constraint", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.constraint},
        {"stop_ids", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.stop_ids},
        {"law", SD_FIELD_WORD, SD_FIELD_OPTIONAL, &g.law},
        {"n_top", SD_FIELD_INTEGER, SD_FIELD_OPTIONAL, &settings.logprobs.n_top},
        {"drafters", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.drafters},
        {"prediction", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.prediction},
        {"model", SD_FIELD_OBJECT, SD_FIELD_OPTIONAL, &g.model},
    };
    PyObject* own = NULL;
    int result = PyArg_ParseTuple(args, ":Settings") ? 0 : -1;
    if (result == 0 && (own = kwargs ? PyDict_Copy(kwargs) : PyDict_New()) == NULL) result = -1;
    if (result == 0) result = SD_FIELDS_FROM(own, "Settings", fields);
    if (result == 0) {
        self->settings = settings;
        self->settings.max_new_tokens = 0;
        result = fill(self, &g);
        if (result == 0) self->settings.max_new_tokens = settings.max_new_tokens;
        if (result == 0 && settings.max_new_tokens < 1) {
            sd_raise(
                sd_fail(SD_ERR_VALUE, "max_new_tokens is %d, expected at least 1", settings.max_new_tokens));
            result = -1;
        }
        if (result < 0) release(self);
    }
    Py_XDECREF(own);
    sd_exclusive_leave(&self->exclusive);
    return result;
}

static int traverse(PyObject* base, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(base));
    Py_VISIT(((sd_settings_object*)base)->transform);
    Py_VISIT(((sd_settings_object*)base)->constraint);
    Py_VISIT(((sd_settings_object*)base)->model);
    return 0;
}

static void dealloc(PyObject* base) {
    PyTypeObject* type = Py_TYPE(base);
    PyObject_GC_UnTrack(base);
    release((sd_settings_object*)base);
    type->tp_free(base);
    Py_DECREF(type);
}

sd_settings_object* sd_settings_from(const sd_module_state* state, PyObject* object) {
    sd_settings_object* self = (sd_settings_object*)object;
    if (!PyObject_TypeCheck(object, state->settings_type))
        PyErr_Format(PyExc_TypeError, "settings: expected Settings, not %s", Py_TYPE(object)->tp_name);
    else if (self->settings.max_new_tokens == 0)
        PyErr_SetString(PyExc_ValueError, "settings: the Settings have not been initialised");
    else
        return self;
    return NULL;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "How a sequence is decoded."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_settings_spec = {
    .name = "specdec._core.Settings",
    .basicsize = sizeof(sd_settings_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
