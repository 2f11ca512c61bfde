/* SlotRound, the result of a round in one slot: a named tuple with the Round of specdec.trace. */
#include <string.h>

#include "session_arguments.h"
#include "testing.h"

static PyStructSequence_Field fields[] = {
    {"slot", "The slot of the sequence."},
    {"round", "The Round; without tokens if the sequence has failed."},
    {"error", "The exception if the sequence has failed in the round, or None."},
    {"complete", "Whether the text has ended because its constraint is complete."},
    {"n_rows", "Rows of the target's forward pass for the sequence."},
    {"logits", "Target logits of each new token, float32 [n_tokens, n_vocab], or None."},
    {"logprobs", "(ln p, top tokens, their ln p) of the new tokens, or None."},
    {"origins", "Index of the drafter of each draft token, for a sequence with a prediction, or None."},
    {"drafts", "In builds for tests: distributions that the nodes were drawn from, or None."},
    {0},
};
enum { N_FIELDS = sizeof fields / sizeof *fields - 1, N_OF_ROUND = 13 /* fields of specdec.Round */ };

static PyStructSequence_Desc description = {
    .name = "specdec._core.SlotRound",
    .doc = "Result of a round in one slot.",
    .fields = fields,
    .n_in_sequence = N_FIELDS,
};

int sd_slot_round_begin(sd_module_state* state) {
    if (state->slot_round_type == NULL) state->slot_round_type = PyStructSequence_NewType(&description);
    if (state->slot_round_type == NULL) return -1;
    if (state->round_fields != NULL) return 0;
    PyObject* module = PyImport_ImportModule("specdec.trace");
    Py_XSETREF(state->round_class, module ? PyObject_GetAttrString(module, "Round") : NULL);
    Py_XDECREF(module);
    if (state->round_class == NULL) return -1;
    state->round_fields = PyObject_GetAttrString(state->round_class, "__match_args__");
    if (state->round_fields == NULL) return -1;
    if (PyTuple_Check(state->round_fields) && PyTuple_GET_SIZE(state->round_fields) == N_OF_ROUND) return 0;
    Py_CLEAR(state->round_fields);
    PyErr_SetString(PyExc_RuntimeError, "specdec.Round has other fields than this build of the core expects");
    return -1;
}

/* Number of new tokens of a round: the accepted ones and the target's own. */
static int count_new(const sd_record* record) {
    return record->status == SD_OK ? record->verdict.n_path + 1 : 0;
}

static PyObject* new_token(const void* of, int i) {
    const sd_record* record = of;
    const sd_verdict* v = &record->verdict;
    return PyLong_FromLong(i < v->n_path ? record->tree.tokens[v->path[i]] : v->token);
}

static PyObject* new_round(const sd_module_state* state, const sd_record* record, int index) {
    const sd_verdict* v = &record->verdict;
    int n_drafted = record->tree.n_nodes - 1;
    PyObject* values[] = {
        PyLong_FromLong(index),
        sd_tuple_of_ints(record->tree.tokens + 1, n_drafted),
        sd_tuple_of_ints(record->tree.parents + 1, n_drafted),
        sd_tuple_of_ints(v->path, v->n_path),
        sd_tuple_from(sd_list_of(count_new(record), new_token, record)),
        PyLong_FromLong(count_new(record)),
        sd_tuple_of_floats(v->betas, v->n_betas),
        PyFloat_FromDouble(record->draft_s),
        PyFloat_FromDouble(record->verify_s),
        PyFloat_FromDouble(record->other_s),
        PyFloat_FromDouble(record->experts),
        PyLong_FromLong(record->planned),
        PyFloat_FromDouble(record->gain),
    };
    _Static_assert(sizeof values / sizeof *values == N_OF_ROUND, "one value a field");
    int complete = 1;
    for (int i = 0; i < N_OF_ROUND; i++) complete &= values[i] != NULL;
    PyTypeObject* type = (PyTypeObject*)state->round_class;
    PyObject* round = complete ? type->tp_alloc(type, 0) : NULL;
    /* Bypasses the constructor of the frozen dataclass, which is several times slower. */
    for (int i = 0; i < N_OF_ROUND; i++) {
        if (round != NULL &&
            PyObject_GenericSetAttr(round, PyTuple_GET_ITEM(state->round_fields, i), values[i]) < 0)
            Py_CLEAR(round);
        Py_XDECREF(values[i]);
    }
    if (round != NULL) PyObject_GC_UnTrack(round); /* it holds numbers and tuples of numbers only */
    return round;
}

