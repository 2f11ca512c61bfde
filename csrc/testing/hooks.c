/* Hooks for tests: failing allocations, delayed threads, counted forward passes, forced slices and bands. */
#include "testing.h"

#include <math.h>
#include <string.h>

#include "forward.h"
#include "kernels.h"
#include "memory.h"

/* Hooks that return a number, and hooks that set one from `low` to `high`. */
#define COUNTER(name, value)                                     \
    static PyObject* name(PyObject* module, PyObject* ignored) { \
        return PyLong_FromLongLong((long long)(value));          \
    }
#define SETTER(name, low, high, set)                                                                         \
    static PyObject* name(PyObject* module, PyObject* argument) {                                            \
        long n = PyLong_AsLong(argument);                                                                    \
        if (n == -1 && PyErr_Occurred()) return NULL;                                                        \
        if (n < (low) || n > (high))                                                                         \
            return PyErr_Format(PyExc_ValueError, "%ld, expected %ld to %ld", n, (long)(low), (long)(high)); \
        set((int)n);                                                                                         \
        return Py_NewRef(Py_None);                                                                           \
    }

COUNTER(alloc_bytes, sd_alloc_bytes())
COUNTER(alloc_live, sd_alloc_live())
COUNTER(spares_bytes, sd_spares_bytes())
COUNTER(forward_count, sd_forward_count())
COUNTER(forward_work, sd_forward_work())
SETTER(alloc_fail_after, INT_MIN, INT_MAX, sd_alloc_fail_after)
SETTER(pool_fail_after, INT_MIN, INT_MAX, sd_pool_fail_after)
SETTER(arena_guard, 0, 1, sd_arena_guard)
SETTER(prompt_slice, 0, SD_MOST_SLICE, sd_row_slice_force)
SETTER(bands, 0, SD_NEVER, sd_bands_force)

static PyObject* alloc_spoiled(PyObject* module, PyObject* argument) {
    Py_ssize_t n = PyLong_AsSsize_t(argument), n_zeros = 0;
    if (n == -1 && PyErr_Occurred()) return NULL;
    unsigned char* block = sd_alloc((size_t)n);
    if (block == NULL) return sd_raise(SD_ERR_MEMORY);
    for (Py_ssize_t i = 0; i < n; i++) n_zeros += block[i] == 0;
    memset(block, 0xff, (size_t)n);
    sd_free(block);
    return PyBool_FromLong(n_zeros == n);
}

static PyObject* pool_delay(PyObject* module, PyObject* args) {
    int thread, holding;
    double seconds;
    if (!PyArg_ParseTuple(args, "idp", &thread, &seconds, &holding)) return NULL;
    if (thread < 0 || thread >= SD_MAX_THREADS) return PyErr_Format(PyExc_ValueError, "thread %d", thread);
    sd_pool_delay(thread, seconds, holding);
    return Py_NewRef(Py_None);
}

