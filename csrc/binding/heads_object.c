/* Heads: decoding heads on a target's hidden states; immutable. */
#include "module.h"

static sd_status set_tensor(void* heads, const char* name, const sd_source* source, int n_rows, int n_cols,
                            int n_threads) {
    return sd_tensor_list_set(&((sd_heads*)heads)->tensors, name, source, n_rows, n_cols, n_threads);
}

/* The configuration of a mapping. Returns 0, or -1 with an exception. */
static int config_from(PyObject* mapping, sd_heads_config* c) {
    const sd_field fields[] = {SD_INTEGER("n_heads", &c->n_heads),
                               SD_INTEGER("n_blocks", &c->n_blocks),
                               SD_INTEGER("d_model", &c->d_model),
                               SD_INTEGER("n_vocab", &c->n_vocab),
                               SD_FLAG("see_draft_tokens", &c->see_draft_tokens),
                               SD_INTEGER("n_draft_vocab", &c->n_draft_vocab),
                               SD_FLAG("shared_output", &c->shared_output)};
    return SD_FIELDS_FROM_MAPPING(mapping, "Heads", fields);
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_heads_object* self = (sd_heads_object*)object;
    sd_weights_arguments given;
    int32_t* tokens;
    if (sd_weights_arguments_from(args, kwargs, &given) < 0) return -1;
    sd_heads_config config = {.format = given.format};
    if (config_from(given.config, &config) < 0) return -1;
    if (sd_draft_tokens_from(given.tokens, config.n_draft_vocab, &tokens) < 0) return -1;
    int result = sd_passed(sd_heads_create(&config, tokens, &self->heads));
    PyMem_Free(tokens);
    if (result < 0 || sd_set_tensors(given.tensors, set_tensor, self->heads, given.n_threads) < 0) return -1;
    if (sd_passed(sd_tensor_list_check(&self->heads->tensors)) < 0) return -1;
    self->figures = (sd_weights_figures){sd_format_names[config.format], self->heads->arena.size,
                                         sd_tensor_list_count(&self->heads->tensors)};
    return 0;
}

static void release(PyObject* self) { sd_heads_free(((sd_heads_object*)self)->heads); }

static PyMemberDef members[] = {SD_FIGURES(sd_heads_object), {0}};

const sd_type_spec sd_heads_type = {
    .doc = "Heads(config, tensors, *, tokens=None, dtype='f32', n_threads=1)\n--\n\n",
    .size = sizeof(sd_heads_object),
    .make = make,
    .release = release,
    .members = members,
};
