#include "drafters.h"

#include <string.h>

#include "copy_drafters.h"
#include "ensemble_drafter.h"
#include "heads.h"
#include "model_drafters.h"
#include "predictors.h"
#include "python_drafter.h"
#include "recurrent.h"
#include "tables.h"
#include "testing.h"
#include "tree_drafter.h"
#include "watched.h"

/* 0, or -1 with the exception of a status. */
static int made(sd_status status) {
    if (status != SD_OK) sd_raise(status);
    return status == SD_OK ? 0 : -1;
}

/* A token of a text that is copied must be one of the target's. Returns 0, or -1 with an exception. */
static int check_tokens(int32_t token, const sd_drafter_context* c) {
    int n_vocab = c->drafting.n_vocab;
    if (token >= 0 && token < n_vocab) return 0;
    return made(sd_fail(SD_ERR_VALUE, "the draft's texts have the token %d, expected 0 to %d", (int)token,
                        n_vocab - 1));
}

/* What predicts for a drafter, as an argument says it. */
typedef struct predictor_source {
    sd_predictor_maker maker; /* with the options below */
    union {
        sd_model_predictor_options model;
        sd_heads_predictor_options heads;
        sd_eagle_predictor_options eagle;
    } options;
} predictor_source;

/* The model of an argument. Whether its ids mean the same as the target's is for the caller to know; it may
 * have more or fewer of them behind those. Returns 0, or -1 with an exception. */
static int model_options_from(PyObject* argument, const sd_drafter_context* c,
                              sd_model_predictor_options* options) {
    const sd_model_object* object = sd_model_from(c->state, argument, "draft");
    if (object == NULL) return -1;
    *options = (sd_model_predictor_options){.model = object->model};
    return 0;
}

/* The model of a Translation, which must be one for this target. Returns 0, or -1 with an exception. */
static int translated_from(PyObject* argument, const sd_drafter_context* c,
                           sd_model_predictor_options* options) {
    const sd_translation_object* object = sd_translation_from(c->state, argument, "draft");
    if (object == NULL) return -1;
    if (object->translation.target.n != c->drafting.n_vocab)
        return made(sd_fail(SD_ERR_VALUE, "the translation is for %d tokens, expected the target's %d",
                            object->translation.target.n, c->drafting.n_vocab));
    *options = (sd_model_predictor_options){
        .model = object->model->model, .translation = &object->translation, .caller = c->saved_thread};
    return 0;
}

/* The source of an argument: a Model, a Translation, or weights of a learnt draft. Returns 0, or -1 with an
 * exception. The source stays where it is: its maker points into it. */
static int source_from(PyObject* argument, const sd_drafter_context* c, predictor_source* source) {
    if (PyObject_TypeCheck(argument, c->state->look_ahead_type)) {
        const sd_extra_queries* extra = sd_look_ahead_from(argument, "draft");
        source->maker = (sd_predictor_maker){sd_look_ahead_predictor_make, extra};
        return extra == NULL ? -1 : 0;
    }
    if (PyObject_TypeCheck(argument, c->state->recurrent_type)) {
        const sd_recurrent* recurrent = sd_recurrent_from(argument, "draft");
        source->maker = (sd_predictor_maker){sd_recurrent_predictor_make, recurrent};
        return recurrent == NULL ? -1 : 0;
    }
    if (PyObject_TypeCheck(argument, c->state->eagle_type)) {
        const sd_eagle* eagle = sd_eagle_from(argument);
        source->options.eagle = (sd_eagle_predictor_options){eagle, c->target};
        source->maker = (sd_predictor_maker){sd_eagle_predictor_make, &source->options};
        return eagle == NULL ? -1 : 0;
    }
    if (PyObject_TypeCheck(argument, c->state->heads_type)) {
        const sd_heads* heads = sd_heads_from(argument, "draft");
        source->options.heads = (sd_heads_predictor_options){heads, c->target};
        source->maker = (sd_predictor_maker){sd_heads_predictor_make, &source->options};
        return heads == NULL ? -1 : 0;
    }
    source->maker = (sd_predictor_maker){sd_model_predictor_make, &source->options};
    if (PyObject_TypeCheck(argument, c->state->translation_type)) {
        if (translated_from(argument, c, &source->options.model) < 0) return -1;
        if (sd_translation_from(c->state, argument, "draft")->n_pairs > 0) return 0;
        return made(sd_fail(SD_ERR_VALUE, "the two vocabularies have no token in common"));
    }
    return model_options_from(argument, c, &source->options.model);
}

