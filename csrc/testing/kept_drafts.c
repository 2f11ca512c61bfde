/* Keeps what the nodes of a round were drawn from, and the target's distribution after each. */
#include <string.h>

#include "testing.h"

/* Distribution that each node was drawn from; zeros for the root. */
static PyObject* draft_probs(const sd_record* record, int n_vocab) {
    double* out;
    PyObject* array = sd_new_array("float64", record->tree.n_nodes, n_vocab, (void**)&out);
    for (int i = 0; array != NULL && i < record->tree.n_nodes; i++)
        for (int x = 0; x < n_vocab; x++) *out++ = i == 0 ? 0.0 : sd_prob(&record->tree.drawn_from[i], x);
    return array;
}

/* Point mass of each node; -1 for a draw and for the root. */
static PyObject* draft_point(const void* record, int i) {
    return PyLong_FromLong(i == 0 ? -1 : ((const sd_record*)record)->tree.drawn_from[i].point);
}

/* Target logits after each node. */
static PyObject* node_logits(const sd_session* session, const sd_record* record, int n_vocab) {
    ptrdiff_t stride;
    const float* logits = sd_session_logits(session, &stride);
    float* out;
    PyObject* array = sd_new_array("float32", record->tree.n_nodes, n_vocab, (void**)&out);
    for (int i = 0; array != NULL && i < record->tree.n_nodes; i++)
        memcpy(out + (size_t)i * (size_t)n_vocab,
               logits + (record->logits_row + record->node_rows[i]) * stride, (size_t)n_vocab * sizeof *out);
    return array;
}

PyObject* sd_drafts_of(const sd_session* session, const sd_record* record, int n_vocab) {
    PyObject* probs = draft_probs(record, n_vocab);
    PyObject* points = probs ? sd_list_of(record->tree.n_nodes, draft_point, record) : NULL;
    PyObject* logits = points ? node_logits(session, record, n_vocab) : NULL;
    PyObject* dict = logits ? Py_BuildValue("{sOsOsO}", "draft_probs", probs, "draft_points", points,
                                            "node_logits", logits)
                            : NULL;
    Py_XDECREF(probs);
    Py_XDECREF(points);
    Py_XDECREF(logits);
    return dict;
}
