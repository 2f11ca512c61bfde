/* Drafter of a Python object: specdec.drafts.Drafter. */
#include <math.h>
#include <string.h>

#include "drafters.h"
#include "kernels.h"

/* Tolerance of the sum of probabilities: rounding, also of a softmax in float32. */
#define TOLERANCE 1e-4

typedef struct python_drafter {
    sd_drafter base;              /* must stay first */
    PyThreadState** saved_thread; /* borrowed */
    sd_draft_arguments given;     /* borrowed; begin, commit and generator may be None */
    PyObject* failures;           /* of the context; borrowed; NULL: none */
    int n_vocab;
    sd_arena arena; /* owns the arrays below */
    int32_t* nodes; /* [gamma + 1] node in the tree of each returned node; -1: left out */
    int* closed;    /* [gamma + 1] of the tree's nodes: a child has been left out, so later ones are too */
} python_drafter;

/* Return value of propose: the fields of a Proposal. */
typedef struct returned {
    PyObject *tokens, *parents, *probs, *confidence; /* strong; NULL: None */
    int32_t *ids, *parent_nodes;                     /* [n] PyMem; the latter NULL: a chain */
    int n;
} returned;

static void returned_free(returned* r) {
    Py_XDECREF(r->tokens);
    Py_XDECREF(r->parents);
    Py_XDECREF(r->probs);
    Py_XDECREF(r->confidence);
    PyMem_Free(r->ids);
    PyMem_Free(r->parent_nodes);
}

/* A read-only copy of a text for Python, since the core's memory changes and the object may keep it. A
 * memoryview of int takes 4 bytes per token; a list would take an object for each. */
static PyObject* view_of(const int32_t* tokens, int n) {
    PyObject* bytes =
        PyBytes_FromStringAndSize((const char*)tokens, (Py_ssize_t)n * (Py_ssize_t)sizeof *tokens);
    PyObject* view = bytes ? PyMemoryView_FromObject(bytes) : NULL;
    PyObject* ids = view ? PyObject_CallMethod(view, "cast", "s", "i") : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(view);
    return ids;
}

/* Reject the return value of propose. Returns -1 with an exception. */
#define REFUSE(d, format, ...) sd_refuse("%U.propose: " format, (d)->given.name, __VA_ARGS__)

static int refuse_type(const python_drafter* d, const char* field, PyObject* value, const char* expected) {
    /* Keep exceptions other than type errors. */
    if (PyErr_Occurred() && !sd_is_misfit()) return -1;
    PyErr_Clear();
    PyObject* text = sd_shown(value);
    if (text != NULL) REFUSE(d, "%s is %U; expected %s", field, text, expected);
    Py_XDECREF(text);
    return -1;
}

/* The attribute, or NULL without an exception if it is None. */
static int field(PyObject* proposal, const char* name, PyObject** out) {
    *out = PyObject_GetAttrString(proposal, name);
    if (*out == NULL) return -1;
    if (*out == Py_None) Py_CLEAR(*out);
    return 0;
}

static int read_nodes(const python_drafter* d, PyObject* value, int budget, returned* r) {
    static const char EXPECTED[] = "token ids or a specdec.drafts.Proposal";
    if (PyObject_TypeCheck(value, (PyTypeObject*)d->given.proposal_type)) {
        if (field(value, "tokens", &r->tokens) < 0 || field(value, "parents", &r->parents) < 0 ||
            field(value, "probs", &r->probs) < 0 || field(value, "confidence", &r->confidence) < 0)
            return -1;
    } else {
        r->tokens = Py_NewRef(value);
    }
    if (r->tokens == NULL || sd_ids_from(r->tokens, "tokens", &r->ids, &r->n) < 0)
        return refuse_type(d, "the returned value", value, EXPECTED);
    if (r->n > budget)
        return REFUSE(d, "there are %d draft tokens; expected at most the budget of %d", r->n, budget);
    for (int i = 0; i < r->n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= d->n_vocab)
            return REFUSE(d, "tokens[%d] is %d; expected 0 to %d", i, (int)r->ids[i], d->n_vocab - 1);
    if (r->parents == NULL) return 0;
    int n;
    if (sd_ids_from(r->parents, "parents", &r->parent_nodes, &n) < 0)
        return refuse_type(d, "parents", r->parents, "a node for each token");
    if (n != r->n) return REFUSE(d, "there are %d parents; expected %d, one for each token", n, r->n);
    for (int i = 0; i < n; i++)
        if (r->parent_nodes[i] < 0 || r->parent_nodes[i] > i)
            return REFUSE(d, "parents[%d] is %d; expected an earlier node, 0 to %d", i,
                          (int)r->parent_nodes[i], i);
    return 0;
}