/* Turn scores [n_chunks, n_rows, 32] into weights: (weights, lanes of the largest, lanes of the sums). */
static PyObject* weigh_scores(PyObject* module, PyObject* args) {
    PyObject *argument, *counts, *weights = NULL, *largest = NULL, *sums = NULL, *found = NULL;
    Py_buffer scores;
    float factor, *to, *most, *lanes, largest_of[64];
    int32_t* n_sum = NULL;
    int n_rows;
    if (!PyArg_ParseTuple(args, "OfO", &argument, &factor, &counts)) return NULL;
    if (sd_view(argument, "scores", 'f', 3, &scores) < 0) return NULL;
    if (sd_ids_from(counts, "n_sum", &n_sum, &n_rows) < 0) goto done;
    int n_chunks = (int)scores.shape[0];
    weights = sd_new_array("float32", (Py_ssize_t)n_chunks * n_rows, SD_PANEL, (void**)&to);
    largest = sd_new_array("float32", n_rows, SD_LANES, (void**)&most);
    sums = sd_new_array("float32", n_rows, SD_LANES, (void**)&lanes);
    if (weights == NULL || largest == NULL || sums == NULL) goto done;
    const sd_kernels* k = sd_kernels_get();
    memcpy(to, scores.buf, (size_t)scores.len);
    for (int i = 0; i < n_rows * SD_LANES; i++) most[i] = -INFINITY;
    k->largest_scores(n_rows, n_chunks, to, (ptrdiff_t)n_rows * SD_PANEL, most);
    for (int m = 0; m < n_rows; m++) largest_of[m] = k->max(SD_LANES, most + m * SD_LANES);
    memset(lanes, 0, (size_t)n_rows * SD_LANES * sizeof *lanes);
    for (int c = 0; c < n_chunks; c += 2, to += 2 * n_rows * SD_PANEL) /* two at a time, like attention */
        k->weigh_scores(n_rows, n_chunks - c < 2 ? 1 : 2, c * SD_PANEL, to, (ptrdiff_t)n_rows * SD_PANEL,
                        largest_of, factor, n_sum, lanes);
    found = PyTuple_Pack(3, weights, largest, sums);
done:
    Py_XDECREF(weights), Py_XDECREF(largest), Py_XDECREF(sums);
    PyMem_Free(n_sum);
    PyBuffer_Release(&scores);
    return found;
}

PyMethodDef sd_testing_functions[] = {
    {"_adaptive_gamma_reads", sd_hook_adaptive_gamma_reads, METH_VARARGS,
     "Describe what a target's rows read."},
    {"_adaptive_gamma_start", sd_hook_adaptive_gamma_start, METH_VARARGS, "Start a session."},
    {"_adaptive_gamma_begin", sd_hook_adaptive_gamma_begin, METH_VARARGS, "Start a round: does it draft?"},
    {"_adaptive_gamma_asks", sd_hook_adaptive_gamma_asks, METH_VARARGS,
     "Does the round draft for a sequence?"},
    {"_adaptive_gamma_pays", sd_hook_adaptive_gamma_pays, METH_VARARGS, "Does another draft token pay?"},
    {"_adaptive_gamma_end", sd_hook_adaptive_gamma_end, METH_VARARGS, "End a round."},
    {"_alloc_fail_after", alloc_fail_after, METH_O, "Let n more allocations succeed; negative: all."},
    {"_arena_guard", arena_guard, METH_O, "Protect the page after every array of the core."},
    {"_alloc_bytes", alloc_bytes, METH_NOARGS, "Bytes allocated and not freed."},
    {"_alloc_live", alloc_live, METH_NOARGS, "Blocks allocated and not freed."},
    {"_spares_bytes", spares_bytes, METH_NOARGS, "Bytes of freed blocks kept for reuse."},
    {"_alloc_spoiled", alloc_spoiled, METH_O, "Is a block of n bytes zeros? It is freed full of ones."},
    {"_pool_delay", pool_delay, METH_VARARGS, "Delay a worker's first piece in each loop, or its end."},
    {"_pool_fail_after", pool_fail_after, METH_O, "Let n more threads be started; negative: all."},
    {"_forward_count", forward_count, METH_NOARGS, "Forward passes of this process so far."},
    {"_forward_work", forward_work, METH_NOARGS, "Attentions and MLPs that rows have passed."},
    {"_weigh_scores", weigh_scores, METH_VARARGS, "Weights, largest values and sums of attention scores."},
    {"_product_times", SD_KEYWORDS(sd_hook_product_times), "Seconds of products of many rows."},
    {"_recurrence", sd_hook_recurrence, METH_VARARGS, "A recurrence of one head, 32 columns."},
    {"_bands", bands, METH_O, "Rows of a band of products, at most; 0: as many as pay."},
    {"_prompt_slice", prompt_slice, METH_O, "Tokens of a slice of new models; 0: their own choice."},
    {0},
};
