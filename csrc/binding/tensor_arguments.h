/* Tensors that Python hands over: (name, array, format) tuples. */
#ifndef SD_TENSOR_ARGUMENTS_H
#define SD_TENSOR_ARGUMENTS_H

#include "convert.h"
#include "pack.h"

/* Gives weights one tensor by name: a matrix [n_rows, n_cols], or a vector with n_cols 0. Called without the
 * GIL. */
typedef sd_status (*sd_tensor_setter)(void* weights, const char* name, const sd_source* source, int n_rows,
                                      int n_cols, int n_threads);

/* Hand each tensor of an iterable to `set`. The arrays are read meanwhile and not kept. Returns 0, or -1 with
 * an exception. */
int sd_set_tensors(PyObject* tensors, sd_tensor_setter set, void* weights, int n_threads);

/* What the types of a learnt draft's weights are made with: (config, tensors, *, tokens=None, dtype='f32',
 * n_threads=1). All borrowed. */
typedef struct sd_weights_arguments {
    PyObject *config, *tensors, *tokens;
    sd_format format; /* of dtype */
    int n_threads;
} sd_weights_arguments;

/* Returns 0, or -1 with an exception. */
int sd_weights_arguments_from(PyObject* args, PyObject* kwargs, sd_weights_arguments* arguments);

/* The target's token of each of the n_draft tokens of a draft: a sequence, copied into memory that the caller
 * gives back by PyMem_Free; NULL for NULL or None. Returns 0, or -1 with an exception. */
int sd_draft_tokens_from(PyObject* argument, int n_draft, int32_t** tokens);

#endif
