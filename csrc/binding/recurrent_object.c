/* Recurrent: the weights of a recurrent draft. */
#include "recurrent.h"

#include "fields.h"
#include "interrupt.h"
#include "module.h"
#include "tensor_arguments.h"
#include "weights_getters.h"

static sd_status set_tensor(void* recurrent, const char* name, const sd_source* source, int n_rows,
                            int n_cols, int n_threads) {
    return sd_tensor_list_set(&((sd_recurrent*)recurrent)->tensors, name, source, n_rows, n_cols, n_threads);
}

/* {n_vocab, n_draft_vocab, d_embed, d_hidden, n_layers}. Returns 0, or -1 with an exception. */
static int shape_from(PyObject* mapping, sd_recurrent_shape* shape) {
    const sd_field fields[] = {
        {"n_vocab", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape->n_vocab},
        {"n_draft_vocab", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape->n_draft_vocab},
        {"d_embed", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape->d_embed},
        {"d_hidden", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape->d_hidden},
        {"n_layers", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape->n_layers},
    };
    return SD_FIELDS_FROM_MAPPING(mapping, "Recurrent", fields);
}

/* A network of the arguments without its tensors. Returns 0, or -1 with an exception. */
static int create(const sd_weights_arguments* given, sd_recurrent** recurrent) {
    sd_recurrent_shape shape;
    int32_t* ids;
    if (shape_from(given->config, &shape) < 0) return -1;
    if (sd_draft_tokens_from(given->tokens, shape.n_draft_vocab, &ids) < 0) return -1;
    sd_status status = sd_recurrent_create(&shape, given->format, ids, recurrent);
    PyMem_Free(ids);
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_recurrent_object* self = (sd_recurrent_object*)object;
    sd_weights_arguments given;
    int result = -1;
    if (sd_weights_arguments_from(args, kwargs, &given) < 0) return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->recurrent != NULL, "Recurrent") < 0) return -1;
    sd_recurrent* recurrent = NULL;
    sd_status status = SD_OK;
    if (create(&given, &recurrent) == 0)
        result = sd_set_tensors(given.tensors, set_tensor, recurrent, given.n_threads);
    if (result == 0 && (status = sd_tensor_list_check(&recurrent->tensors)) != SD_OK) {
        sd_raise(status);
        result = -1;
    }
    if (result == 0)
        self->recurrent = recurrent;
    else
        sd_recurrent_free(recurrent);
    sd_exclusive_leave(&self->exclusive);
    return result;
}

static int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    sd_recurrent_free(((sd_recurrent_object*)object)->recurrent);
    type->tp_free(object);
    Py_DECREF(type);
}

const sd_recurrent* sd_recurrent_from(PyObject* object, const char* name) {
    const sd_recurrent* recurrent = ((sd_recurrent_object*)object)->recurrent;
    if (recurrent == NULL) PyErr_Format(PyExc_ValueError, "%s: the Recurrent has not been initialised", name);
    return recurrent;
}

/* The logits [n, n_vocab] after each of n tokens of a text. */
static sd_status read_text(const sd_recurrent* r, const int32_t* ids, int n, float* logits) {
    sd_arena arena = {0};
    float* state;
    sd_recurrent_scratch scratch;
    sd_failure failure = {0};
    sd_status status =
        SD_ARENA_BUILD(&arena, (state = sd_arena_take(&arena, sd_recurrent_state_size(r), sizeof *state),
                                scratch = sd_recurrent_scratch_take(&arena, r, 1, 1)));
    for (int i = 0; i < n && status == SD_OK; i++, logits += r->shape.n_vocab) {
        const sd_recurrent_step step = {ids[i], state, state, &failure};
        status = sd_interrupted();
        if (status == SD_OK && (ids[i] < 0 || ids[i] >= r->shape.n_vocab))
            status = sd_fail(SD_ERR_VALUE, "ids[%d] is %d, expected 0 to %d", i, (int)ids[i],
                             r->shape.n_vocab - 1);
        if (status != SD_OK) break;
        sd_recurrent_advance(r, &scratch, &step, 1);
        sd_recurrent_predict(r, &scratch, &step, 1, logits, r->shape.n_vocab);
        if (failure.status != SD_OK) status = sd_fail(failure.status, "%s", failure.message);
    }
    sd_arena_free(&arena);
    return status;
}

static PyObject* logits(PyObject* object, PyObject* argument) {
    const sd_recurrent* recurrent = sd_recurrent_from(object, "self");
    int32_t* ids;
    int n;
    float* rows;
    if (recurrent == NULL || sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    PyObject* array = sd_new_array("float32", n, recurrent->shape.n_vocab, (void**)&rows);
    sd_status status = SD_OK;
    if (array != NULL) {
        PyThreadState* saved_thread;
        sd_gil_release(&saved_thread);
        status = read_text(recurrent, ids, n, rows);
        sd_gil_take(&saved_thread);
    }
    PyMem_Free(ids);
    if (status == SD_OK) return array;
    Py_XDECREF(array);
    return sd_raise(status);
}

static sd_weights_figures figures(PyObject* object) {
    const sd_recurrent* recurrent = ((sd_recurrent_object*)object)->recurrent;
    if (recurrent == NULL) return (sd_weights_figures){0};
    return (sd_weights_figures){1, sd_format_names[recurrent->format], recurrent->arena.size,
                                sd_tensor_list_count(&recurrent->tensors)};
}

static sd_weights_type weights_type = {figures};

static PyMethodDef methods[] = {
    {"logits", logits, METH_O,
     "logits($self, ids, /)\n--\n\nWhat follows each token of a text, float32 [len(ids), n_vocab]."},
    {0},
};

static PyGetSetDef getters[] = {
    SD_GET_DTYPE(weights_type),
    SD_GET_N_BYTES(weights_type),
    SD_GET_N_PARAMETERS(weights_type),
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Recurrent(config, tensors, *, tokens=None, dtype='f32', n_threads=1)\n--\n\n"
     "The weights of a recurrent draft, immutable."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_getset, getters},
    {Py_tp_methods, methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_recurrent_spec = {
    .name = "specdec._core.Recurrent",
    .basicsize = sizeof(sd_recurrent_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