/* {model} */
static int make_model(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* model;
    const sd_field fields[] = {{"model", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &model}};
    const sd_shape_options chain = {.n_chains = 1};
    predictor_source source;
    if (SD_FIELDS_FROM(arguments, "model", fields) < 0) return -1;
    if (source_from(model, c, &source) < 0) return -1;
    return made(sd_tree_drafter_create(&c->drafting, source.maker, &chain, drafter));
}

/* {translation, measured}; measured: also by tokens that both vocabularies have, where that brings more */
static int make_text(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* translation;
    int measured;
    const sd_field fields[] = {{"translation", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &translation},
                               {"measured", SD_FIELD_FLAG, SD_FIELD_REQUIRED, &measured}};
    sd_model_predictor_options options;
    if (SD_FIELDS_FROM(arguments, "text", fields) < 0) return -1;
    if (translated_from(translation, c, &options) < 0) return -1;
    options.writes = 1;
    sd_vocabulary_way way = measured && sd_translation_from(c->state, translation, "draft")->n_pairs > 0
                                ? SD_WAY_MEASURED
                                : SD_WAY_TEXT;
    return made(sd_text_drafter_create(&c->drafting, &options, way, drafter));
}

/* {model, n_chains} */
static int make_parallel_chains(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* model;
    sd_shape_options shape = {0};
    predictor_source source;
    const sd_field fields[] = {{"model", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &model},
                               {"n_chains", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &shape.n_chains}};
    if (SD_FIELDS_FROM(arguments, "parallel_chains", fields) < 0) return -1;
    if (source_from(model, c, &source) < 0) return -1;
    return made(sd_tree_drafter_create(&c->drafting, source.maker, &shape, drafter));
}

/* The way of choosing children that has this name. Returns 0, or -1 with an exception. */
static int choosing_from(const char* name, sd_choosing* how) {
    static const char* const names[] = {"sample", "without replacement", "top-k"};
    for (*how = SD_CHOOSE_DRAWS; *how <= SD_CHOOSE_TOP; ++*how)
        if (strcmp(name, names[*how]) == 0) return 0;
    PyErr_Format(PyExc_ValueError, "how is '%s', expected sample, without replacement or top-k", name);
    return -1;
}

/* {model, parents, how}; parents: ids [n_nodes] */
static int make_static_tree(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *model, *parents;
    const char* how;
    int32_t* nodes;
    sd_shape_options shape = {0};
    predictor_source source;
    const sd_field fields[] = {{"model", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &model},
                               {"parents", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &parents},
                               {"how", SD_FIELD_WORD, SD_FIELD_REQUIRED, &how}};
    if (SD_FIELDS_FROM(arguments, "static_tree", fields) < 0) return -1;
    if (choosing_from(how, &shape.how) < 0) return -1;
    if (source_from(model, c, &source) < 0) return -1;
    if (sd_ids_from(parents, "parents", &nodes, &shape.n_nodes) < 0) return -1;
    shape.parents = nodes;
    int result = made(sd_tree_drafter_create(&c->drafting, source.maker, &shape, drafter));
    PyMem_Free(nodes);
    return result;
}

/* {model, width, steps, sharpness} */
static int make_dynamic_tree(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* model;
    sd_dynamic_tree_options tree;
    predictor_source source;
    const sd_field fields[] = {{"model", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &model},
                               {"width", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &tree.width},
                               {"steps", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &tree.steps},
                               {"sharpness", SD_FIELD_REAL, SD_FIELD_REQUIRED, &tree.sharpness}};
    if (SD_FIELDS_FROM(arguments, "dynamic_tree", fields) < 0) return -1;
    if (source_from(model, c, &source) < 0) return -1;
    return made(sd_dynamic_tree_drafter_create(&c->drafting, source.maker, &tree, drafter));
}

