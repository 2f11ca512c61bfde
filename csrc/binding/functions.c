/* The module's functions. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "blocks.h"
#include "config_dict.h"
#include "kernels.h"
#include "library.h"
#include "module.h"
#include "pack.h"
#include "rng.h"
#include "session_arguments.h"

static PyObject* tensor_shapes(PyObject* module, PyObject* argument) {
    (void)module;
    sd_config config = {0};
    PyObject *dict = PyDict_New(), *shapes = NULL;
    if (dict == NULL || PyDict_Update(dict, argument) < 0 || sd_config_from(dict, &config) < 0) goto end;
    sd_status status = sd_config_check(&config);
    if (status != SD_OK) {
        sd_raise(status);
        goto end;
    }
    shapes = PyDict_New();
    for (int i = 0; shapes != NULL && i < sd_tensor_count(&config); i++) {
        sd_tensor_spec spec;
        sd_tensor_at(&config, i, &spec);
        PyObject* shape = spec.n_cols > 0 ? Py_BuildValue("(ii)", spec.n_rows, spec.n_cols)
                                          : Py_BuildValue("(i)", spec.n_rows);
        if (shape == NULL || PyDict_SetItemString(shapes, spec.name, shape) < 0) Py_CLEAR(shapes);
        Py_XDECREF(shape);
    }
end:
    sd_config_free(&config);
    Py_XDECREF(dict);
    return shapes;
}

static PyObject* distribution(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"logits", "temperature", "top_k", "top_p", "min_p", NULL};
    PyObject* argument;
    sd_sampling sampling = sd_sampling_neutral;
    sampling.temperature = -1.0; /* must be given */
    Py_buffer logits;
    double* probs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$didd", names, &argument, &sampling.temperature,
                                     &sampling.top_k, &sampling.top_p, &sampling.min_p))
        return NULL;
    sd_status status = sd_sampling_check(&sampling, 0); /* there are no biases */
    if (status != SD_OK) return sd_raise(status);
    if (sd_view(argument, "logits", 'f', 1, &logits) < 0) return NULL;
    int n_vocab = (int)logits.shape[0];
    PyObject* array = NULL;
    int finite = 0;
    for (int i = 0; i < n_vocab; i++) {
        float value = ((const float*)logits.buf)[i];
        if (isnan(value) || (isinf(value) && value > 0)) {
            PyErr_Format(PyExc_ValueError, "logits[%d]: expected a finite number or -infinity", i);
            goto end;
        }
        finite += !isinf(value);
    }
    if (finite == 0) {
        PyErr_SetString(PyExc_ValueError, "logits: expected at least one finite number");
        goto end;
    }
    double* scratch = PyMem_Malloc(2 * (size_t)n_vocab * sizeof *scratch);
    if (scratch == NULL)
        PyErr_NoMemory();
    else
        array = sd_new_array("float64", n_vocab, -1, (void**)&probs);
    if (array != NULL) {
        sd_distribution d = {.weights = probs};
        sd_standardise(&sampling, n_vocab, logits.buf, scratch, &d);
        for (int i = 0; i < n_vocab; i++) probs[i] = sd_prob(&d, i);
    }
    PyMem_Free(scratch);
end:
    PyBuffer_Release(&logits);
    return array;
}

static PyObject* uniform(PyObject* module, PyObject* args) {
    (void)module;
    unsigned long long seed;
    unsigned int sequence, position, purpose, index;
    if (!PyArg_ParseTuple(args, "KIIII", &seed, &sequence, &position, &purpose, &index)) return NULL;
    return PyFloat_FromDouble(sd_uniform((sd_stream){seed, sequence}, position, (sd_purpose)purpose, index));
}

static PyObject* noise(PyObject* module, PyObject* args) {
    (void)module;
    unsigned long long seed;
    unsigned int sequence, position;
    int n_vocab;
    double* values;
    if (!PyArg_ParseTuple(args, "KIIi", &seed, &sequence, &position, &n_vocab)) return NULL;
    if (n_vocab < 1) {
        PyErr_Format(PyExc_ValueError, "n_vocab is %d, expected at least 1", n_vocab);
        return NULL;
    }
    PyObject* array = sd_new_array("float64", n_vocab, -1, (void**)&values);
    if (array != NULL) sd_noise((sd_stream){seed, sequence}, position, n_vocab, values);
    return array;
}

static PyObject* kernels(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    return PyUnicode_FromString(sd_kernels_get()->name);
}