/* Can the rule verify the returned tree? Siblings may not be draws from one distribution. */
static int check_rule(const python_drafter* d, const sd_proposal* p, const returned* r) {
    if (sd_rule_check_trees(p->rule, SD_TREE_ANY, "verify") == SD_OK) return 0;
    for (int i = 0; r->parent_nodes != NULL && i < r->n; i++)
        if (r->parent_nodes[i] != i)
            return REFUSE(d, "parents[%d] is %d, expected %d, as in a chain: %s", i, (int)r->parent_nodes[i],
                          i, sd_message());
    return 0;
}

/* Copy row i of the probabilities into `from` and check it, including the probability of its token. */
static int take_row(const python_drafter* d, PyObject* row, int i, int32_t token, sd_distribution* from) {
    PyObject* array = sd_reals_from(row);
    Py_buffer view;
    int result = array ? sd_view(array, "probs", 'd', 1, &view) : -1;
    Py_XDECREF(array);
    if (result < 0) return refuse_type(d, "a row of probs", row, "None or [n_vocab] numbers");
    const double* values = view.buf;
    double sum = 0.0;
    int wrong = view.shape[0] != d->n_vocab;
    for (int x = 0; x < d->n_vocab && !wrong; x++) {
        wrong = !(values[x] >= 0.0 && values[x] <= 1.0 + TOLERANCE);
        sum += values[x];
    }
    if (wrong || !(fabs(sum - 1.0) <= TOLERANCE)) {
        result = REFUSE(d, "probs[%d] is not a distribution; expected %d numbers, 0 or more, with sum 1", i,
                        d->n_vocab);
    } else if (!(values[token] > 0.0)) {
        result = REFUSE(d, "probs[%d] gives its token %d probability 0; expected its own distribution", i,
                        (int)token);
    } else {
        memcpy(from->weights, values, (size_t)d->n_vocab * sizeof *values);
        from->point = -1;
        from->mass = sd_kernels_get()->mass(d->n_vocab, from->weights);
        from->factor = 1.0 / from->mass;
    }
    PyBuffer_Release(&view);
    return result;
}

/* Restrict `from` to tokens allowed after the parent: the distribution of a draw, given that it is
 * allowed. */
static void mask_row(const python_drafter* d, const sd_mask* mask, sd_distribution* from) {
    if (mask->words == NULL || from->point >= 0) return;
    for (int x = 0; x < d->n_vocab; x++)
        if (!sd_mask_allows(mask, x)) from->weights[x] = 0.0;
    from->mass = sd_kernels_get()->mass(d->n_vocab, from->weights);
    from->factor = 1.0 / from->mass;
}

/* Item i of a list of n, strong; *item is NULL without a list. */
static int item_of(const python_drafter* d, PyObject* list, const char* name, int i, int n, PyObject** item) {
    *item = NULL;
    if (list == NULL) return 0;
    Py_ssize_t size = i == 0 ? PySequence_Size(list) : n;
    if (size < 0) return refuse_type(d, name, list, "a sequence");
    if (size != n) return REFUSE(d, "%s has %zd entries; expected %d, one for each token", name, size, n);
    *item = PySequence_GetItem(list, i);
    return *item == NULL ? refuse_type(d, name, list, "a sequence") : 0;
}

