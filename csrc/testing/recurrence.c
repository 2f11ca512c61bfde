/* _recurrence: the kernels of the gated delta rule or Mamba-2 on the tokens of one head with 32 value
 * columns. */
#include <string.h>

#include "kernels.h"
#include "memory.h"
#include "testing.h"

/* Arrays of a call, [n_tokens, n_key], [n_tokens, SD_PANEL] or [n_tokens]. */
typedef struct recurrence_call {
    int n_tokens, n_key, together, corrects;
    double skip;
    float *query, *key, *value, *decay, *beta;
    float *delta, *out, *state;
    sd_recurrent_update* updates;
} recurrence_call;

/* Walk the tokens. Updates are stored in the state `together` at a time; a row between applies the others. */
static void walk(const recurrence_call* c) {
    const sd_kernels* k = sd_kernels_get();
    int folded = 0;
    for (int t = 0; t < c->n_tokens; t++) {
        float *query = c->query + t * c->n_key, *key = c->key + t * c->n_key;
        float product = c->corrects ? k->unit_length(c->n_key, query, key) : k->dot(c->n_key, query, key);
        const sd_recurrent_row row = {.query = query,
                                      .key = key,
                                      .value = c->value + t * SD_PANEL,
                                      .product = product,
                                      .decay = c->decay[t],
                                      .beta = c->beta[t],
                                      .skip = (float)c->skip,
                                      .corrects = c->corrects,
                                      .delta = c->delta + t * SD_PANEL,
                                      .out = c->out + t * SD_PANEL};
        int store = t - folded == c->together;
        k->recurrent_step(c->n_key, c->state, store ? c->state : NULL, t - folded, c->updates + folded, &row);
        folded = store ? t : folded;
        c->updates[t] = (sd_recurrent_update){.key = row.key, .delta = row.delta, .decay = row.decay};
    }
    k->recurrent_step(c->n_key, c->state, c->state, c->n_tokens - folded, c->updates + folded, NULL);
}

/* (query, key, value, a, b, bias, rate, together, skip) to (out, state, decay). bias, rate [n_tokens]; skip
 * None: the delta rule, else Mamba-2, without b. */
PyObject* sd_hook_recurrence(PyObject* module, PyObject* args) {
    PyObject *objects[7], *skip, *out = NULL, *state = NULL, *decays = NULL, *found = NULL;
    static const char* const names[] = {"query", "key", "value", "a", "b", "bias", "rate"};
    Py_buffer views[7];
    int n_views = 0;
    recurrence_call c = {0};
    if (!PyArg_ParseTuple(args, "OOOOOOOiO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6], &c.together, &skip))
        return NULL;
    c.corrects = skip == Py_None;
    if (!c.corrects && (c.skip = PyFloat_AsDouble(skip)) == -1.0 && PyErr_Occurred()) return NULL;
    for (; n_views < 7; n_views++)
        if (sd_view(objects[n_views], names[n_views], 'f', n_views < 3 ? 2 : 1, &views[n_views]) < 0)
            goto done;
    c.n_tokens = (int)views[0].shape[0], c.n_key = (int)views[0].shape[1];
    out = sd_new_array("float32", c.n_tokens, SD_PANEL, (void**)&c.out);
    state = sd_new_array("float32", c.n_key, SD_PANEL, (void**)&c.state);
    decays = sd_new_array("float32", c.n_tokens, -1, (void**)&c.decay);
    size_t n = (size_t)c.n_tokens, keys = n * (size_t)c.n_key;
    float* scratch = sd_alloc((2 * keys + (2 * SD_PANEL + 1) * n) * sizeof *scratch);
    c.updates = sd_alloc(n * sizeof *c.updates);
    if (out && state && decays && scratch && c.updates) {
        c.query = scratch, c.key = c.query + keys, c.value = c.key + keys;
        c.delta = c.value + n * SD_PANEL, c.beta = c.delta + n * SD_PANEL;
        memcpy(c.query, views[0].buf, (size_t)views[0].len);
        memcpy(c.key, views[1].buf, (size_t)views[1].len);
        memcpy(c.value, views[2].buf, (size_t)views[2].len);
        memset(c.state, 0, (size_t)c.n_key * SD_PANEL * sizeof *c.state);
        sd_kernels_get()->decay(c.n_tokens, views[3].buf, views[5].buf, views[6].buf, c.beta, c.decay);
        if (c.corrects) sd_kernels_get()->sigmoid(c.n_tokens, views[4].buf, c.beta);
        walk(&c);
        found = PyTuple_Pack(3, out, state, decays);
    }
    sd_free(scratch);
    sd_free(c.updates);
done:
    while (n_views > 0) PyBuffer_Release(&views[--n_views]);
    Py_XDECREF(out);
    Py_XDECREF(state);
    Py_XDECREF(decays);
    return found;
}