static PyObject* available_kernels(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    const sd_kernels* tables[8];
    int n = sd_kernels_available(tables, 8);
    PyObject* list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* name = PyUnicode_FromString(tables[i]->name);
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject* kernels_digest(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    return PyUnicode_FromString(sd_kernels_digest());
}

static PyObject* openblas(PyObject* module, PyObject* ignored) {
    (void)module, (void)ignored;
    sd_status status = sd_library_load();
    return status == SD_OK ? PyUnicode_FromString(sd_library_description()) : sd_raise(status);
}

static PyObject* quantise(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"rows", "type", "importance", "n_threads", NULL};
    PyObject *given, *weights = Py_None, *blocks = NULL;
    const char* name;
    int n_threads = 1;
    sd_number type = SD_Q8_0;
    Py_buffer rows, importance = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Os|$Oi", names, &given, &name, &weights, &n_threads))
        return NULL;
    while (type < SD_N_NUMBERS && (!sd_can_quantise(type) || strcmp(sd_number_names[type], name) != 0))
        type++;
    if (type == SD_N_NUMBERS)
        return PyErr_Format(PyExc_ValueError,
                            "type is \"%s\", expected \"q8_0\", \"q4_0\", \"q4_k\", \"q5_k\" or \"q6_k\"",
                            name);
    const int block = sd_number_block(type);
    if (sd_view(given, "rows", 'f', 2, &rows) < 0) return NULL;
    Py_ssize_t n_rows = rows.shape[0], n_in = rows.shape[1];
    if (n_in == 0 || n_in % block != 0 || n_in > INT_MAX || n_rows > INT_MAX) {
        PyErr_Format(PyExc_ValueError, "rows have %zd numbers, expected a multiple of %d", n_in, block);
        goto end;
    }
    if (weights != Py_None && sd_view(weights, "importance", 'f', 1, &importance) < 0) goto end;
    if (weights != Py_None && importance.shape[0] != n_in) {
        PyErr_Format(PyExc_ValueError, "importance has %zd numbers, expected %zd", importance.shape[0], n_in);
        goto end;
    }
    sd_status status = sd_pool_reserve(n_threads);
    if (status == SD_OK)
        blocks = PyBytes_FromStringAndSize(NULL, n_rows * (n_in / block) * (Py_ssize_t)sd_number_bytes(type));
    if (blocks != NULL) {
        PyThreadState* saved_thread;
        sd_gil_release(&saved_thread);
        status = sd_quantise(type, rows.buf, (int)n_rows, (int)n_in, importance.buf,
                             (unsigned char*)PyBytes_AS_STRING(blocks), n_threads);
        sd_gil_take(&saved_thread);
    }
    if (status != SD_OK) {
        Py_CLEAR(blocks);
        sd_raise(status);
    }
end:
    PyBuffer_Release(&rows);
    if (importance.obj != NULL) PyBuffer_Release(&importance);
    return blocks;
}

static sd_status checksums_of(const Py_buffer* data, size_t stretch, int n_threads, uint64_t* sums) {
    sd_status status = sd_pool_reserve(n_threads);
    if (status != SD_OK) return status;
    PyThreadState* saved_thread;
    sd_gil_release(&saved_thread);
    status = sd_checksums(data->buf, (size_t)data->len, stretch, n_threads, sums);
    sd_gil_take(&saved_thread);
    return status;
}

static PyObject* checksum(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"data", "n_threads", NULL};
    Py_buffer data;
    int n_threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|$i", names, &data, &n_threads)) return NULL;
    uint64_t sum;
    sd_status status = checksums_of(&data, SIZE_MAX / SD_CHECKSUM_PIECE * SD_CHECKSUM_PIECE, n_threads, &sum);
    PyBuffer_Release(&data);
    return status == SD_OK ? PyLong_FromUnsignedLongLong(sum) : sd_raise(status);
}

static PyObject* checksums(PyObject* module, PyObject* args, PyObject* kwargs) {
    (void)module;
    static char* names[] = {"data", "stretch", "n_threads", NULL};
    Py_buffer data;
    Py_ssize_t stretch;
    int n_threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*n|$i", names, &data, &stretch, &n_threads)) return NULL;
    PyObject* array = NULL;
    if (stretch <= 0 || (size_t)stretch % SD_CHECKSUM_PIECE != 0) {
        PyErr_Format(PyExc_ValueError, "stretch is %zd, expected a multiple of %zu", stretch,
                     SD_CHECKSUM_PIECE);
    } else {
        uint64_t* sums;
        Py_ssize_t n = data.len > 0 ? (data.len - 1) / stretch + 1 : 1;
        array = sd_new_array("uint64", n, -1, (void**)&sums);
        sd_status status = array == NULL ? SD_OK : checksums_of(&data, (size_t)stretch, n_threads, sums);
        if (status != SD_OK) {
            Py_CLEAR(array);
            sd_raise(status);
        }
    }
    PyBuffer_Release(&data);
    return array;
}

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

