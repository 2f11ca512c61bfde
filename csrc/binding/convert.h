/* Between Python objects and the core's values. */
#ifndef SD_CONVERT_H
#define SD_CONVERT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "config.h"
#include "distribution.h"
#include "gil.h"

/* Set the Python exception of a status and return NULL; the only place where one becomes the other. */
PyObject* sd_raise(sd_status status);

/* 0, None, or the object, whose reference is taken, if the status is SD_OK; else its exception is set and
 * they return -1 or NULL. */
int sd_passed(sd_status status);
PyObject* sd_none_if(sd_status status);
PyObject* sd_given(PyObject* object, sd_status status);

/* The exception that is set, with its traceback, which is set no longer: a new reference. */
PyObject* sd_take_exception(void);

/* Set InputError, for what a caller has given, with a message formatted as by PyErr_Format. Returns -1. */
int sd_refuse(const char* format, ...);

/* Set MemoryError. Returns -1. */
int sd_no_memory(void);

/* A new tuple of the items of an iterable. To convert an item may run the caller's code (__index__,
 * __float__), which may change the list that the items come from: the tuple stays as it is and owns them.
 * NULL with an exception, `expected` where the object is no iterable. */
PyObject* sd_items_from(PyObject* object, const char* expected);

/* Integers of a sequence or 1-d array, as int32; booleans are refused. *out is owned by the caller
 * (PyMem_Free), also when *n is 0; `name` is for messages. Returns 0, or -1 with an exception. */
int sd_ids_from(PyObject* object, const char* name, int32_t** out, int* n);

/* The same of an argument that may be None, or NULL, not given: *out is then NULL. */
int sd_optional_ids_from(PyObject* object, const char* name, int32_t** out, int* n);

/* Numbers of a sequence, as double, in the same way. */
int sd_floats_from(PyObject* object, const char* name, double** out, int* n);

/* A new NumPy array of shape [n_rows, n_cols] (n_cols < 0: one dimension) and its memory, which
 * stays valid while the array lives. dtype is "float32", "float64", "int32" or "bool". NULL with an
 * exception. */
PyObject* sd_new_array(const char* dtype, Py_ssize_t n_rows, Py_ssize_t n_cols, void** data);

/* A new NumPy array with a copy of values [n_rows, n_cols] (n_cols < 0: [n_rows]), `size` bytes each. NULL
 * with an exception. */
PyObject* sd_array_of(const char* dtype, const void* values, size_t size, Py_ssize_t n_rows,
                      Py_ssize_t n_cols);

/* A new list of n items, of which make(context, i) makes each: a new reference, or NULL with an exception. */
PyObject* sd_list_of(int n, PyObject* (*make)(const void* context, int i), const void* context);

/* New lists and tuples of values [n], borrowed for the call. NULL with an exception. */
PyObject* sd_list_of_ints(const int32_t* values, int n);
PyObject* sd_list_of_floats(const double* values, int n);
PyObject* sd_tuple_of_ints(const int32_t* values, int n);
PyObject* sd_tuple_of_floats(const double* values, int n);

/* A new tuple of a list, whose reference is taken; NULL with an exception, as of NULL. */
PyObject* sd_tuple_from(PyObject* list);

/* Numbers of any shape as a new contiguous array of float64, for sd_view. Text and complex numbers are
 * refused, which NumPy would convert. NULL with an exception. */
PyObject* sd_reals_from(PyObject* object);

/* How a value looks in a message: a new str (specdec.errors.shown). NULL with an exception. */
PyObject* sd_shown(PyObject* value);

/* Is the exception that is set one by which Python and NumPy say that a value is not of the type, the size or
 * the shape that was asked for? */
int sd_is_misfit(void);

/* A C-contiguous view of an array argument; release with PyBuffer_Release. n_dims and the item format
 * ('d' and 'f', 'i', 'l' or 'q' of 32 and 64 bits) must match. Returns 0, or -1 with an exception. */
int sd_view(PyObject* object, const char* name, char format, int n_dims, Py_buffer* view);

/* A dict with the keys of the table of sampling.h; temperature has no default. Biases are a dict {token:
 * bias}, sequences a list of lists of ids. The arrays of *sampling are the caller's, for sd_sampling_free.
 * Returns 0, or -1 with an exception and nothing owned. */
int sd_sampling_from(PyObject* mapping, const char* name, sd_sampling* sampling);
void sd_sampling_free(sd_sampling* sampling);

/* A config dict that no caller has (the caller's own copy) → sd_config, whose arrays the caller frees by
 * sd_config_free. What may be absent has the value of a plain decoder. Returns 0, or -1 with an exception and
 * nothing owned. */
int sd_config_from(PyObject* dict, sd_config* config);
void sd_config_free(sd_config* config);

#endif