static int take_node(python_drafter* d, const returned* r, int i, sd_proposal* p) {
    int32_t parent = d->nodes[r->parent_nodes ? r->parent_nodes[i] : i];
    PyObject *row, *estimate = NULL;
    double confidence = 1.0;
    /* Check the row even without capacity for the node; it is written after the last node's. */
    sd_distribution* from = &p->tree.drawn_from[p->tree.n_nodes];
    int wanted = parent >= 0 && !d->closed[parent] && sd_proposal_may_draft(p, parent);
    /* Leave out tokens that the constraint forbids; their siblings stay unchanged. */
    int allowed = !wanted || sd_proposal_allows(p, parent, r->ids[i]);
    int result = item_of(d, r->probs, "probs", i, r->n, &row);
    if (result == 0) result = item_of(d, r->confidence, "confidence", i, r->n, &estimate);
    if (result == 0 && wanted) {
        from->point = r->ids[i];
        if (row != NULL && row != Py_None) {
            result = take_row(d, row, i, r->ids[i], from);
            if (result == 0 && allowed && p->constraint != NULL) {
                const sd_mask mask = sd_proposal_mask(p, parent);
                mask_row(d, &mask, from);
            }
            if (result == 0) confidence = sd_prob(from, r->ids[i]);
        }
    }
    if (result == 0 && estimate != NULL) {
        confidence = PyFloat_AsDouble(estimate);
        if (PyErr_Occurred() || !(confidence >= 0.0 && confidence <= 1.0))
            result = refuse_type(d, "an entry of confidence", estimate, "a number from 0 to 1");
    }
    Py_XDECREF(row);
    Py_XDECREF(estimate);
    if (result < 0) return -1;
    d->nodes[i + 1] = wanted && allowed ? sd_proposal_add(p, parent, r->ids[i], confidence) : -1;
    if (wanted && !allowed) return 0;
    if (wanted)
        d->closed[d->nodes[i + 1]] = 0;
    else if (parent >= 0)
        d->closed[parent] = 1;
    return 0;
}

/* {"rng": generator of this round} if the object takes random numbers; NULL with an exception. */
static PyObject* keywords_of(const python_drafter* d, const sd_proposal* p) {
    PyObject* rng = PyObject_CallFunction(d->given.generator, "KIi", (unsigned long long)p->stream.seed,
                                          p->stream.sequence, p->n_text);
    PyObject* keywords = rng ? Py_BuildValue("{sO}", "rng", rng) : NULL;
    Py_XDECREF(rng);
    return keywords;
}