/* {model, draft, gamma}: the description of the drafter that drafts for the model, and its guesses a round */
static int make_nested(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *model, *draft;
    sd_nested_options nested;
    sd_model_predictor_options options;
    const sd_field fields[] = {{"model", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &model},
                               {"draft", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &draft},
                               {"gamma", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &nested.inner_gamma}};
    if (SD_FIELDS_FROM(arguments, "nested", fields) < 0) return -1;
    if (model_options_from(model, c, &options) < 0) return -1;
    sd_drafter_context inner = *c;
    inner.target = options.model;
    inner.drafting = sd_nested_inner(&c->drafting, options.model, nested.inner_gamma);
    if (sd_drafter_from(draft, &inner, &nested.inner) < 0) return -1;
    return made(sd_nested_drafter_create(&c->drafting, &options, &nested, drafter));
}

/* {skipped}: bytes [n_layer], what is skipped of each layer (forward.h) */
static int make_skip_layers(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* bytes;
    const sd_field fields[] = {{"skipped", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &bytes}};
    if (SD_FIELDS_FROM(arguments, "skip_layers", fields) < 0) return -1;
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "skip_layers: expected bytes");
        return -1;
    }
    const unsigned char* skipped = (const unsigned char*)PyBytes_AS_STRING(bytes);
    int n_layer = c->target->config.n_layer, valid = PyBytes_GET_SIZE(bytes) == n_layer, any = 0;
    for (int i = 0; valid && i < n_layer; i++) {
        any |= skipped[i];
        valid = skipped[i] <= (SD_SKIP_ATTN | SD_SKIP_MLP);
    }
    if (!valid || !any) {
        PyErr_Format(PyExc_ValueError,
                     "draft: expected %d bytes from 0 to 3 that say what of each layer is "
                     "skipped, not all 0",
                     n_layer);
        return -1;
    }
    const sd_model_predictor_options options = {.model = c->target, .skipped = skipped};
    const sd_shape_options chain = {.n_chains = 1};
    return made(sd_tree_drafter_create(&c->drafting, (sd_predictor_maker){sd_model_predictor_make, &options},
                                       &chain, drafter));
}

/* {table} */
static int make_table(PyObject* arguments, const char* method, const sd_drafter_context* c, int online,
                      sd_drafter** drafter) {
    PyObject* argument;
    const sd_field fields[] = {{"table", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &argument}};
    if (SD_FIELDS_FROM(arguments, method, fields) < 0) return -1;
    if (!PyObject_TypeCheck(argument, c->state->ngram_type)) {
        PyErr_Format(PyExc_TypeError, "%s: expected an Ngram", method);
        return -1;
    }
    const sd_ngram_table* table = &((sd_ngram_object*)argument)->table;
    if (table->n == 0) {
        PyErr_SetString(PyExc_ValueError, "draft: the Ngram has not been initialised");
        return -1;
    }
    const sd_ngram_drafter_options options = {table, online};
    int n_vocab = c->drafting.n_vocab;
    sd_status status =
        table->n_vocab != n_vocab
            ? sd_fail(SD_ERR_VALUE, "the draft has %d tokens and the target %d, expected one vocabulary",
                      table->n_vocab, n_vocab)
            : sd_ngram_drafter_create(&c->drafting, &options, drafter);
    return made(status);
}

static int make_ngram(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    return make_table(arguments, "ngram", c, 0, drafter);
}

static int make_online_ngram(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    return make_table(arguments, "online_ngram", c, 1, drafter);
}

/* {} */
static int make_random(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    if (sd_fields_from(arguments, "random", NULL, 0) < 0) return -1;
    return made(sd_random_drafter_create(&c->drafting, drafter));
}

/* {window, ngram, candidates} */
static int make_lookahead(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    sd_lookahead_options options;
    const sd_field fields[] = {{"window", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.window},
                               {"ngram", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.ngram},
                               {"candidates", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.candidates}};
    if (SD_FIELDS_FROM(arguments, "lookahead", fields) < 0) return -1;
    return made(sd_lookahead_drafter_create(&c->drafting, &options, drafter));
}

/* {documents, min_match, n_candidates}; documents: an Automaton or None */
static int make_context_copy(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* given;
    sd_copy_options options = {0};
    const sd_field fields[] = {{"documents", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &given},
                               {"min_match", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.min_match},
                               {"n_candidates", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.n_candidates}};
    if (SD_FIELDS_FROM(arguments, "context_copy", fields) < 0) return -1;
    if (given != Py_None) {
        const sd_automaton_object* documents = sd_automaton_from(c->state, given, "draft");
        if (documents == NULL) return -1;
        if (check_tokens(documents->max_token, c) < 0) return -1;
        options.documents = &documents->automaton;
    }
    return made(sd_copy_drafter_create(&c->drafting, &options, drafter));
}

