/* Heads: what predicts tokens from a target's hidden states, immutable. */
#include "fields.h"
#include "module.h"
#include "tensor_arguments.h"
#include "weights_getters.h"

static sd_status set_tensor(void* heads, const char* name, const sd_source* source, int n_rows, int n_cols,
                            int n_threads) {
    return sd_heads_set(heads, name, source, n_rows, n_cols, n_threads);
}

/* The configuration of a mapping. Returns 0, or -1 with an exception. */
static int config_from(PyObject* mapping, sd_heads_config* c) {
    const sd_field fields[] = {{"n_heads", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &c->n_heads},
                               {"n_blocks", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &c->n_blocks},
                               {"d_model", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &c->d_model},
                               {"n_vocab", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &c->n_vocab},
                               {"n_draft_vocab", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &c->n_draft_vocab},
                               {"see_guesses", SD_FIELD_FLAG, SD_FIELD_REQUIRED, &c->see_guesses},
                               {"shared_output", SD_FIELD_FLAG, SD_FIELD_REQUIRED, &c->shared_output}};
    return SD_FIELDS_FROM_MAPPING(mapping, "Heads", fields);
}

/* Heads of a configuration and their tokens, an argument or None. Returns 0, or -1 with an exception. */
static int create(const sd_heads_config* c, PyObject* argument, sd_heads** heads) {
    int32_t* tokens;
    if (sd_draft_tokens_from(argument, c->n_draft_vocab, &tokens) < 0) return -1;
    sd_status status = sd_heads_create(c, tokens, heads);
    PyMem_Free(tokens);
    if (status == SD_OK) return 0;
    sd_raise(status);
    return -1;
}

static int init(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_heads_object* self = (sd_heads_object*)object;
    sd_weights_arguments given;
    if (sd_weights_arguments_from(args, kwargs, &given) < 0) return -1;
    sd_heads_config config = {.format = given.format};
    if (config_from(given.config, &config) < 0) return -1;
    if (sd_exclusive_enter_init(&self->exclusive, self->heads != NULL, "Heads") < 0) return -1;
    sd_heads* heads = NULL;
    sd_status status;
    if (create(&config, given.tokens, &heads) < 0) goto fail;
    if (sd_set_tensors(given.tensors, set_tensor, heads, given.n_threads) < 0) goto fail;
    if ((status = sd_heads_finish(heads)) != SD_OK) {
        sd_raise(status);
        goto fail;
    }
    self->heads = heads;
    sd_exclusive_leave(&self->exclusive);
    return 0;
fail:
    sd_heads_free(heads);
    sd_exclusive_leave(&self->exclusive);
    return -1;
}

static void dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    sd_heads_free(((sd_heads_object*)object)->heads);
    type->tp_free(object);
    Py_DECREF(type);
}

const sd_heads* sd_heads_from(PyObject* object, const char* name) {
    const sd_heads* heads = ((sd_heads_object*)object)->heads;
    if (heads == NULL) PyErr_Format(PyExc_ValueError, "%s: the Heads have not been initialised", name);
    return heads;
}

static sd_weights_figures figures(PyObject* object) {
    const sd_heads* heads = ((sd_heads_object*)object)->heads;
    if (heads == NULL) return (sd_weights_figures){0};
    return (sd_weights_figures){1, sd_format_names[heads->config.format], heads->arena.size,
                                sd_tensor_list_count(&heads->tensors)};
}

static sd_weights_type weights_type = {figures};

static PyGetSetDef properties[] = {
    SD_GET_DTYPE(weights_type),
    SD_GET_N_BYTES(weights_type),
    SD_GET_N_PARAMETERS(weights_type),
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Heads(config, tensors, *, tokens=None, dtype='f32', n_threads=1)\n--\n\n"
     "Heads on a target's hidden states: immutable, packed weights."},
    {Py_tp_init, init},
    {Py_tp_dealloc, dealloc},
    {Py_tp_getset, properties},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec sd_heads_spec = {
    .name = "specdec._core.Heads",
    .basicsize = sizeof(sd_heads_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