static PyObject* call_propose(const python_drafter* d, const sd_proposal* p) {
    int draws = d->given.generator != Py_None;
    PyObject *text = view_of(p->text, p->n_text), *keywords = draws ? keywords_of(d, p) : NULL, *value = NULL;
    PyObject* arguments = text ? Py_BuildValue("iOi", p->sequence, text, p->budget) : NULL;
    if (arguments != NULL && (keywords != NULL || !draws))
        value = PyObject_Call(d->given.propose, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(text);
    return value;
}

/* Status of a call for a sequence, with the GIL held: on failure the exception is noted, if possible, and
 * cleared. */
static sd_status status_of(const python_drafter* d, int sequence, int failed) {
    if (!failed) return SD_OK;
    if (d->failures == NULL) return SD_ERR_CALLBACK;
    PyObject *exception = sd_take_exception(), *key = PyLong_FromLong(sequence);
    int noted = exception != NULL && key != NULL && PyDict_SetItem(d->failures, key, exception) == 0;
    if (!noted) PyErr_Clear(); /* no memory: the cause of the failure is lost */
    Py_XDECREF(exception);
    Py_XDECREF(key);
    return SD_ERR_CALLBACK;
}

static int propose_one(python_drafter* d, sd_proposal* p) {
    PyObject* value = call_propose(d, p);
    if (value == NULL) return -1;
    returned r = {0};
    int result = read_nodes(d, value, p->budget, &r);
    if (result == 0) result = check_rule(d, p, &r);
    d->nodes[0] = d->closed[0] = 0;
    for (int i = 0; i < r.n && result == 0; i++) result = take_node(d, &r, i, p);
    returned_free(&r);
    Py_DECREF(value);
    return result;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    python_drafter* d = (python_drafter*)base;
    sd_gil_take(d->saved_thread);
    sd_status status = SD_OK;
    for (int i = 0; i < n && status == SD_OK; i++) {
        sd_proposal* p = &proposals[i];
        if (!sd_proposal_may_draft(p, 0)) continue;
        sd_status of_one = status_of(d, p->sequence, propose_one(d, p) < 0);
        if (of_one == SD_OK) continue;
        sd_failure_note(p->failure, of_one);
        p->tree.n_nodes = 1;
        if (d->failures == NULL) status = of_one;
    }
    sd_gil_release(d->saved_thread);
    return status;
}

/* {"source": input of the target's encoder, or None}, or NULL with an exception. */
static PyObject* source_of(const sd_prompt* prompt) {
    PyObject* source = prompt->source ? view_of(prompt->source, prompt->n_source) : Py_NewRef(Py_None);
    PyObject* keywords = source ? Py_BuildValue("{sO}", "source", source) : NULL;
    Py_XDECREF(source);
    return keywords;
}

/* Call method(sequence, tokens), if it exists; also with the source of a prompt that is not NULL. */
static sd_status notify(python_drafter* d, PyObject* method, int sequence, const int32_t* tokens,
                        int n_tokens, const sd_prompt* prompt) {
    if (method == Py_None) return SD_OK;
    sd_gil_take(d->saved_thread);
    PyObject *ids = view_of(tokens, n_tokens), *keywords = prompt ? source_of(prompt) : NULL, *ignored = NULL;
    PyObject* arguments = ids ? Py_BuildValue("iO", sequence, ids) : NULL;
    if (arguments != NULL && (keywords != NULL || prompt == NULL))
        ignored = PyObject_Call(method, arguments, keywords);
    sd_status status = status_of(d, sequence, ignored == NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(ids);
    Py_XDECREF(ignored);
    sd_gil_release(d->saved_thread);
    return status;
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    python_drafter* d = (python_drafter*)base;
    if (!sd_settings_drafted(prompt->settings)) return SD_OK;
    return notify(d, d->given.begin, sequence, prompt->tokens, prompt->n,
                  d->given.reads_source ? prompt : NULL);
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    python_drafter* d = (python_drafter*)base;
    return notify(d, d->given.commit, sequence, tokens, n_tokens, NULL);
}

static void release(sd_drafter* base) {
    python_drafter* d = (python_drafter*)base;
    sd_arena_free(&d->arena);
    sd_free(d);
}

static void lay_out(python_drafter* d, int gamma) {
    d->nodes = sd_arena_take(&d->arena, (size_t)gamma + 1, sizeof *d->nodes);
    d->closed = sd_arena_take(&d->arena, (size_t)gamma + 1, sizeof *d->closed);
}

int sd_make_python_drafter(const sd_draft_arguments* a, const sd_drafter_context* context,
                           sd_drafter** drafter) {
    if (!PyUnicode_Check(a->name) || !PyCallable_Check(a->propose) || !PyType_Check(a->proposal_type))
        return sd_set_error(PyExc_TypeError, "python: expected a name, a function and a type");
    python_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) return sd_passed(SD_ERR_MEMORY);
    d->base = (sd_drafter){.tree_type = a->trees ? SD_TREE_ANY : SD_TREE_UNKNOWN,
                           .begin = begin,
                           .propose = propose,
                           .commit = commit,
                           .free = release};
    d->saved_thread = context->saved_thread;
    d->failures = context->failures;
    d->n_vocab = context->drafting.n_vocab;
    d->given = *a;
    sd_status status = SD_ARENA_BUILD(&d->arena, lay_out(d, context->drafting.gamma));
    return sd_passed(sd_drafter_made(&d->base, status, drafter));
}
