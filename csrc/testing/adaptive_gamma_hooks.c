/* Hooks that run the policy of a drafter without a clock. */
#include "testing.h"

/* Converter for "O&": the AdaptiveGamma object that a simulated session changes in place. */
static int played(PyObject* object, void* to) {
    sd_adaptive_gamma_object* self = sd_adaptive_gamma_from(object, "adaptive_gamma");
    if (self != NULL) *(sd_adaptive_gamma**)to = &self->learned;
    return self != NULL;
}

/* (adaptive, share, fresh, n_extra): the target has experts if share is not 0; n_extra extra query tokens
 * follow every row of a round that drafts. */
PyObject* sd_hook_adaptive_gamma_reads(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    sd_expert_reads expert_reads;
    int n;
    if (!PyArg_ParseTuple(args, "O&ddi", played, &a, &expert_reads.share, &expert_reads.fresh, &n))
        return NULL;
    a->drafter.n_extra = n;
    sd_cost_model_reads(&a->throughput.target, expert_reads);
    return Py_NewRef(Py_None);
}

/* (adaptive, n_missed=0, n_slots=1): start a session. n_missed: prompt tokens that a paused drafter has not
 * read. */
PyObject* sd_hook_adaptive_gamma_start(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    int n_missed = 0, n_slots = 1;
    if (!PyArg_ParseTuple(args, "O&|ii", played, &a, &n_missed, &n_slots)) return NULL;
    sd_adaptive_gamma_start(a, a->throughput.target.expert_reads, a->drafter.n_extra, n_slots);
    if (n_missed > 0 && sd_adaptive_gamma_paused(a))
        sd_drafter_schedule_misses(&a->drafter.schedule, n_missed);
    return Py_NewRef(Py_None);
}

/* (adaptive, n_open, gamma, n_rows=0): does the round draft? n_rows: rows of the batch, earlier drafters'
 * included, if this is one of several drafters; 0: it is the session's only drafter. */
PyObject* sd_hook_adaptive_gamma_begin(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    int n_open, gamma, n_rows = 0;
    if (!PyArg_ParseTuple(args, "O&ii|i", played, &a, &n_open, &gamma, &n_rows)) return NULL;
    if (n_rows == 0) return PyLong_FromLong(sd_adaptive_gamma_begin(a, n_open, gamma));
    sd_throughput_begin(&a->throughput, n_open);
    sd_drafter_policy_plan(&a->drafter, &a->throughput, gamma);
    return PyLong_FromLong(sd_drafter_policy_begin(&a->drafter, &a->throughput, gamma, n_rows));
}

/* (adaptive, i): does the round draft for sequence i? */
PyObject* sd_hook_adaptive_gamma_asks(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    int i;
    if (!PyArg_ParseTuple(args, "O&i", played, &a, &i)) return NULL;
    return PyBool_FromLong(sd_drafter_policy_asks(&a->drafter, &a->throughput, i));
}

/* (adaptive, confidences of a chain, is the last only examined, expected=0): does another draft token pay,
 * after drafters that expect `expected` accepted tokens? */
PyObject* sd_hook_adaptive_gamma_pays(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    PyObject* chain;
    int looked_at, n;
    double *confidences, expected = 0.0;
    if (!PyArg_ParseTuple(args, "O&Op|d", played, &a, &chain, &looked_at, &expected)) return NULL;
    if (sd_floats_from(chain, "chain", &confidences, &n) < 0) return NULL;
    const sd_drafter_policy* p = &a->drafter;
    n -= looked_at;
    double path_prob = sd_drafter_policy_new_share(p, expected), known = -1.0;
    for (int i = 0; i < n + looked_at; i++) {
        double chance = sd_acceptance_chance(&p->acceptance, confidences[i], i + 1);
        if (i < n)
            path_prob *= chance;
        else
            known = chance;
    }
    PyMem_Free(confidences);
    return PyLong_FromLong(sd_drafter_policy_pays(p, path_prob, n, n, known));
}

enum { CAPACITY = 128 };

/* Verify a chain (confidences, number accepted, depth of the rejected draft token or 0, its confidence).
 * Returns the number of draft tokens, or -1 with an exception. */
static int judge(sd_drafter_policy* policy, PyObject* chain, double expected, int n_covered, int* n_steps) {
    PyObject* list;
    int32_t tokens[CAPACITY] = {0}, parents[CAPACITY], depths[CAPACITY], path[CAPACITY];
    double confidences[CAPACITY], *given;
    int n_path, n;
    sd_proposal p = {.depths = depths, .confidences = confidences};
    if (!PyArg_ParseTuple(chain, "Oiid", &list, &n_path, &p.rejected_at, &p.rejected_confidence) ||
        sd_floats_from(list, "chain", &given, &n) < 0)
        return -1;
    int fits = n < CAPACITY && n_path <= n;
    for (int i = 0; i <= n && fits; i++) {
        parents[i] = i - 1, depths[i] = i, path[i] = i + 1;
        confidences[i] = i ? given[i - 1] : 1.0;
    }
    PyMem_Free(given);
    if (!fits) return sd_set_error(PyExc_ValueError, "a chain of %d draft tokens", n);
    p.tree = (sd_tree){n + 1, tokens, parents, NULL};
    int n_added = n_path > n_covered ? n_path - n_covered : 0;
    if (policy->drafting) sd_drafter_policy_observe(policy, &p, path, n_path, expected, n_added);
    *n_steps += p.rejected_at > n ? p.rejected_at : n;
    return n;
}

/* (adaptive, tuple of chains, tokens, draft_s, rest_s, n_rows=n_open, expected=0, n_covered=0). n_covered:
 * tokens that earlier drafters had right. Without chains the drafter was not asked in this round. */
PyObject* sd_hook_adaptive_gamma_end(PyObject* module, PyObject* args) {
    sd_adaptive_gamma* a;
    PyObject* chains;
    double rest_s, expected = 0.0;
    int n_covered = 0;
    sd_drafter_round r = {0};
    if (!PyArg_ParseTuple(args, "O&O!idd|idi", played, &a, &PyTuple_Type, &chains, &r.n_tokens, &r.draft_s,
                          &rest_s, &r.n_rows, &expected, &n_covered))
        return NULL;
    int n_open = a->throughput.n_open, drafting = a->drafter.drafting;
    if (r.n_rows == 0) r.n_rows = n_open;
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(chains); c++) {
        int n = judge(&a->drafter, PyTuple_GET_ITEM(chains, c), expected, n_covered, &r.n_steps);
        if (n < 0) return NULL;
        r.n_draft_tokens += n;
    }
    r.n_asked = drafting ? (int)PyTuple_GET_SIZE(chains) : 0;
    r.n_added = r.n_tokens - n_open - n_covered;
    int n_all = (r.n_rows + r.n_draft_tokens) * (1 + (r.n_asked > 0 ? a->drafter.n_extra : 0));
    sd_throughput_measure(
        &a->throughput, n_all, r.draft_s, rest_s,
        r.n_asked ? sd_drafter_policy_expects(&a->drafter, &a->throughput, r.n_asked, r.n_steps) : 0.0);
    double draft_s = sd_drafter_policy_end(&a->drafter, &a->throughput, &r);
    if (r.n_asked || r.n_rows > n_open) sd_throughput_add(&a->throughput, n_all, r.n_tokens, draft_s);
    return Py_NewRef(Py_None);
}
