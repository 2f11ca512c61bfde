#include "convert.h"

#include <stdarg.h>
#include <string.h>

/* An exception of specdec.errors, a new reference; NULL with another exception. The package exists whenever
 * its core is in use. */
static PyObject* error_type(const char* name) {
    PyObject* errors = PyImport_ImportModule("specdec.errors");
    PyObject* type = errors ? PyObject_GetAttrString(errors, name) : NULL;
    Py_XDECREF(errors);
    return type;
}

/* Set an exception of specdec.errors with the core's message. */
static PyObject* raise_named(const char* name) {
    PyObject* type = error_type(name);
    if (type != NULL) PyErr_SetString(type, sd_message());
    Py_XDECREF(type);
    return NULL;
}

PyObject* sd_take_exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

int sd_set_error(PyObject* type, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(type, format, arguments);
    va_end(arguments);
    return -1;
}

int sd_refuse(const char* format, ...) {
    PyObject* type = error_type("InputError");
    va_list arguments;
    va_start(arguments, format);
    if (type != NULL) PyErr_FormatV(type, format, arguments);
    va_end(arguments);
    Py_XDECREF(type);
    return -1;
}

PyObject* sd_raise(sd_status status) {
    PyObject* type = PyExc_RuntimeError;
    switch (status) {
    case SD_ERR_MEMORY: type = PyExc_MemoryError; break;
    case SD_ERR_VALUE:
    case SD_ERR_SHAPE:
    case SD_ERR_NOT_FINITE:
    case SD_ERR_CONTEXT: type = PyExc_ValueError; break;
    case SD_ERR_STATE:
    case SD_OK: break;
    case SD_ERR_OVERFLOW: return raise_named("NotFiniteError");
    case SD_ERR_SETTING: return raise_named("InputError");
    case SD_ERR_LIBRARY: return raise_named("MissingLibraryError");
    case SD_ERR_CALLBACK:
    case SD_ERR_INTERRUPTED: return NULL; /* the exception is already set */
    }
    PyErr_SetString(type, sd_message());
    return NULL;
}

int sd_no_memory(void) {
    PyErr_NoMemory();
    return -1;
}

