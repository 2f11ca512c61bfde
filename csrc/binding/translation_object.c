/* Translation: a draft model of another vocabulary, with the tables between it and its target. */
#include <stddef.h>

#include "clock.h"
#include "module.h"
#include "translation.h"

/* Arrays of its tables, in the order of `views`. */
enum { TARGET_STARTS, DRAFT_STARTS, DRAFT_OF, TARGET_OF, BYTE_TOKENS, FIRST, TARGET_FIRST };
static const char* const ARRAYS[SD_N_TRANSLATION_ARRAYS] = {
    "target_starts", "draft_starts", "draft_of", "target_of", "byte_tokens", "first", "target_first"};

static PyObject* encoder_of(const sd_translation_object* self, sd_encoding what) {
    return PyTuple_GET_ITEM(self->encoders, what);
}

static const sd_model* model_of(const sd_translation_object* self) {
    return ((const sd_model_object*)self->model)->model;
}

/* Call an encoder of Python. */
static PyObject* call_encoder(const sd_translation_object* self, const sd_encodable* text) {
    if (text->what == SD_ENCODE_SOURCE) {
        PyObject* ids = sd_list_of_ints(text->source, text->n_source);
        PyObject* made = ids ? PyObject_CallOneArg(encoder_of(self, SD_ENCODE_SOURCE), ids) : NULL;
        Py_XDECREF(ids);
        return made;
    }
    int number = text->what == SD_ENCODE_FOR_DRAFT ? text->begins : text->begins ? -1 : text->n_before;
    return PyObject_CallFunction(encoder_of(self, text->what), "s#i", text->text, (Py_ssize_t)text->n,
                                 number);
}

/* Read the ids that an encoder has returned. Returns 0, or -1 with an exception. */
static int take_ids(PyObject* made, int n_vocab, sd_encoded_ids* ids) {
    int32_t* found;
    if (sd_ids_from(made, "ids of a tokenizer", &found, &ids->n) < 0) return -1;
    int result = 0;
    for (int i = 0; i < ids->n && ids->n <= ids->capacity && result == 0; i++) {
        ids->ids[i] = found[i];
        if (found[i] < 0 || found[i] >= n_vocab)
            result = sd_refuse("a tokenizer gave the id %d; expected 0 to %d", (int)found[i], n_vocab - 1);
    }
    PyMem_Free(found);
    return result;
}

static sd_status encode(const sd_translation* translation, void* caller, const sd_encodable* text,
                        sd_encoded_ids* ids) {
    const sd_translation_object* self =
        (const sd_translation_object*)(const void*)((const char*)translation -
                                                    offsetof(sd_translation_object, translation));
    const sd_model* encoder = model_of(self)->encoder;
    int n_vocab = text->what == SD_ENCODE_FOR_TARGET  ? translation->target.n
                  : text->what == SD_ENCODE_FOR_DRAFT ? translation->draft.n
                  : encoder                           ? encoder->config.n_vocab
                                                      : 0;
    double begun = sd_now();
    sd_gil_take(caller);
    PyObject* made = call_encoder(self, text);
    int result = made ? take_ids(made, n_vocab, ids) : -1;
    Py_XDECREF(made);
    sd_gil_release(caller);
    atomic_fetch_add_explicit((atomic_llong*)&self->n_encoded, 1, memory_order_relaxed);
    atomic_fetch_add_explicit((atomic_llong*)&self->encoding_ns, (long long)((sd_now() - begun) * 1e9),
                              memory_order_relaxed);
    return result < 0 ? SD_ERR_CALLBACK : SD_OK;
}

/* Check the starts [n + 1] of strings in so many bytes of memory. Returns 0, or -1 with an exception. */
static int check_starts(const Py_buffer* view, const char* name, Py_ssize_t n_bytes) {
    const int32_t* starts = view->buf;
    Py_ssize_t n = view->shape[0] - 1;
    int right = n >= 1 && n < INT32_MAX && starts[0] == 0 && starts[n] == n_bytes;
    for (Py_ssize_t i = 0; i < n && right; i++) right = starts[i] <= starts[i + 1];
    if (right) return 0;
    return sd_refuse("%s: expected the start of each string, then the end of the last", name);
}

/* Check an array of `n` ids below n_vocab, or -1. n < 0: any number. Returns 0, or -1 with an exception. */
static int check_ids(const Py_buffer* view, const char* name, int n, int n_vocab) {
    const int32_t* ids = view->buf;
    int right = n < 0 || view->shape[0] == n;
    for (Py_ssize_t i = 0; i < view->shape[0] && right; i++) right = ids[i] >= -1 && ids[i] < n_vocab;
    return right ? 0 : sd_refuse("%s: expected ids below %d, or -1", name, n_vocab);
}

