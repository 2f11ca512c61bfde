/* Thresholds for Python, and the measurements they are chosen by. */
#include "clock.h"
#include "kernels.h"
#include "module.h"

/* {name: [one for each format]} */
static PyObject* dict_of(const sd_thresholds* thresholds) {
    sd_thresholds copy = *thresholds;
    PyObject* dict = PyDict_New();
    for (int i = 0; dict != NULL && i < SD_N_THRESHOLDS; i++) {
        const sd_threshold_field* field = &sd_threshold_fields[i];
        PyObject* list = sd_list_of_ints(sd_threshold_values(&copy, field), SD_N_FORMATS);
        if (list == NULL || PyDict_SetItemString(dict, field->name, list) < 0) Py_CLEAR(dict);
        Py_XDECREF(list);
    }
    return dict;
}

PyObject* sd_used_thresholds(PyObject* module, PyObject* ignored) { return dict_of(&sd_thresholds_used); }

PyObject* sd_own_thresholds(PyObject* module, PyObject* ignored) {
    return dict_of(&sd_kernels_get()->thresholds);
}

/* One field, [SD_N_FORMATS] integers. Returns 0, or -1 with an exception. */
static int read_values(PyObject* list, const char* name, int* to) {
    int32_t* values = NULL;
    int n, read = sd_ids_from(list, name, &values, &n);
    if (read == 0 && n != SD_N_FORMATS)
        read = sd_refuse("%s has %d numbers, expected %d, one for each number format", name, n, SD_N_FORMATS);
    for (int f = 0; read == 0 && f < SD_N_FORMATS; f++) to[f] = values[f];
    PyMem_Free(values);
    return read;
}

PyObject* sd_set_thresholds(PyObject* module, PyObject* argument) {
    PyObject* lists[SD_N_THRESHOLDS];
    sd_field fields[SD_N_THRESHOLDS];
    for (int i = 0; i < SD_N_THRESHOLDS; i++)
        fields[i] =
            (sd_field){sd_threshold_fields[i].name, SD_FIELD_OBJECT, SD_FIELD_REQUIRED, (void*)&lists[i]};
    PyObject* dict = PyDict_New(); /* a private copy */
    sd_thresholds thresholds;
    int read = dict == NULL || PyDict_Update(dict, argument) < 0 ? -1 : 0;
    if (read == 0) read = SD_FIELDS_FROM(dict, "thresholds", fields);
    for (int i = 0; read == 0 && i < SD_N_THRESHOLDS; i++)
        read =
            read_values(lists[i], fields[i].name, sd_threshold_values(&thresholds, &sd_threshold_fields[i]));
    Py_XDECREF(dict);
    if (read < 0) return NULL;
    return sd_none_if(sd_thresholds_set(&thresholds));
}

PyObject* sd_processor(PyObject* module, PyObject* ignored) {
    char name[SD_PROCESSOR_NAME];
    sd_processor_name(name);
    return PyUnicode_DecodeLatin1(name, (Py_ssize_t)strlen(name), NULL);
}

/* Drop n bytes at p from all caches, so that the next read of them comes from memory. */
static void drop_from_caches(const char* p, size_t n) {
#if defined(__x86_64__) || defined(__i386__)
    for (size_t i = 0; i < n; i += 64) __builtin_ia32_clflush(p + i);
    __builtin_ia32_mfence();
#elif defined(__aarch64__)
    for (size_t i = 0; i < n; i += 64) __asm__ volatile("dc civac, %0" : : "r"(p + i) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
#endif
}

/* Seconds to multiply n_rows equal rows with n_panels panels, one after the other; panels that are not near
 * are read from memory. */
static sd_status time_panels(sd_format format, int n_rows, int n_in, const char* panels, size_t n_panels,
                             int near, double* seconds) {
    sd_arena arena = {0};
    float *row, *y;
    void* prepared;
    sd_status status = SD_ARENA_BUILD(
        &arena, (row = sd_arena_take(&arena, (size_t)n_in, sizeof *row),
                 y = sd_arena_take(&arena, (size_t)n_rows * SD_PANEL, sizeof *y),
                 prepared = sd_arena_take(&arena, (size_t)n_rows, sd_prepared_bytes((size_t)n_in))));
    if (status == SD_OK) {
        const sd_kernels* k = sd_kernels_get();
        for (int i = 0; i < n_in; i++) row[i] = 1.0f;
        k->prepare[sd_rows_of(format)]((sd_part){n_rows, 0, n_rows, 0, n_in}, row, 0, n_in, prepared);
        size_t bytes = sd_panel_bytes(format, (size_t)n_in);
        if (!near) drop_from_caches(panels, n_panels * bytes);
        double begin = sd_now();
        for (size_t p = 0; p < n_panels; p++)
            k->panel[format](n_rows, prepared, panels + p * bytes, n_in, near, y, SD_PANEL);
        *seconds = sd_now() - begin;
    }
    sd_arena_free(&arena);
    return status;
}

static PyObject* format_name(const void* ignored, int format) {
    return PyUnicode_FromString(sd_format_names[format]);
}

PyObject* sd_panel_formats(PyObject* module, PyObject* ignored) {
    return sd_tuple_from(sd_list_of(SD_N_FORMATS, format_name, NULL));
}

PyObject* sd_panel_seconds(PyObject* module, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"panels", "dtype", "n_rows", "n_in", "near", NULL};
    Py_buffer panels;
    PyObject* argument;
    const char* dtype;
    int n_rows, n_in, near;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$siip", names, &argument, &dtype, &n_rows, &n_in, &near))
        return NULL;
    sd_format format = sd_word_index(dtype, sd_format_names, SD_N_FORMATS);
    if (format == SD_N_FORMATS)
        return PyErr_Format(PyExc_ValueError, "dtype is \"%s\", expected one of panel_formats()", dtype);
    if (n_rows < 1 || n_rows > 1 << 12 || n_in < 1 || n_in > 1 << 16)
        return PyErr_Format(PyExc_ValueError, "n_rows is %d and n_in %d, expected 1 to 4096 and 1 to 65536",
                            n_rows, n_in);
    if (sd_view(argument, "panels", 'f', 1, &panels) < 0) return NULL;
    size_t n_panels = (size_t)panels.len / sd_panel_bytes(format, (size_t)n_in);
    double seconds = 0.0;
    sd_status status;
    SD_WITHOUT_GIL(status = time_panels(format, n_rows, n_in, panels.buf, n_panels, near, &seconds));
    PyBuffer_Release(&panels);
    return status == SD_OK ? PyFloat_FromDouble(seconds) : sd_raise(status);
}
