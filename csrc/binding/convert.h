/* Conversions between Python objects and values of the core. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "config.h"
#include "distribution.h"
#include "gil.h"
#include "pack.h"

/* Set the Python exception of a status and return NULL; all statuses are translated here. */
PyObject* sd_raise(sd_status status);

/* Return 0, None or the object (stolen) if the status is SD_OK; else set its exception and return -1 or
 * NULL. */
int sd_passed(sd_status status);
PyObject* sd_none_if(sd_status status);
PyObject* sd_given(PyObject* object, sd_status status);

/* Take the current exception with its traceback and clear it: a new reference. */
PyObject* sd_take_exception(void);

/* Set InputError, for a bad argument, with a message as by PyErr_Format. Returns -1. */
int sd_refuse(const char* format, ...);

/* Set another exception in the same way. Returns -1. */
int sd_set_error(PyObject* type, const char* format, ...);

/* Set MemoryError. Returns -1. */
int sd_no_memory(void);

/* A new tuple of the items of an iterable. Converting an item may run user code (__index__, __float__) that
 * changes the list they come from; the tuple stays unchanged and owns them. NULL with an exception,
 * `expected` if the object is not iterable. */
PyObject* sd_items_from(PyObject* object, const char* expected);

/* Integers of a sequence or 1-d array, as int32; booleans are rejected. *out is owned by the caller
 * (PyMem_Free), also when *n is 0; `name` is for messages. Returns 0, or -1 with an exception. */
int sd_ids_from(PyObject* object, const char* name, int32_t** out, int* n);

/* The same for an argument that may be None or NULL (not given): *out is then NULL. */
int sd_optional_ids_from(PyObject* object, const char* name, int32_t** out, int* n);

/* Numbers of a sequence, as double, in the same way. */
int sd_floats_from(PyObject* object, const char* name, double** out, int* n);

/* Sequences of at least `least` integers each, concatenated. The arrays of *sequences, zeros before, are the
 * caller's (PyMem_Free), also after a failure. Returns 0, or -1 with an exception. */
int sd_sequences_from(PyObject* object, const char* name, int least, sd_sequences* sequences);

/* A new NumPy array of shape [n_rows, n_cols] (n_cols < 0: one dimension) and its memory, which stays valid
 * while the array lives. dtype is "float32", "float64", "int32" or "bool". NULL with an exception. */
PyObject* sd_new_array(const char* dtype, Py_ssize_t n_rows, Py_ssize_t n_cols, void** data);

/* A new NumPy array with a copy of values [n_rows, n_cols] (n_cols < 0: [n_rows]), `size` bytes each. NULL
 * with an exception. */
PyObject* sd_array_of(const char* dtype, const void* values, size_t size, Py_ssize_t n_rows,
                      Py_ssize_t n_cols);

/* A new list of n items, each returned by make(context, i): a new reference, or NULL with an exception. */
PyObject* sd_list_of(int n, PyObject* (*make)(const void* context, int i), const void* context);

/* New lists and tuples of values [n], borrowed for the call. NULL with an exception. */
PyObject* sd_list_of_ints(const int32_t* values, int n);
PyObject* sd_list_of_floats(const double* values, int n);
PyObject* sd_tuple_of_ints(const int32_t* values, int n);
PyObject* sd_tuple_of_floats(const double* values, int n);

/* A new tuple of a list (stolen); NULL with an exception, also for NULL. */
PyObject* sd_tuple_from(PyObject* list);

/* Numbers of any shape as a new contiguous array of float64, for sd_view. Rejects text and complex numbers,
 * which NumPy would convert. NULL with an exception. */
PyObject* sd_reals_from(PyObject* object);

/* A value as shown in messages: a new str (specdec.errors.shown). NULL with an exception. */
PyObject* sd_shown(PyObject* value);

/* The index of a word among names [n]; n if absent. */
int sd_word_index(const char* word, const char* const* names, int n);

/* Does the current exception mean a wrong type, size or shape, as raised by Python and NumPy? */
int sd_is_misfit(void);

/* A C-contiguous view of an array argument; release with PyBuffer_Release. n_dims and the item format
 * ('d' and 'f', 'i', 'l' or 'q' of 32 and 64 bits) must match. Returns 0, or -1 with an exception. */
int sd_view(PyObject* object, const char* name, char format, int n_dims, Py_buffer* view);