/* Check that target_of and draft_of have the same pairs. Returns their number, or -1 with an exception. */
static int count_pairs(const sd_translation* t) {
    int n_pairs = 0;
    for (int i = 0; i < t->draft.n; i++)
        if (t->target_of[i] >= 0 && t->draft_of[t->target_of[i]] != i)
            return sd_refuse("target_of: expected the inverse of draft_of");
    for (int i = 0; i < t->target.n; i++) n_pairs += t->draft_of[i] >= 0 && t->target_of[t->draft_of[i]] == i;
    return n_pairs;
}

/* Set up the tables from the held views. Returns 0, or -1 with an exception. */
static int lay_out(sd_translation_object* self, int target_strips, int draft_strips) {
    const Py_buffer* v = self->views;
    sd_translation* t = &self->translation;
    int n_target = (int)v[TARGET_STARTS].shape[0] - 1;
    int n_draft = model_of(self)->config.n_vocab;
    PyObject *target = PyTuple_GET_ITEM(self->strings, 0), *draft = PyTuple_GET_ITEM(self->strings, 1);
    if (check_starts(&v[TARGET_STARTS], ARRAYS[TARGET_STARTS], PyBytes_GET_SIZE(target)) < 0 ||
        check_starts(&v[DRAFT_STARTS], ARRAYS[DRAFT_STARTS], PyBytes_GET_SIZE(draft)) < 0)
        return -1;
    if (v[DRAFT_STARTS].shape[0] != n_draft + 1)
        return sd_refuse("draft_starts: expected %d, one more than the draft's tokens", n_draft + 1);
    if (check_ids(&v[DRAFT_OF], ARRAYS[DRAFT_OF], n_target, n_draft) < 0 ||
        check_ids(&v[TARGET_OF], ARRAYS[TARGET_OF], n_draft, n_target) < 0 ||
        check_ids(&v[BYTE_TOKENS], ARRAYS[BYTE_TOKENS], 256, n_draft) < 0 ||
        check_ids(&v[FIRST], ARRAYS[FIRST], -1, n_draft) < 0 ||
        check_ids(&v[TARGET_FIRST], ARRAYS[TARGET_FIRST], -1, n_target) < 0)
        return -1;
    *t = (sd_translation){
        .target = {PyBytes_AS_STRING(target), v[TARGET_STARTS].buf, n_target},
        .draft = {PyBytes_AS_STRING(draft), v[DRAFT_STARTS].buf, n_draft},
        .draft_of = v[DRAFT_OF].buf,
        .target_of = v[TARGET_OF].buf,
        .byte_tokens = v[BYTE_TOKENS].buf,
        .first = v[FIRST].buf,
        .n_first = (int)v[FIRST].shape[0],
        .target_first = v[TARGET_FIRST].buf,
        .n_target_first = (int)v[TARGET_FIRST].shape[0],
        .target_strips = target_strips,
        .draft_strips = draft_strips,
        .encode = encode,
        .n_rows = &self->n_rows,
        .named = &self->named,
    };
    self->n_pairs = count_pairs(t);
    return self->n_pairs < 0 ? -1 : 0;
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"model",        "target_strings", "draft_strings", "arrays", "target_strips",
                            "draft_strips", "for_draft",      "for_target",    "source", NULL};
    sd_translation_object* self = (sd_translation_object*)object;
    PyObject *model, *target, *draft, *arrays, *for_draft, *for_target, *source;
    int target_strips, draft_strips;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OSSO!ppOOO", names, &model, &target, &draft, &PyDict_Type,
                                     &arrays, &target_strips, &draft_strips, &for_draft, &for_target,
                                     &source) ||
        sd_model_from(model, "draft") == NULL)
        return -1;
    self->model = Py_NewRef(model);
    if ((self->strings = PyTuple_Pack(2, target, draft)) == NULL) return -1;
    if ((self->encoders = PyTuple_Pack(3, for_draft, for_target, source)) == NULL) return -1;
    for (int i = 0; i < SD_N_TRANSLATION_ARRAYS; i++) {
        PyObject* array = PyDict_GetItemString(arrays, ARRAYS[i]);
        if (array == NULL) return sd_set_error(PyExc_TypeError, "arrays: there is no '%s'", ARRAYS[i]);
        if (sd_view(array, ARRAYS[i], 'i', 1, &self->views[i]) < 0) return -1;
    }
    return lay_out(self, target_strips, draft_strips);
}

