/* product: one matrix product by the row kernels, in either order, or by OpenBLAS, for tests and
 * measurements. */
#include <string.h>

#include "blocks.h"
#include "gemm.h"
#include "kernels.h"
#include "library.h"
#include "module.h"

typedef struct job {
    const sd_matrix* matrix;
    sd_engine engine;
    sd_bands bands; /* of the rows */
    const void* x;  /* prepared */
    float* y;
    ptrdiff_t ldy;
} job;

static void multiply_panels(void* argument, int thread, int first, int end) {
    (void)thread;
    const job* j = argument;
    for (int band = 0; band < j->bands.n; band++)
        sd_matrix_multiply(j->matrix, j->engine, first, end, j->bands, band, j->x,
                           j->y + sd_band_row(j->bands, band) * j->ldy + (ptrdiff_t)first * SD_PANEL, j->ldy);
}

static sd_status multiply_by_openblas(int n_rows, int n_in, int n_out, const float* x, const float* weights,
                                      int n_threads, float* y) {
    sd_status status = sd_pool_reserve(n_threads);
    if (status == SD_OK) status = sd_library_reserve(n_threads);
    if (status != SD_OK) return status;
    sd_team team = sd_team_open(n_threads);
    sd_gemm_run(&team, &(sd_gemm){n_rows, n_out, n_in, x, n_in, weights, y, n_out});
    sd_team_close(&team);
    return SD_OK;
}

/* Pack, prepare and multiply; y [n_rows, n_out]. */
static sd_status multiply(sd_engine engine, sd_format format, int n_rows, int n_in, int n_out, const float* x,
                          const sd_source* weights, int n_threads, float* y) {
    sd_arena arena = {0};
    sd_matrix matrix;
    void* prepared;
    float* padded;
    ptrdiff_t ldy = sd_whole_panels(n_out);
    sd_status status = sd_pool_reserve(n_threads);
    if (status == SD_OK)
        status = SD_ARENA_BUILD(
            &arena, (matrix = sd_matrix_take(&arena, format, SD_LAYOUT_PANELS, n_out, n_in, 1),
                     prepared = sd_arena_take(&arena, (size_t)n_rows, sd_prepared_bytes((size_t)n_in)),
                     padded = sd_arena_take(&arena, (size_t)n_rows, (size_t)ldy * sizeof(float))));
    if (status == SD_OK)
        status = sd_matrix_pack(&matrix, weights, n_out, (sd_rows){0, 1}, "weights", n_threads);
    if (status == SD_OK) {
        sd_rows_prepare(engine, matrix.rows, (sd_part){n_rows, 0, n_rows, 0, n_in}, x, n_in, n_in, prepared);
        job j = {&matrix, engine, sd_bands_of(engine, matrix.rows, n_in, n_rows), prepared, padded, ldy};
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, sd_matrix_panels(n_out), sd_matrix_grain(&matrix, &team), multiply_panels, &j);
        sd_team_close(&team);
        for (int m = 0; m < n_rows; m++)
            memcpy(y + (size_t)m * (size_t)n_out, padded + m * ldy, (size_t)n_out * sizeof *y);
    }
    sd_arena_free(&arena);
    return status;
}

PyObject* sd_product_of_arrays(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"x", "weights", "dtype", "engine", "n_threads", NULL};
    Py_buffer x = {0}, weights = {0};
    const char *dtype, *engine_name = "rows";
    sd_engine engine;
    int n_threads = 1;
    sd_format format;
    PyObject *x_argument, *weights_argument, *array = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOs|$si", names, &x_argument, &weights_argument, &dtype,
                                     &engine_name, &n_threads))
        return NULL;
    sd_number number = SD_Q8_0;
    while (number < SD_N_NUMBERS && strcmp(sd_number_names[number], dtype) != 0) number++;
    int blocks = number < SD_N_NUMBERS;
    if (blocks)
        format = sd_block_format(number);
    else if (sd_format_from(dtype, "dtype", &format) < 0)
        return NULL;
    if (sd_engine_from(engine_name, "engine", &engine) < 0) return NULL;
    int by_openblas = engine == SD_ENGINE_BLAS;
    if (by_openblas && format != SD_FORMAT_F32)
        return PyErr_Format(PyExc_ValueError, "dtype is '%s', expected 'f32' for the engine 'blas'", dtype);
    if (engine == SD_ENGINE_TILES && format == SD_FORMAT_F32)
        return PyErr_Format(PyExc_ValueError,
                            "dtype is 'f32', expected 'bf16', 'int8' or 'int4' for the engine 'tiles'");
    sd_status status = by_openblas ? sd_library_load() : SD_OK;
    if (status != SD_OK) return sd_raise(status);
    if (sd_view(x_argument, "x", 'f', 2, &x) < 0) return NULL;
    if (sd_view(weights_argument, "weights", blocks ? 'B' : 'f', 2, &weights) < 0) goto done;
    Py_ssize_t row_bytes =
        blocks ? x.shape[1] / sd_number_block(number) * (Py_ssize_t)sd_number_bytes(number) : 0;
    if ((blocks ? row_bytes != weights.shape[1] || x.shape[1] % sd_number_block(number) != 0
                : x.shape[1] != weights.shape[1]) ||
        x.shape[0] < 1 || x.shape[1] < 1 || weights.shape[0] < 1 || x.shape[0] > 1 << 20 ||
        x.shape[1] > 1 << 20 || weights.shape[0] > 1 << 24) {
        PyErr_SetString(
            PyExc_ValueError,
            "x and weights: expected [n_rows, n_in] and [n_out, n_in], or its blocks in bytes, not empty");
        goto done;
    }
    int n_rows = (int)x.shape[0], n_in = (int)x.shape[1], n_out = (int)weights.shape[0];
    const sd_source source = {.data = weights.buf,
                              .number = blocks ? number : SD_F32,
                              .row_stride = blocks ? row_bytes : (ptrdiff_t)n_in * 4,
                              .col_stride = 4};
    float* y;
    if ((array = sd_new_array("float32", n_rows, n_out, (void**)&y)) == NULL) goto done;
    SD_WITHOUT_GIL(
        status = by_openblas ? multiply_by_openblas(n_rows, n_in, n_out, x.buf, weights.buf, n_threads, y)
                             : multiply(engine, format, n_rows, n_in, n_out, x.buf, &source, n_threads, y));
    array = sd_given(array, status);
done:
    PyBuffer_Release(&x);
    if (weights.obj) PyBuffer_Release(&weights);
    return array;
}