/* A dict with the keys of the table of sampling.h; temperature has no default. Biases are a dict {token:
 * bias}, sequences a list of lists of ids. The arrays of *sampling are the caller's, for sd_sampling_free.
 * Returns 0, or -1 with an exception and nothing owned. */
int sd_sampling_from(PyObject* mapping, const char* name, sd_sampling* sampling);
void sd_sampling_free(sd_sampling* sampling);

/* Read a private config dict (the caller's own copy) into an sd_config; free its arrays with sd_config_free.
 * Absent optional fields have the values of a plain decoder. Returns 0, or -1 with an exception and nothing
 * owned. */
int sd_config_from(PyObject* dict, sd_config* config);
void sd_config_free(sd_config* config);

/* Tensors passed from Python: (name, array, format) tuples. */

/* Set one tensor of the weights by name: a matrix [n_rows, n_cols], or a vector with n_cols 0. Called without
 * the GIL. */
typedef sd_status (*sd_tensor_setter)(void* weights, const char* name, const sd_source* source, int n_rows,
                                      int n_cols, int n_threads);

/* Pass each tensor of an iterable to `set`. The arrays are read and not kept. Returns 0, or -1 with an
 * exception. */
int sd_set_tensors(PyObject* tensors, sd_tensor_setter set, void* weights, int n_threads);

/* Arguments of the types of a learned draft's weights: (config, tensors, *, tokens=None, dtype='f32',
 * n_threads=1). All borrowed. */
typedef struct sd_weights_arguments {
    PyObject *config, *tensors, *tokens;
    sd_format format; /* of dtype */
    int n_threads;
} sd_weights_arguments;

/* Returns 0, or -1 with an exception. */
int sd_weights_arguments_from(PyObject* args, PyObject* kwargs, sd_weights_arguments* arguments);

/* The target's token of each of the n_draft tokens of a draft: a copy of a sequence that the caller frees
 * with PyMem_Free; NULL for NULL or None. Returns 0, or -1 with an exception. */
int sd_draft_tokens_from(PyObject* argument, int n_draft, int32_t** tokens);

/* Named arguments, by a table of fields (fields.c): name, type and destination. */

/* The Python type of a field; SD_C_… is the C type of its value. */
typedef enum sd_field_type {
    SD_FIELD_INTEGER, /* int, or an object with __index__ */
    SD_FIELD_REAL,    /* float, or an object with __float__ */
    SD_FIELD_FLAG,    /* truth value of any object: 0 or 1 */
    SD_FIELD_WORD,    /* str without a null character, borrowed from the object */
    SD_FIELD_OBJECT,  /* any object, borrowed from the dict */
} sd_field_type;

#define SD_C_INTEGER int
#define SD_C_REAL double
#define SD_C_FLAG int
#define SD_C_WORD const char*
#define SD_C_OBJECT PyObject*

typedef enum sd_field_need { SD_FIELD_REQUIRED, SD_FIELD_OPTIONAL } sd_field_need;

typedef struct sd_field {
    const char* name;
    sd_field_type type;
    sd_field_need need;
    /* destination; unchanged if an optional field is absent */
    void* value;
} sd_field;

/* Entries of an array of fields: required ones, and optional ones. */
#define SD_INTEGER(name, value) {name, SD_FIELD_INTEGER, SD_FIELD_REQUIRED, value}
#define SD_FLAG(name, value) {name, SD_FIELD_FLAG, SD_FIELD_REQUIRED, value}
#define SD_OBJECT(name, value) {name, SD_FIELD_OBJECT, SD_FIELD_REQUIRED, value}
#define SD_OPTIONAL(type, name, value) {name, SD_FIELD_##type, SD_FIELD_OPTIONAL, value}

/* Read the fields [n] of a dict, which has no other keys. Converting a value may run user code, so the dict
 * must be a private copy; it owns what is borrowed from it. `of` is for messages. Returns 0, or -1 with an
 * exception: TypeError if a field is missing, unknown or of another type. */
int sd_fields_from(PyObject* dict, const char* of, const sd_field* fields, int n);

/* The same for any mapping, which is copied. */
int sd_fields_from_mapping(PyObject* mapping, const char* of, const sd_field* fields, int n);

/* Both for an array of fields. */
#define SD_FIELDS_FROM(dict, of, fields) \
    sd_fields_from(dict, of, fields, (int)(sizeof(fields) / sizeof *(fields)))
#define SD_FIELDS_FROM_MAPPING(mapping, of, fields) \
    sd_fields_from_mapping(mapping, of, fields, (int)(sizeof(fields) / sizeof *(fields)))