/* Retokenize texts, one after the other, as one changing text. */
static sd_status read_texts(const sd_translation* t, PyThreadState** caller, const sd_sequences* texts,
                            sd_arena* arena, sd_retokenized_text* retokenized) {
    int longest = 0, capacity = t->n_first;
    for (int i = 0, begin = 0; i < texts->n; begin = texts->ends[i++]) {
        int n = 0, n_bytes = t->n_first;
        for (int j = begin; j < texts->ends[i]; j++, n_bytes += n + 1)
            sd_token_string(&t->target, texts->tokens[j], &n);
        if (texts->ends[i] - begin > longest) longest = texts->ends[i] - begin;
        if (n_bytes > capacity) capacity = n_bytes;
    }
    char* piece;
    int32_t* ids;
    sd_status status =
        SD_ARENA_BUILD(arena, (*retokenized = sd_retokenized_text_take(arena, t, caller, longest, capacity),
                               piece = sd_arena_take(arena, SD_RETOKENIZED_PIECE, 1),
                               ids = sd_arena_take(arena, SD_RETOKENIZED_PIECE, sizeof *ids)));
    if (status != SD_OK) return status;
    retokenized->piece = piece;
    retokenized->ids = ids;
    sd_retokenized_text_begin(retokenized);
    for (int i = 0, begin = 0; i < texts->n && status == SD_OK; begin = texts->ends[i++])
        status = sd_retokenized_text_follow(retokenized, texts->tokens + begin, texts->ends[i] - begin);
    return status;
}

static PyObject* read_ids(PyObject* self, PyObject* argument) {
    const sd_translation* t = &((sd_translation_object*)self)->translation;
    sd_sequences texts = {0};
    PyObject* result = NULL;
    if (sd_sequences_from(argument, "texts", 0, &texts) == 0) {
        PyThreadState* saved_thread;
        sd_arena arena = {0};
        sd_retokenized_text retokenized;
        sd_status status;
        SD_WITHOUT_GIL_AS(&saved_thread, status = read_texts(t, &saved_thread, &texts, &arena, &retokenized));
        result = status == SD_OK ? sd_list_of_ints(retokenized.tokens, retokenized.n) : sd_raise(status);
        sd_arena_free(&arena);
    }
    PyMem_Free(texts.tokens);
    PyMem_Free(texts.ends);
    return result;
}

static PyMethodDef methods[] = {
    {"read", read_ids, METH_O, "read($self, texts, /)\n--\n\n"},
    {0},
};

static PyObject* get_shares(PyObject* object, void* closure) {
    sd_translation_object* self = (sd_translation_object*)object;
    long long n_rows = atomic_load_explicit(&self->n_rows, memory_order_relaxed),
              named = atomic_load_explicit(&self->named, memory_order_relaxed);
    return Py_BuildValue("(Ld)", n_rows, (double)named / SD_SHARE_UNIT);
}

static PyObject* get_encoded(PyObject* object, void* closure) {
    sd_translation_object* self = (sd_translation_object*)object;
    long long n = atomic_load_explicit(&self->n_encoded, memory_order_relaxed),
              ns = atomic_load_explicit(&self->encoding_ns, memory_order_relaxed);
    return Py_BuildValue("(Ld)", n, (double)ns * 1e-9);
}

static PyGetSetDef getters[] = {
    {"encoded", get_encoded, NULL, "Calls of tokenizers so far, and their seconds.", NULL},
    {"shares", get_shares, NULL,
     "Number of the draft's distributions so far, and the summed probability of common tokens.", NULL},
    {0},
};

static PyMemberDef members[] = {
    SD_MEMBER("n_shared", T_INT, sd_translation_object, n_pairs, "Tokens that both vocabularies have."),
    {0},
};

const sd_type_spec sd_translation_type = {
    .doc =
        "Translation(model, target_strings, draft_strings, arrays, target_strips, draft_strips, for_draft, "
        "for_target, source)\n--\n\n",
    .size = sizeof(sd_translation_object),
    .make = make,
    .references = {offsetof(sd_translation_object, model), offsetof(sd_translation_object, strings),
                   offsetof(sd_translation_object, encoders)},
    .views = offsetof(sd_translation_object, views),
    .n_views = SD_N_TRANSLATION_ARRAYS,
    .methods = methods,
    .getters = getters,
    .members = members,
};