PyMethodDef sd_functions[] = {
    {"quantise", WITH_KEYWORDS(quantise),
     "quantise(rows, type, *, importance=None, n_threads=1)\n--\n\nRows, float32 [n_rows, n_in], as the "
     "blocks of GGUF files."},
    {"checksum", WITH_KEYWORDS(checksum),
     "checksum(data, *, n_threads=1)\n--\n\nA checksum of bytes against damage, 64 bits."},
    {"checksums", WITH_KEYWORDS(checksums),
     "checksums(data, stretch, *, n_threads=1)\n--\n\nThe checksum of each stretch of bytes, uint64 [n]."},
    {"tensor_shapes", tensor_shapes, METH_O,
     "tensor_shapes(config, /)\n--\n\nEvery tensor a model of this configuration needs, by canonical name."},
    {"score", WITH_KEYWORDS(sd_score_of_text),
     "score(model, ids, *, n_threads=1, source=None)\n--\n\nln p(ids[i + 1] | ids[: i + 1]), float64 "
     "[len(ids) - 1]."},
    {"score_texts", WITH_KEYWORDS(sd_score_of_texts),
     "score_texts(model, texts, n_given, *, sources=None, n_top=0, n_texts=0, n_threads=1, done=None, "
     "keep=False)\n--\n\n"
     "ln p of the tokens of many texts from the n_given-th on: (log_probs, greedy, top tokens, their ln p, "
     "the text that was kept)."},
    {"distribution", WITH_KEYWORDS(distribution),
     "distribution(logits, *, temperature, top_k=0, top_p=1.0, min_p=0.0)\n--\n\nStandardised probabilities, "
     "float64 "
     "[n_vocab]."},
    {"verify", WITH_KEYWORDS(sd_verify_arrays),
     "verify(tokens, parents, target_probs, draft_probs, uniforms, *, rule='rejection', lenience=1.0, "
     "order=None, noise=None, points=None)\n--\n\nA rule of verification on a tree: (path, token, betas)."},
    {"uniform", uniform, METH_VARARGS,
     "uniform(seed, sequence, position, purpose, index, /)\n--\n\nThe core's random number of this key."},
    {"noise", noise, METH_VARARGS,
     "noise(seed, sequence, position, n_vocab, /)\n--\n\nThe uniforms of the coupled rule at a position, "
     "float64 [n_vocab]."},
    {"kernels", kernels, METH_NOARGS, "kernels()\n--\n\nName of the instruction set in use."},
    {"available_kernels", available_kernels, METH_NOARGS,
     "available_kernels()\n--\n\nInstruction sets of this machine, best first."},
    {"processor", sd_processor, METH_NOARGS, "processor()\n--\n\nThe name of this kind of processor."},
    {"kernels_digest", kernels_digest, METH_NOARGS,
     "kernels_digest()\n--\n\nWhich sources and compiler made the kernels: 16 digits."},
    {"thresholds", sd_used_thresholds, METH_NOARGS,
     "thresholds()\n--\n\nThe thresholds in use by name, one for each of panel_formats()."},
    {"panel_formats", sd_panel_formats, METH_NOARGS,
     "panel_formats()\n--\n\nNames of all number formats of packed weights, in the order of thresholds."},
    {"own_thresholds", sd_own_thresholds, METH_NOARGS,
     "own_thresholds()\n--\n\nThose that the instruction set in use has where none were measured."},
    {"set_thresholds", sd_set_thresholds, METH_O,
     "set_thresholds(thresholds, /)\n--\n\nUse others from now on; no thread may compute meanwhile."},
    {"panel_seconds", WITH_KEYWORDS(sd_panel_seconds),
     "panel_seconds(panels, *, dtype, n_rows, n_in, near)\n--\n\nSeconds of a product of equal rows with "
     "packed panels."},
    {"product", WITH_KEYWORDS(sd_product),
     "product(x, weights, dtype, *, engine='rows', n_threads=1)\n--\n\nx · weightsᵀ by the row kernels, in "
     "their order or that of tiles, or by OpenBLAS, float32 [n_rows, n_out]."},
    {"openblas", openblas, METH_NOARGS,
     "openblas()\n--\n\nOpenBLAS's description of itself; it is loaded if it has not been."},
    {0},
};
