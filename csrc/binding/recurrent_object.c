/* Recurrent: the weights of a recurrent draft. */
#include "recurrent.h"

#include "interrupt.h"
#include "module.h"

static sd_status set_tensor(void* recurrent, const char* name, const sd_source* source, int n_rows,
                            int n_cols, int n_threads) {
    return sd_tensor_list_set(&((sd_recurrent*)recurrent)->tensors, name, source, n_rows, n_cols, n_threads);
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    sd_recurrent_object* self = (sd_recurrent_object*)object;
    sd_weights_arguments given;
    sd_recurrent_shape shape;
    int32_t* tokens;
    const sd_field fields[] = {SD_INTEGER("n_vocab", &shape.n_vocab),
                               SD_INTEGER("n_draft_vocab", &shape.n_draft_vocab),
                               SD_INTEGER("d_embed", &shape.d_embed), SD_INTEGER("d_hidden", &shape.d_hidden),
                               SD_INTEGER("n_layers", &shape.n_layers)};
    if (sd_weights_arguments_from(args, kwargs, &given) < 0) return -1;
    if (SD_FIELDS_FROM_MAPPING(given.config, "Recurrent", fields) < 0) return -1;
    if (sd_draft_tokens_from(given.tokens, shape.n_draft_vocab, &tokens) < 0) return -1;
    int result = sd_passed(sd_recurrent_create(&shape, given.format, tokens, &self->recurrent));
    PyMem_Free(tokens);
    if (result < 0 || sd_set_tensors(given.tensors, set_tensor, self->recurrent, given.n_threads) < 0)
        return -1;
    self->figures = (sd_weights_figures){sd_format_names[given.format], self->recurrent->arena.size,
                                         sd_tensor_list_count(&self->recurrent->tensors)};
    return sd_passed(sd_tensor_list_check(&self->recurrent->tensors));
}

static void release(PyObject* self) { sd_recurrent_free(((sd_recurrent_object*)self)->recurrent); }

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

static PyObject* logits(PyObject* self, PyObject* argument) {
    const sd_recurrent* recurrent = ((sd_recurrent_object*)self)->recurrent;
    int32_t* ids;
    int n;
    float* rows;
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    PyObject* array = sd_new_array("float32", n, recurrent->shape.n_vocab, (void**)&rows);
    sd_status status = SD_OK;
    if (array != NULL) SD_WITHOUT_GIL(status = read_text(recurrent, ids, n, rows));
    PyMem_Free(ids);
    return sd_given(array, status);
}

static PyMethodDef methods[] = {
    {"logits", logits, METH_O, "logits($self, ids, /)\n--\n\n"},
    {0},
};

static PyMemberDef members[] = {SD_FIGURES(sd_recurrent_object), {0}};

const sd_type_spec sd_recurrent_type = {
    .doc = "Recurrent(config, tensors, *, tokens=None, dtype='f32', n_threads=1)\n--\n\n",
    .size = sizeof(sd_recurrent_object),
    .make = make,
    .release = release,
    .methods = methods,
    .members = members,
};