/* {memory, min_match, factor, min_probability, branches}; memory: a SuffixTree */
static int make_suffix_memory(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* given;
    sd_suffix_drafter_options options;
    const sd_field fields[] = {
        {"memory", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &given},
        {"min_match", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.min_match},
        {"factor", SD_FIELD_REAL, SD_FIELD_REQUIRED, &options.factor},
        {"min_probability", SD_FIELD_REAL, SD_FIELD_REQUIRED, &options.min_probability},
        {"branches", SD_FIELD_FLAG, SD_FIELD_REQUIRED, &options.branches},
    };
    if (SD_FIELDS_FROM(arguments, "suffix_memory", fields) < 0) return -1;
    sd_suffix_tree_object* memory = sd_suffix_tree_from(c->state, given, "draft");
    if (memory == NULL) return -1;
    options.memory = &memory->memory;
    return made(sd_suffix_drafter_create(&c->drafting, &options, drafter));
}

/* {matrix, parents, chances}; matrix: a TokenMatrix, parents: ids [n_nodes], chances: numbers [k] */
static int make_token_recycling(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *given, *parents, *chances;
    int32_t* nodes;
    double* numbers;
    int n_chances, result = -1;
    sd_recycling_options options = {.shape.how = SD_CHOOSE_TOP};
    const sd_field fields[] = {{"matrix", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &given},
                               {"parents", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &parents},
                               {"chances", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &chances}};
    if (SD_FIELDS_FROM(arguments, "token_recycling", fields) < 0) return -1;
    const sd_token_matrix_object* matrix = sd_token_matrix_from(c->state, given, "draft");
    if (matrix == NULL) return -1;
    if (sd_ids_from(parents, "parents", &nodes, &options.shape.n_nodes) < 0) return -1;
    if (sd_floats_from(chances, "chances", &numbers, &n_chances) < 0) {
        PyMem_Free(nodes);
        return -1;
    }
    options.matrix = &matrix->matrix;
    options.shape.parents = nodes;
    options.chances = numbers;
    if (n_chances != matrix->matrix.k)
        PyErr_Format(PyExc_ValueError, "chances has %d entries, expected %d", n_chances, matrix->matrix.k);
    else
        result = made(sd_recycling_drafter_create(&c->drafting, &options, drafter));
    PyMem_Free(numbers);
    PyMem_Free(nodes);
    return result;
}

/* {source, predictions, start, min_match, n_candidates}; source: ids or None; predictions: copy from these */
static int make_input_copy(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* given;
    int32_t* source = NULL;
    sd_input_options options = {0};
    const sd_field fields[] = {{"source", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &given},
                               {"predictions", SD_FIELD_FLAG, SD_FIELD_OPTIONAL, &options.predictions},
                               {"start", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.start},
                               {"min_match", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.min_match},
                               {"n_candidates", SD_FIELD_INTEGER, SD_FIELD_REQUIRED, &options.n_candidates}};
    if (SD_FIELDS_FROM(arguments, "input_copy", fields) < 0) return -1;
    int result = 0;
    if (given != Py_None) {
        if (sd_ids_from(given, "source", &source, &options.n_source) < 0) return -1;
        options.source = source;
        for (int i = 0; i < options.n_source && result == 0; i++) result = check_tokens(source[i], c);
    }
    if (result == 0) result = made(sd_input_drafter_create(&c->drafting, &options, drafter));
    PyMem_Free(source);
    return result;
}

/* The drafters of descriptions, a tuple, into an array of as many. Returns 0, or -1 with an exception and no
 * drafter left. */
static int make_several(PyObject* descriptions, const sd_drafter_context* c, sd_drafter** drafters) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(descriptions); i++) {
        if (sd_drafter_from(PyTuple_GET_ITEM(descriptions, i), c, &drafters[i]) == 0) continue;
        while (i-- > 0) drafters[i]->free(drafters[i]);
        return -1;
    }
    return 0;
}

