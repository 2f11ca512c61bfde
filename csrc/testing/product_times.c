/* _product_times: time products of many rows as a pass computes them. */
#include "clock.h"
#include "library.h"
#include "pack.h"
#include "pass.h"
#include "testing.h"

typedef struct product_trial {
    sd_engine engine;
    sd_format format;
    int n_out, n_in, n_matrices, max_rows, n_threads;
    sd_arena arena;      /* owns the arrays below */
    sd_matrix* matrices; /* [n_matrices] with equal weights, used in rotation */
    int next;            /* matrix of the next product */
    float* x;            /* [max_rows, n_in] */
    void* prepared;      /* max_rows rows of n_in */
    float* y;            /* [max_rows, ldy] */
    ptrdiff_t ldy;
} product_trial;

/* Least operations of a sample, so that reading the clock does not count, and its most products. */
#define SAMPLE_OPERATIONS 2e8
#define SAMPLE_PRODUCTS 1000

static void lay_out(product_trial* t) {
    sd_arena* arena = &t->arena;
    size_t rows = (size_t)t->max_rows;
    sd_layout layout = t->engine == SD_ENGINE_BLAS ? SD_LAYOUT_PLAIN : SD_LAYOUT_PANELS;
    t->ldy = sd_whole_panels(t->n_out) + SD_PANEL;
    t->matrices = sd_arena_take(arena, (size_t)t->n_matrices, sizeof *t->matrices);
    for (int i = 0; i < t->n_matrices; i++) {
        sd_matrix matrix = sd_matrix_take(arena, t->format, layout, t->n_out, t->n_in, 1);
        if (t->matrices) t->matrices[i] = matrix;
    }
    t->x = sd_arena_take(arena, rows * (size_t)t->n_in, sizeof *t->x);
    t->prepared = sd_arena_take(arena, rows, sd_prepared_bytes((size_t)t->n_in));
    t->y = sd_arena_take(arena, rows * (size_t)t->ldy, sizeof *t->y);
}

/* Create the matrices of a trial whose sizes, the fields before the arena, are set. weights [n_out, n_in]. */
static sd_status create(product_trial* t, const float* weights) {
    sd_status status = sd_pool_reserve(t->n_threads);
    if (status == SD_OK && t->engine == SD_ENGINE_BLAS) status = sd_library_reserve(t->n_threads);
    if (status == SD_OK) status = SD_ARENA_BUILD(&t->arena, lay_out(t));
    const sd_source source = {.data = weights, .row_stride = (ptrdiff_t)t->n_in * 4, .col_stride = 4};
    for (int i = 0; i < t->n_matrices && status == SD_OK; i++)
        status = sd_matrix_pack(&t->matrices[i], &source, t->n_out, (sd_rows){0, 1}, "weights", t->n_threads);
    for (ptrdiff_t i = 0; status == SD_OK && i < (ptrdiff_t)t->max_rows * t->n_in; i++)
        t->x[i] = weights[i % t->n_in];
    return status;
}

/* Seconds of one product of n_rows rows, which are prepared beforehand. */
static double run(product_trial* t, int n_rows) {
    double wanted = 1.0 + SAMPLE_OPERATIONS / (2.0 * n_rows * t->n_out * t->n_in);
    int n = wanted < SAMPLE_PRODUCTS ? (int)wanted : SAMPLE_PRODUCTS;
    sd_pass pass = {.n_rows = n_rows, .engine = t->engine, .team = sd_team_open(t->n_threads)};
    const void* rows = t->x;
    if (t->engine != SD_ENGINE_BLAS) {
        const sd_part all = {n_rows, 0, n_rows, 0, t->n_in};
        sd_rows_prepare(t->engine, sd_rows_of(t->format), all, t->x, t->n_in, t->n_in, t->prepared);
        rows = t->prepared;
    }
    double begin = sd_now();
    for (int i = 0; i < n; i++) {
        const sd_matrix* matrix = &t->matrices[t->next++ % t->n_matrices];
        sd_pass_multiply(
            &pass,
            (sd_product){
                .matrix = matrix, .n_rows = n_rows, .x = rows, .y = t->y, .ldy = t->ldy, .factor = 1.0f});
    }
    double seconds = (sd_now() - begin) / n;
    sd_team_close(&pass.team);
    return seconds;
}

/* Row counts to time; `before` is called before each. */
typedef struct timed_rows {
    product_trial* trial;
    const int32_t* rows; /* [n] */
    int n;
    PyObject* before;
} timed_rows;

static PyObject* seconds_at(const void* context, int i) {
    const timed_rows* t = context;
    PyObject* done = PyObject_CallNoArgs(t->before);
    Py_XDECREF(done);
    return done ? PyFloat_FromDouble(run(t->trial, t->rows[i])) : NULL;
}

static PyObject* repeat_at(const void* context, int i) {
    return sd_list_of(((const timed_rows*)context)->n, seconds_at, context);
}

PyObject* sd_hook_product_times(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"weights", "dtype",     "engine", "rows", "n_matrices",
                            "repeats", "n_threads", "before", NULL};
    PyObject *weights_argument, *rows_argument, *before, *found = NULL;
    Py_buffer weights;
    const char *dtype, *engine;
    int32_t* rows = NULL;
    int n, repeats;
    product_trial t = {.n_threads = 1};
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
    status = create(&t, weights.buf);
    found = status == SD_OK ? sd_list_of(repeats, repeat_at, &(timed_rows){&t, rows, n, before})
                            : sd_raise(status);
done:
    sd_arena_free(&t.arena);
    PyMem_Free(rows);
    PyBuffer_Release(&weights);
    return found;
}