int sd_passed(sd_status status) {
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

PyObject* sd_given(PyObject* object, sd_status status) {
    if (status == SD_OK) return object;
    Py_XDECREF(object);
    return sd_raise(status);
}

PyObject* sd_none_if(sd_status status) { return sd_given(Py_NewRef(Py_None), status); }

PyObject* sd_items_from(PyObject* object, const char* expected) {
    PyObject* items = PySequence_Tuple(object);
    if (items == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_SetString(PyExc_TypeError, expected);
    return items;
}

/* One item of a sequence as a number. Returns 0, or -1 with an exception. */
typedef int (*take_item)(PyObject* item, const char* name, Py_ssize_t i, void* numbers);

static int take_id(PyObject* item, const char* name, Py_ssize_t i, void* ids) {
    if (PyBool_Check(item))
        return sd_set_error(PyExc_TypeError, "%s[%zd] is a bool, expected an integer", name, i);
    PyObject* index = PyNumber_Index(item);
    int overflow = 0;
    long long value = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : -1;
    Py_XDECREF(index);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (overflow || value < INT32_MIN || value > INT32_MAX)
        return sd_set_error(PyExc_ValueError, "%s[%zd] does not fit 32 bits", name, i);
    ((int32_t*)ids)[i] = (int32_t)value;
    return 0;
}

static int take_float(PyObject* item, const char* name, Py_ssize_t i, void* numbers) {
    double value = ((double*)numbers)[i] = PyFloat_AsDouble(item);
    if (value != -1.0 || !PyErr_Occurred()) return 0;
    if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s[%zd] is not a number", name, i);
    return -1;
}

/* Numbers of `size` bytes from a sequence, in new PyMem memory; NULL with an exception. */
static void* numbers_from(PyObject* object, const char* name, const char* expected, size_t size,
                          take_item take, int* n) {
    PyObject* items = sd_items_from(object, expected);
    if (items == NULL) return NULL;
    Py_ssize_t n_items = PyTuple_GET_SIZE(items);
    void* numbers = n_items > INT32_MAX ? NULL : PyMem_Malloc(((size_t)n_items + 1) * size);
    int result = numbers == NULL ? sd_no_memory() : 0;
    for (Py_ssize_t i = 0; i < n_items && result == 0; i++)
        result = take(PyTuple_GET_ITEM(items, i), name, i, numbers);
    Py_DECREF(items);
    *n = (int)n_items;
    if (result == 0) return numbers;
    PyMem_Free(numbers);
    return NULL;
}

int sd_ids_from(PyObject* object, const char* name, int32_t** out, int* n) {
    *out = numbers_from(object, name, "expected a sequence of integers", sizeof **out, take_id, n);
    return *out == NULL ? -1 : 0;
}

int sd_optional_ids_from(PyObject* object, const char* name, int32_t** out, int* n) {
    *out = NULL, *n = 0;
    return object == NULL || object == Py_None ? 0 : sd_ids_from(object, name, out, n);
}

int sd_floats_from(PyObject* object, const char* name, double** out, int* n) {
    *out = numbers_from(object, name, "expected a sequence of numbers", sizeof **out, take_float, n);
    return *out == NULL ? -1 : 0;
}

PyObject* sd_new_array(const char* dtype, Py_ssize_t n_rows, Py_ssize_t n_cols, void** data) {
    PyObject* numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL) return NULL;
    PyObject* array = n_cols < 0 ? PyObject_CallMethod(numpy, "empty", "ns", n_rows, dtype)
                                 : PyObject_CallMethod(numpy, "empty", "(nn)s", n_rows, n_cols, dtype);
    Py_DECREF(numpy);
    if (array == NULL) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    *data = view.buf;
    PyBuffer_Release(&view); /* NumPy keeps the memory as long as the array */
    return array;
}

PyObject* sd_array_of(const char* dtype, const void* values, size_t size, Py_ssize_t n_rows,
                      Py_ssize_t n_cols) {
    void* out;
    PyObject* array = sd_new_array(dtype, n_rows, n_cols, &out);
    if (array != NULL) memcpy(out, values, size * (size_t)n_rows * (size_t)(n_cols < 0 ? 1 : n_cols));
    return array;
}

PyObject* sd_list_of(int n, PyObject* (*make)(const void* context, int i), const void* context) {
    PyObject* list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject* item = make(context, i);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject* int_at(const void* values, int i) { return PyLong_FromLong(((const int32_t*)values)[i]); }
static PyObject* float_at(const void* values, int i) {
    return PyFloat_FromDouble(((const double*)values)[i]);
}

PyObject* sd_list_of_ints(const int32_t* values, int n) { return sd_list_of(n, int_at, values); }
PyObject* sd_list_of_floats(const double* values, int n) { return sd_list_of(n, float_at, values); }
PyObject* sd_tuple_of_ints(const int32_t* values, int n) { return sd_tuple_from(sd_list_of_ints(values, n)); }
PyObject* sd_tuple_of_floats(const double* values, int n) {
    return sd_tuple_from(sd_list_of_floats(values, n));
}

PyObject* sd_tuple_from(PyObject* list) {
    PyObject* tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

PyObject* sd_reals_from(PyObject* object) {
    PyObject* numpy = PyImport_ImportModule("numpy");
    PyObject* array = numpy ? PyObject_CallMethod(numpy, "asarray", "(O)", object) : NULL;
    PyObject* dtype = array ? PyObject_GetAttrString(array, "dtype") : NULL;
    PyObject* attribute = dtype ? PyObject_GetAttrString(dtype, "kind") : NULL;
    const char* letter = attribute ? PyUnicode_AsUTF8(attribute) : NULL;
    PyObject* reals = NULL;
    if (letter != NULL && strchr("biuf", letter[0]) == NULL)
        PyErr_SetString(PyExc_TypeError, "expected real numbers");
    else if (letter != NULL)
        reals = PyObject_CallMethod(numpy, "ascontiguousarray", "Os", array, "float64");
    Py_XDECREF(attribute);
    Py_XDECREF(dtype);
    Py_XDECREF(array);
    Py_XDECREF(numpy);
    return reals;
}

PyObject* sd_shown(PyObject* value) {
    PyObject* errors = PyImport_ImportModule("specdec.errors");
    PyObject* text = errors ? PyObject_CallMethod(errors, "shown", "(O)", value) : NULL;
    Py_XDECREF(errors);
    return text;
}

int sd_word_index(const char* word, const char* const* names, int n) {
    int i = 0;
    while (i < n && strcmp(names[i], word) != 0) i++;
    return i;
}

int sd_is_misfit(void) {
    return PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
           PyErr_ExceptionMatches(PyExc_ArithmeticError) || PyErr_ExceptionMatches(PyExc_IndexError) ||
           PyErr_ExceptionMatches(PyExc_RecursionError);
}

int sd_view(PyObject* object, const char* name, char format, int n_dims, Py_buffer* view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) return -1;
    if (view->ndim != n_dims || view->format == NULL || view->format[0] != format ||
        view->format[1] != '\0') {
        const char* type = format == 'd'   ? "float64"
                           : format == 'f' ? "float32"
                           : format == 'i' ? "int32"
                                           : "int64";
        PyErr_Format(PyExc_ValueError, "%s: expected a C-contiguous array of %d dimensions and type %s", name,
                     n_dims, type);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static int biases_from(PyObject* object, const char* name, sd_biases* of) {
    if (!PyDict_Check(object)) return sd_set_error(PyExc_TypeError, "%s: expected a dict", name);
    PyObject *tokens = PyDict_Keys(object), *biases = PyDict_Values(object); /* private lists */
    double* numbers = NULL;
    int n, result = -1;
    if (tokens != NULL && biases != NULL && sd_ids_from(tokens, name, &of->tokens, &of->n) == 0)
        result = sd_floats_from(biases, name, &numbers, &n);
    if (result == 0 && (of->values = PyMem_Malloc(((size_t)n + 1) * sizeof *of->values)) == NULL)
        result = sd_no_memory();
    for (int i = 0; result == 0 && i < n; i++) of->values[i] = (float)numbers[i];
    PyMem_Free(numbers);
    Py_XDECREF(tokens);
    Py_XDECREF(biases);
    return result;
}

/* Append a sequence of ids. */
static int append_sequence(PyObject* object, const char* name, int least, sd_sequences* of) {
    int32_t* ids;
    int n, before = of->n > 0 ? of->ends[of->n - 1] : 0;
    if (sd_ids_from(object, name, &ids, &n) < 0) return -1;
    int32_t* tokens = PyMem_Realloc(of->tokens, (size_t)(before + n + 1) * sizeof *tokens);
    if (tokens != NULL) {
        of->tokens = tokens;
        memcpy(tokens + before, ids, (size_t)n * sizeof *ids);
        of->ends[of->n++] = before + n;
    }
    PyMem_Free(ids);
    if (tokens == NULL) return sd_no_memory();
    return n >= least ? 0 : sd_refuse("%s: expected an id in each sequence", name);
}

int sd_sequences_from(PyObject* object, const char* name, int least, sd_sequences* of) {
    PyObject* items = sd_items_from(object, "expected sequences of integers");
    if (items == NULL) return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    of->ends = PyMem_Calloc((size_t)n + 1, sizeof *of->ends);
    int result = of->ends ? 0 : sd_no_memory();
    for (Py_ssize_t i = 0; i < n && result == 0; i++)
        result = append_sequence(PyTuple_GET_ITEM(items, i), name, least, of);
    Py_DECREF(items);
    return result;
}

static const sd_field_type field_types[] = {[SD_SAMPLING_REAL] = SD_FIELD_REAL,
                                            [SD_SAMPLING_INTEGER] = SD_FIELD_INTEGER,
                                            [SD_SAMPLING_BIASES] = SD_FIELD_OBJECT,
                                            [SD_SAMPLING_SEQUENCES] = SD_FIELD_OBJECT};

int sd_sampling_from(PyObject* mapping, const char* name, sd_sampling* sampling) {
    PyObject* objects[SD_N_SAMPLING_FIELDS] = {0}; /* of fields that are arrays; borrowed */
    sd_field fields[SD_N_SAMPLING_FIELDS];
    *sampling = sd_sampling_neutral;
    if (!PyDict_Check(mapping)) return sd_set_error(PyExc_TypeError, "%s: expected a dict", name);
    for (int i = 0; i < SD_N_SAMPLING_FIELDS; i++) {
        const sd_sampling_field* row = &sd_sampling_fields[i];
        void* value = (char*)sampling + row->offset;
        sd_field_type type = field_types[row->type];
        fields[i] = (sd_field){row->name, type, i == 0 ? SD_FIELD_REQUIRED : SD_FIELD_OPTIONAL,
                               type == SD_FIELD_OBJECT ? &objects[i] : value};
    }
    PyObject* own = PyDict_Copy(mapping);
    int result = own ? SD_FIELDS_FROM(own, name, fields) : -1;
    for (int i = 0; i < SD_N_SAMPLING_FIELDS && result == 0; i++) {
        const sd_sampling_field* row = &sd_sampling_fields[i];
        void* value = (char*)sampling + row->offset;
        if (objects[i] == NULL) continue;
        result = row->type == SD_SAMPLING_BIASES ? biases_from(objects[i], row->name, value)
                                                 : sd_sequences_from(objects[i], row->name, 1, value);
    }
    Py_XDECREF(own);
    if (result < 0) sd_sampling_free(sampling);
    return result;
}

void sd_sampling_free(sd_sampling* sampling) {
    for (int i = 0; i < SD_N_SAMPLING_FIELDS; i++) {
        void* value = (char*)sampling + sd_sampling_fields[i].offset;
        sd_biases* biases = value;
        sd_sequences* sequences = value;
        if (sd_sampling_fields[i].type == SD_SAMPLING_BIASES)
            PyMem_Free(biases->tokens), PyMem_Free(biases->values);
        if (sd_sampling_fields[i].type == SD_SAMPLING_SEQUENCES)
            PyMem_Free(sequences->tokens), PyMem_Free(sequences->ends);
    }
    *sampling = (sd_sampling){0};
}