/* Logits that new tokens were chosen from: after the root and after each accepted node. */
static PyObject* new_logits(const sd_slot_round_source* source) {
    const sd_record* record = source->record;
    int n = count_new(record);
    if (!source->keep_logits || n == 0) return Py_NewRef(Py_None);
    size_t n_vocab = (size_t)source->n_vocab;
    ptrdiff_t stride;
    const float* logits = sd_session_logits(source->session, &stride);
    float* out;
    PyObject* array = sd_new_array("float32", n, source->n_vocab, (void**)&out);
    for (int i = 0; array != NULL && i < n; i++) {
        int node = i == 0 ? 0 : record->node_rows[record->verdict.path[i - 1]];
        memcpy(out + (size_t)i * n_vocab, logits + (record->logits_row + node) * stride,
               n_vocab * sizeof *out);
    }
    return array;
}

static PyObject* new_logprobs(const sd_record* record) {
    const sd_logprobs_options* o = &record->settings->logprobs;
    int n = count_new(record);
    if (n == 0 || o->of == SD_LOGPROBS_NONE) return Py_NewRef(Py_None);
    const sd_logprobs* found = &record->logprobs;
    PyObject* log_probs = sd_array_of("float64", found->log_probs, sizeof *found->log_probs, n, -1);
    PyObject* top = log_probs ? sd_array_of("int32", found->top_tokens, sizeof(int32_t), n, o->n_top) : NULL;
    PyObject* of_top = top ? sd_array_of("float64", found->top_log_probs, sizeof(double), n, o->n_top) : NULL;
    PyObject* tuple = of_top ? PyTuple_Pack(3, log_probs, top, of_top) : NULL;
    Py_XDECREF(log_probs);
    Py_XDECREF(top);
    Py_XDECREF(of_top);
    return tuple;
}

static PyObject* origins_of(const sd_record* record) {
    if (record->settings->n_prediction == 0) return Py_NewRef(Py_None);
    return sd_tuple_of_ints(record->origins + 1, record->tree.n_nodes - 1);
}

static PyObject* drafts_of(const sd_slot_round_source* source) {
#ifdef SPECDEC_TESTING
    if (source->keep_drafts) return sd_drafts_of(source->session, source->record, source->n_vocab);
#endif
    (void)source;
    return Py_NewRef(Py_None);
}

PyObject* sd_slot_round_new(const sd_module_state* state, const sd_slot_round_source* source) {
    const sd_record* record = source->record;
    PyObject* tuple = PyStructSequence_New(state->slot_round_type);
    if (tuple == NULL) return NULL;
    PyObject *parts[N_FIELDS] = {0}, *error = source->error ? source->error : Py_None;
    /* Stop after a failure: Python code must not run with an exception set. */
    int complete = (parts[0] = PyLong_FromLong(record->sequence)) != NULL &&
                   (parts[1] = new_round(state, record, source->index)) != NULL &&
                   (parts[2] = Py_NewRef(error)) != NULL &&
                   (parts[3] = PyBool_FromLong(record->complete)) != NULL &&
                   (parts[4] = PyLong_FromLong(record->n_rows)) != NULL &&
                   (parts[5] = new_logits(source)) != NULL && (parts[6] = new_logprobs(record)) != NULL &&
                   (parts[7] = origins_of(record)) != NULL && (parts[8] = drafts_of(source)) != NULL;
    for (int i = 0; i < N_FIELDS; i++) PyStructSequence_SetItem(tuple, i, parts[i]);
    if (!complete)
        Py_CLEAR(tuple);
    else
        PyObject_GC_Track(tuple); /* its error may refer back to it */
    return tuple;
}
