/* The module's functions. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "blocks.h"
#include "kernels.h"
#include "library.h"
#include "module.h"
#include "pack.h"
#include "rng.h"
#include "session_arguments.h"

/* The shapes of a configuration's tensors by name: a new dict, or NULL with an exception. */
static PyObject* shapes_of(const sd_config* config) {
    if (sd_passed(sd_config_check(config)) < 0) return NULL;
    PyObject* shapes = PyDict_New();
    for (int i = 0; shapes != NULL && i < sd_tensor_count(config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(config, i, &spec);
        PyObject* shape = spec.n_cols > 0 ? Py_BuildValue("(ii)", spec.n_rows, spec.n_cols)
                                          : Py_BuildValue("(i)", spec.n_rows);
        if (shape == NULL || PyDict_SetItemString(shapes, spec.name, shape) < 0) Py_CLEAR(shapes);
        Py_XDECREF(shape);
    }
    return shapes;
}

static PyObject* tensor_shapes(PyObject* module, PyObject* argument) {
    sd_config config = {0};
    PyObject *dict = PyDict_New(), *shapes = NULL;
    if (dict != NULL && PyDict_Update(dict, argument) == 0 && sd_config_from(dict, &config) == 0)
        shapes = shapes_of(&config);
    sd_config_free(&config);
    Py_XDECREF(dict);
    return shapes;
}

/* Check that a softmax of the logits exists. Returns 0, or -1 with an exception. */
static int check_logits(const float* logits, int n_vocab) {
    int finite = 0;
    for (int i = 0; i < n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return sd_refuse("logits[%d]: expected a finite number or -infinity", i);
        finite += !isinf(logits[i]);
    }
    return finite > 0 ? 0 : sd_refuse("logits: expected at least one finite number");
}

static PyObject* distribution(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"logits", "temperature", "top_k", "top_p", "min_p", NULL};
    PyObject *argument, *array = NULL;
    sd_sampling sampling = sd_sampling_neutral;
    sampling.temperature = -1.0; /* required */
    Py_buffer logits;
    double *probs, *scratch = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$didd", names, &argument, &sampling.temperature,
                                     &sampling.top_k, &sampling.top_p, &sampling.min_p))
        return NULL;
    if (sd_passed(sd_sampling_check(&sampling, 0)) < 0) return NULL; /* there are no biases */
    if (sd_view(argument, "logits", 'f', 1, &logits) < 0) return NULL;
    int n_vocab = (int)logits.shape[0];
    if (check_logits(logits.buf, n_vocab) == 0) {
        if ((scratch = PyMem_Malloc(2 * (size_t)n_vocab * sizeof *scratch)) == NULL)
            PyErr_NoMemory();
        else
            array = sd_new_array("float64", n_vocab, -1, (void**)&probs);
    }
    if (array != NULL) {
        sd_distribution d = {.weights = probs};
        sd_standardize(&sampling, n_vocab, logits.buf, scratch, &d);
        for (int i = 0; i < n_vocab; i++) probs[i] = sd_prob(&d, i);
    }
    PyMem_Free(scratch);
    PyBuffer_Release(&logits);
    return array;
}

static PyObject* uniform(PyObject* module, PyObject* args) {
    unsigned long long seed;
    unsigned int sequence, position, purpose, index;
    if (!PyArg_ParseTuple(args, "KIIII", &seed, &sequence, &position, &purpose, &index)) return NULL;
    return PyFloat_FromDouble(sd_uniform((sd_stream){seed, sequence}, position, (sd_purpose)purpose, index));
}

static PyObject* noise(PyObject* module, PyObject* args) {
    unsigned long long seed;
    unsigned int sequence, position;
    int n_vocab;
    double* values;
    if (!PyArg_ParseTuple(args, "KIIi", &seed, &sequence, &position, &n_vocab)) return NULL;
    if (n_vocab < 1) return PyErr_Format(PyExc_ValueError, "n_vocab is %d, expected at least 1", n_vocab);
    PyObject* array = sd_new_array("float64", n_vocab, -1, (void**)&values);
    if (array != NULL) sd_noise((sd_stream){seed, sequence}, position, n_vocab, values);
    return array;
}

static PyObject* kernels(PyObject* module, PyObject* ignored) {
    return PyUnicode_FromString(sd_kernels_get()->name);
}

static PyObject* name_at(const void* tables, int i) {
    return PyUnicode_FromString(((const sd_kernels* const*)tables)[i]->name);
}

static PyObject* available_kernels(PyObject* module, PyObject* ignored) {
    const sd_kernels* tables[8];
    return sd_list_of(sd_kernels_available(tables, 8), name_at, tables);
}

static PyObject* kernels_digest(PyObject* module, PyObject* ignored) {
    return PyUnicode_FromString(sd_kernels_digest());
}

static PyObject* openblas(PyObject* module, PyObject* ignored) {
    sd_status status = sd_library_load();
    return status == SD_OK ? PyUnicode_FromString(sd_library_description()) : sd_raise(status);
}