/* {adaptive, gammas, drafts}: the most guesses and the description of each drafter, in their order */
static int make_ensemble(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    sd_ensemble_options options = {0};
    PyObject *list, *drafts;
    const sd_field fields[] = {{"adaptive", SD_FIELD_FLAG, SD_FIELD_REQUIRED, &options.adaptive},
                               {"gammas", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &list},
                               {"drafts", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &drafts}};
    if (SD_FIELDS_FROM(arguments, "ensemble", fields) < 0) return -1;
    PyObject* descriptions = sd_items_from(drafts, "drafts: expected a sequence of descriptions");
    if (descriptions == NULL) return -1;
    int32_t* gammas = NULL;
    int n, result = -1;
    if (sd_ids_from(list, "gammas", &gammas, &n) < 0) {
        Py_DECREF(descriptions);
        return -1;
    }
    sd_drafter** drafters = PyMem_Calloc((size_t)n + 1, sizeof(sd_drafter*));
    if (drafters == NULL)
        PyErr_NoMemory();
    else if (n < 1 || n != PyTuple_GET_SIZE(descriptions))
        PyErr_Format(PyExc_ValueError,
                     "draft: there are %zd descriptions and %d gammas, expected as many, "
                     "one at least",
                     PyTuple_GET_SIZE(descriptions), n);
    else
        result = make_several(descriptions, c, drafters);
    if (result == 0) {
        options.n_drafters = n;
        options.gammas = gammas;
        result = made(sd_ensemble_drafter_create(&c->drafting, &options, drafters, drafter));
    }
    PyMem_Free(drafters);
    PyMem_Free(gammas);
    Py_DECREF(descriptions);
    return result;
}

/* Every method by name. A maker is given the arguments, a dict that no caller has. */
static const struct {
    const char* name;
    int (*make)(PyObject* arguments, const sd_drafter_context* context, sd_drafter** drafter);
} METHODS[] = {
    {"model", make_model},
    {"text", make_text},
    {"parallel_chains", make_parallel_chains},
    {"static_tree", make_static_tree},
    {"dynamic_tree", make_dynamic_tree},
    {"nested", make_nested},
    {"skip_layers", make_skip_layers},
    {"ngram", make_ngram},
    {"online_ngram", make_online_ngram},
    {"context_copy", make_context_copy},
    {"input_copy", make_input_copy},
    {"suffix_memory", make_suffix_memory},
    {"token_recycling", make_token_recycling},
    {"lookahead", make_lookahead},
    {"ensemble", make_ensemble},
    {"watched", sd_make_watched},
    {"python", sd_make_python_drafter},
    {"random", make_random},
#ifdef SPECDEC_TESTING
    {"fixed_acceptance", sd_make_fixed_acceptance},
#endif
};

/* The method's name and a new dict of its arguments, or NULL with an exception. */
static PyObject* arguments_of(PyObject* description, const sd_drafter_context* c, const char** name) {
    PyObject* arguments;
    if (PyObject_TypeCheck(description, c->state->model_type)) {
        *name = "model";
        return Py_BuildValue("{sO}", "model", description);
    }
    if (PyObject_TypeCheck(description, c->state->ngram_type)) {
        *name = "ngram";
        return Py_BuildValue("{sO}", "table", description);
    }
    if (!PyTuple_Check(description)) {
        PyErr_SetString(PyExc_TypeError, "draft: expected (method, {argument: value}), a Model or an Ngram");
        return NULL;
    }
    if (!PyArg_ParseTuple(description, "sO!;draft: expected (method, {argument: value})", name, &PyDict_Type,
                          &arguments))
        return NULL;
    return PyDict_Copy(arguments);
}

int sd_drafter_from(PyObject* description, const sd_drafter_context* outer, sd_drafter** drafter) {
    sd_drafter_context within = *outer;
    const sd_drafter_context* c = &within;
    const char* name;
    if (within.depth++ == SD_MAX_DRAFTS_WITHIN)
        return made(sd_fail(SD_ERR_SETTING, "draft: expected at most %d drafts within one another",
                            SD_MAX_DRAFTS_WITHIN));
    if (made(sd_gamma_check(c->drafting.gamma)) < 0) return -1;
    PyObject* arguments = arguments_of(description, c, &name);
    if (arguments == NULL) return -1;
    int result = PyList_Append(c->arguments, arguments);
    Py_DECREF(arguments); /* the list has it */
    if (result < 0) return -1;
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++)
        if (strcmp(name, METHODS[i].name) == 0) return METHODS[i].make(arguments, c, drafter);
    PyErr_Format(PyExc_ValueError, "draft: there is no method '%s'", name);
    return -1;
}
