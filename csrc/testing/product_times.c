/* _product_times: what products of many rows take. */
#include "hooks.h"
#include "library.h"
#include "product_trial.h"

/* Products of these numbers of rows; `before` is called before each. */
typedef struct turns {
    sd_product_trial* trial;
    const int32_t* rows; /* [n] */
    int n;
    PyObject* before;
} turns;

static PyObject* seconds_at(const void* context, int i) {
    const turns* t = context;
    PyObject* done = PyObject_CallNoArgs(t->before);
    Py_XDECREF(done);
    return done ? PyFloat_FromDouble(sd_product_trial_run(t->trial, t->rows[i])) : NULL;
}

static PyObject* turn_at(const void* context, int i) {
    return sd_list_of(((const turns*)context)->n, seconds_at, context);
}

PyObject* sd_hook_product_times(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"weights", "dtype",     "engine", "rows", "n_matrices",
                            "repeats", "n_threads", "before", NULL};
    PyObject *weights_argument, *rows_argument, *before, *found = NULL;
    Py_buffer weights;
    const char *dtype, *engine;
    int32_t* rows = NULL;
    int n, repeats;
    sd_product_trial t = {.n_threads = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$ssOiiiO", names, &weights_argument, &dtype, &engine,
                                     &rows_argument, &t.n_matrices, &repeats, &t.n_threads, &before))
        return NULL;
    if (sd_format_from(dtype, "dtype", &t.format) < 0 || sd_engine_from(engine, "engine", &t.engine) < 0)
        return NULL;
    sd_status status = t.engine == SD_ENGINE_BLAS ? sd_library_load() : SD_OK;
    if (status != SD_OK) return sd_raise(status);
    if (sd_view(weights_argument, "weights", 'f', 2, &weights) < 0) return NULL;
    if (sd_ids_from(rows_argument, "rows", &rows, &n) < 0) goto done;
    t.n_out = (int)weights.shape[0], t.n_in = (int)weights.shape[1];
    for (int i = 0; i < n; i++) t.max_rows = rows[i] > t.max_rows ? rows[i] : t.max_rows;
    status = sd_product_trial_create(&t, weights.buf);
    found = status == SD_OK ? sd_list_of(repeats, turn_at, &(turns){&t, rows, n, before}) : sd_raise(status);
done:
    sd_product_trial_free(&t);
    PyMem_Free(rows);
    PyBuffer_Release(&weights);
    return found;
}