static PyObject* quantize(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"rows", "type", "importance", "n_threads", NULL};
    PyObject *given, *weights = Py_None, *blocks = NULL;
    const char* name;
    int n_threads = 1;
    sd_number type = SD_Q8_0;
    Py_buffer rows, importance = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|$Oi", names, &given, &name, &weights, &n_threads))
        return NULL;
    while (type < SD_N_NUMBERS && (!sd_can_quantize(type) || strcmp(sd_number_names[type], name) != 0))
        type++;
    if (type == SD_N_NUMBERS)
        return PyErr_Format(PyExc_ValueError,
                            "type is \"%s\", expected \"q8_0\", \"q4_0\", \"q4_k\", \"q5_k\" or \"q6_k\"",
                            name);
    if (sd_view(given, "rows", 'f', 2, &rows) < 0) return NULL;
    Py_ssize_t n_rows = rows.shape[0], n_in = rows.shape[1], block = sd_number_block(type);
    int fits = 1;
    if (n_in == 0 || n_in % block != 0 || n_in > INT_MAX || n_rows > INT_MAX)
        fits = sd_refuse("rows have %zd numbers, expected a multiple of %zd", n_in, block) == 0;
    if (fits && weights != Py_None) fits = sd_view(weights, "importance", 'f', 1, &importance) == 0;
    if (fits && weights != Py_None && importance.shape[0] != n_in)
        fits = sd_refuse("importance has %zd numbers, expected %zd", importance.shape[0], n_in) == 0;
    sd_status status = fits ? sd_pool_reserve(n_threads) : SD_OK;
    if (fits && status == SD_OK)
        blocks = PyBytes_FromStringAndSize(NULL, n_rows * (n_in / block) * (Py_ssize_t)sd_number_bytes(type));
    if (blocks != NULL)
        SD_WITHOUT_GIL(status = sd_quantize(type, rows.buf, (int)n_rows, (int)n_in, importance.buf,
                                            (unsigned char*)PyBytes_AS_STRING(blocks), n_threads));
    PyBuffer_Release(&rows);
    PyBuffer_Release(&importance);
    return sd_given(blocks, status);
}

static PyObject* checksums(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"data", "stretch", "n_threads", NULL};
    Py_buffer data;
    Py_ssize_t stretch = 0;
    int n_threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|n$i", names, &data, &stretch, &n_threads)) return NULL;
    PyObject* array = NULL;
    uint64_t* sums;
    sd_status status = SD_OK;
    if (stretch == 0) stretch = (Py_ssize_t)(PY_SSIZE_T_MAX / SD_CHECKSUM_PIECE * SD_CHECKSUM_PIECE);
    if (stretch < 0 || (size_t)stretch % SD_CHECKSUM_PIECE != 0)
        sd_refuse("stretch is %zd, expected a multiple of %zu", stretch, SD_CHECKSUM_PIECE);
    else
        array = sd_new_array("uint64", data.len > 0 ? (data.len - 1) / stretch + 1 : 1, -1, (void**)&sums);
    if (array != NULL) status = sd_pool_reserve(n_threads);
    if (array != NULL && status == SD_OK)
        SD_WITHOUT_GIL(status = sd_checksums(data.buf, (size_t)data.len, (size_t)stretch, n_threads, sums));
    PyBuffer_Release(&data);
    return sd_given(array, status);
}

PyMethodDef sd_functions[] = {
    {"quantize", SD_KEYWORDS(quantize), "quantize(rows, type, *, importance=None, n_threads=1)\n--\n\n"},
    {"checksums", SD_KEYWORDS(checksums), "checksums(data, stretch=0, *, n_threads=1)\n--\n\n"},
    {"tensor_shapes", tensor_shapes, METH_O, "tensor_shapes(config, /)\n--\n\n"},
    {"score_texts", SD_KEYWORDS(sd_score_of_texts),
     "score_texts(model, texts, n_given, *, sources=None, n_top=0, n_texts=0, n_threads=1, done=None, "
     "keep=False)\n--\n\n"},
    {"distribution", SD_KEYWORDS(distribution),
     "distribution(logits, *, temperature, top_k=0, top_p=1.0, min_p=0.0)\n--\n\n"},
    {"verify", SD_KEYWORDS(sd_verify_arrays),
     "verify(tokens, parents, target_probs, draft_probs, uniforms, *, rule='rejection', lenience=1.0, "
     "order=None, noise=None, points=None)\n--\n\n"},
    {"uniform", uniform, METH_VARARGS, "uniform(seed, sequence, position, purpose, index, /)\n--\n\n"},
    {"noise", noise, METH_VARARGS, "noise(seed, sequence, position, n_vocab, /)\n--\n\n"},
    {"kernels", kernels, METH_NOARGS, "kernels()\n--\n\nName of the instruction set in use."},
    {"available_kernels", available_kernels, METH_NOARGS,
     "available_kernels()\n--\n\nInstruction sets of this machine, best first."},
    {"processor", sd_processor, METH_NOARGS, "processor()\n--\n\n"},
    {"kernels_digest", kernels_digest, METH_NOARGS, "kernels_digest()\n--\n\n"},
    {"thresholds", sd_used_thresholds, METH_NOARGS, "thresholds()\n--\n\n"},
    {"panel_formats", sd_panel_formats, METH_NOARGS, "panel_formats()\n--\n\n"},
    {"own_thresholds", sd_own_thresholds, METH_NOARGS, "own_thresholds()\n--\n\n"},
    {"set_thresholds", sd_set_thresholds, METH_O, "set_thresholds(thresholds, /)\n--\n\n"},
    {"panel_seconds", SD_KEYWORDS(sd_panel_seconds),
     "panel_seconds(panels, *, dtype, n_rows, n_in, near)\n--\n\n"},
    {"product", SD_KEYWORDS(sd_product_of_arrays),
     "product(x, weights, dtype, *, engine='rows', n_threads=1)\n--\n\n"},
    {"openblas", openblas, METH_NOARGS, "openblas()\n--\n\n"},
    {0},
};
