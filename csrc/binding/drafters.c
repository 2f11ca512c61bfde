#include "drafters.h"

#include <string.h>

#include "copy_drafters.h"
#include "ensemble_drafter.h"
#include "heads.h"
#include "model_drafters.h"
#include "predictors.h"
#include "recurrent.h"
#include "tables.h"
#include "testing.h"
#include "tree_drafter.h"

/* The maker of a method. Returns 0, or -1 with an exception. */
#define MAKER(name) \
    static int name(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter)

/* A token of a text that is copied must be one of the target's. Returns 0, or -1 with an exception. */
static int check_tokens(int32_t token, const sd_drafter_context* c) {
    int n_vocab = c->drafting.n_vocab;
    if (token >= 0 && token < n_vocab) return 0;
    return sd_refuse("the draft's texts have the token %d, expected 0 to %d", (int)token, n_vocab - 1);
}

/* Predictor of a drafter, from an argument. */
typedef struct predictor_source {
    sd_predictor_maker maker; /* with the options below */
    union {
        sd_model_predictor_options model;
        sd_heads_predictor_options heads;
        sd_eagle_predictor_options eagle;
    } options;
} predictor_source;

/* Take the model of an argument. Its ids must mean the same as the target's, which the caller ensures; either
 * may have more of them. Returns 0, or -1 with an exception. */
static int model_options_from(PyObject* argument, sd_model_predictor_options* options) {
    const sd_model_object* object = sd_model_from(argument, "draft");
    if (object == NULL) return -1;
    *options = (sd_model_predictor_options){.model = object->model};
    return 0;
}

/* Take the model of a Translation, which must be for this target. Returns 0, or -1 with an exception. */
static int translated_from(PyObject* argument, const sd_drafter_context* c,
                           sd_model_predictor_options* options) {
    const sd_translation_object* object = sd_translation_from(argument, "draft");
    if (object == NULL) return -1;
    const sd_translation* translation = &object->translation;
    if (translation->target.n != c->drafting.n_vocab)
        return sd_refuse("the translation is for %d tokens, expected the target's %d", translation->target.n,
                         c->drafting.n_vocab);
    *options = (sd_model_predictor_options){.model = ((const sd_model_object*)object->model)->model,
                                            .translation = translation,
                                            .caller = c->saved_thread};
    return 0;
}

/* Take the predictor of an argument: a Model, a Translation, or weights of a learned draft. Returns 0, or -1
 * with an exception. The source must not move: its maker points into it. */
static int source_from(PyObject* argument, const sd_drafter_context* c, predictor_source* source) {
    if (sd_is(argument, &sd_look_ahead_type)) {
        source->maker = (sd_predictor_maker){sd_look_ahead_predictor_make,
                                             &((const sd_look_ahead_object*)argument)->extra};
    } else if (sd_is(argument, &sd_recurrent_type)) {
        source->maker = (sd_predictor_maker){sd_recurrent_predictor_make,
                                             ((const sd_recurrent_object*)argument)->recurrent};
    } else if (sd_is(argument, &sd_eagle_type)) {
        source->options.eagle =
            (sd_eagle_predictor_options){&((const sd_eagle_object*)argument)->eagle, c->target};
        source->maker = (sd_predictor_maker){sd_eagle_predictor_make, &source->options};
    } else if (sd_is(argument, &sd_heads_type)) {
        source->options.heads =
            (sd_heads_predictor_options){((const sd_heads_object*)argument)->heads, c->target};
        source->maker = (sd_predictor_maker){sd_heads_predictor_make, &source->options};
    } else {
        source->maker = (sd_predictor_maker){sd_model_predictor_make, &source->options};
        if (!sd_is(argument, &sd_translation_type))
            return model_options_from(argument, &source->options.model);
        if (((const sd_translation_object*)argument)->n_pairs == 0)
            return sd_refuse("the two vocabularies have no token in common");
        return translated_from(argument, c, &source->options.model);
    }
    return 0;
}

/* A drafter of trees of a shape, by the predictor of `model`. */
static int make_tree(const sd_draft_arguments* a, const sd_drafter_context* c, const sd_shape_options* shape,
                     sd_drafter** drafter) {
    predictor_source source;
    if (source_from(a->model, c, &source) < 0) return -1;
    return sd_passed(sd_tree_drafter_create(&c->drafting, source.maker, shape, drafter));
}

MAKER(make_model) { return make_tree(a, c, &(sd_shape_options){.n_chains = 1}, drafter); }

MAKER(make_parallel_chains) { return make_tree(a, c, &(sd_shape_options){.n_chains = a->n_chains}, drafter); }

/* Find the method of choosing siblings by name. Returns 0, or -1 with an exception. */
static int choosing_from(const char* name, sd_choosing* how) {
    static const char* const names[] = {"sample", "without replacement", "top-k"};
    *how = sd_word_index(name, names, SD_CHOOSE_TOP + 1);
    if (*how <= SD_CHOOSE_TOP) return 0;
    return sd_refuse("how is '%s', expected sample, without replacement or top-k", name);
}

/* parents: ids [n_nodes] */
MAKER(make_static_tree) {
    int32_t* nodes;
    sd_shape_options shape = {0};
    if (choosing_from(a->how, &shape.how) < 0) return -1;
    if (sd_ids_from(a->parents, "parents", &nodes, &shape.n_nodes) < 0) return -1;
    shape.parents = nodes;
    int result = make_tree(a, c, &shape, drafter);
    PyMem_Free(nodes);
    return result;
}

MAKER(make_dynamic_tree) {
    const sd_dynamic_tree_options tree = {.width = a->width, .steps = a->steps, .sharpness = a->sharpness};
    predictor_source source;
    if (source_from(a->model, c, &source) < 0) return -1;
    return sd_passed(sd_dynamic_tree_drafter_create(&c->drafting, source.maker, &tree, drafter));
}

/* measured: also draft tokens that both vocabularies have, where more are accepted */
MAKER(make_text) {
    sd_model_predictor_options options;
    if (translated_from(a->translation, c, &options) < 0) return -1;
    options.writes = 1;
    int is_measured = a->measured && ((const sd_translation_object*)a->translation)->n_pairs > 0;
    sd_vocabulary_method method = is_measured ? SD_VOCABULARY_MEASURED : SD_VOCABULARY_TEXT;
    return sd_passed(sd_text_drafter_create(&c->drafting, &options, method, drafter));
}

/* draft, gamma: description of the drafter that drafts for the model, and its draft tokens per round */
MAKER(make_nested) {
    sd_nested_options nested = {.inner_gamma = a->gamma};
    sd_model_predictor_options options;
    if (model_options_from(a->model, &options) < 0) return -1;
    sd_drafter_context inner = *c;
    inner.target = options.model;
    inner.drafting = sd_nested_inner(&c->drafting, options.model, a->gamma);
    if (sd_drafter_from(a->draft, &inner, &nested.inner) < 0) return -1;
    return sd_passed(sd_nested_drafter_create(&c->drafting, &options, &nested, drafter));
}

/* skipped: bytes [n_layer], the parts of each layer to skip (forward.h) */
MAKER(make_skip_layers) {
    if (!PyBytes_Check(a->skipped)) return sd_set_error(PyExc_TypeError, "skip_layers: expected bytes");
    const unsigned char* skipped = (const unsigned char*)PyBytes_AS_STRING(a->skipped);
    int n_layer = c->target->config.n_layer, valid = PyBytes_GET_SIZE(a->skipped) == n_layer, any = 0;
    for (int i = 0; valid && i < n_layer; i++) {
        any |= skipped[i];
        valid = skipped[i] <= (SD_SKIP_ATTN | SD_SKIP_MLP);
    }
    if (!valid || !any)
        return sd_refuse("draft: expected %d bytes from 0 to 3, the parts of each layer to skip, not all 0",
                         n_layer);
    const sd_model_predictor_options options = {.model = c->target, .skipped = skipped};
    const sd_predictor_maker maker = {sd_model_predictor_make, &options};
    return sd_passed(
        sd_tree_drafter_create(&c->drafting, maker, &(sd_shape_options){.n_chains = 1}, drafter));
}

static int make_table(const sd_draft_arguments* a, const sd_drafter_context* c, int online,
                      sd_drafter** drafter) {
    const sd_ngram_object* ngram = sd_ngram_from(a->table, "draft");
    if (ngram == NULL) return -1;
    const sd_ngram_drafter_options options = {&ngram->table, online};
    int n_draft = ngram->table.n_vocab, n_vocab = c->drafting.n_vocab;
    if (n_draft != n_vocab)
        return sd_refuse("the draft has %d tokens and the target %d, expected one vocabulary", n_draft,
                         n_vocab);
    return sd_passed(sd_ngram_drafter_create(&c->drafting, &options, drafter));
}

MAKER(make_ngram) { return make_table(a, c, 0, drafter); }

MAKER(make_online_ngram) { return make_table(a, c, 1, drafter); }

MAKER(make_random) { return sd_passed(sd_random_drafter_create(&c->drafting, drafter)); }

MAKER(make_lookahead) {
    const sd_lookahead_options options = {
        .window = a->window, .ngram = a->ngram, .candidates = a->candidates};
    return sd_passed(sd_lookahead_drafter_create(&c->drafting, &options, drafter));
}

/* documents: an Automaton or None */
MAKER(make_context_copy) {
    sd_copy_options options = {.min_match = a->min_match, .n_candidates = a->n_candidates};
    if (a->documents != Py_None) {
        const sd_automaton_object* documents = sd_automaton_from(a->documents, "draft");
        if (documents == NULL || check_tokens(documents->max_token, c) < 0) return -1;
        options.documents = &documents->automaton;
    }
    return sd_passed(sd_copy_drafter_create(&c->drafting, &options, drafter));
}

/* memory: a SuffixTree */
MAKER(make_suffix_memory) {
    sd_suffix_tree_object* memory = sd_suffix_tree_from(a->memory, "draft");
    if (memory == NULL) return -1;
    const sd_suffix_drafter_options options = {.memory = &memory->memory,
                                               .min_match = a->min_match,
                                               .factor = a->factor,
                                               .min_probability = a->min_probability,
                                               .branches = a->branches};
    return sd_passed(sd_suffix_drafter_create(&c->drafting, &options, drafter));
}

/* matrix: a TokenMatrix, parents: ids [n_nodes], chances: numbers [k] */
MAKER(make_token_recycling) {
    int32_t* nodes = NULL;
    double* numbers = NULL;
    int n_chances, result = -1;
    sd_recycling_options options = {.shape.how = SD_CHOOSE_TOP};
    const sd_token_matrix_object* object = sd_token_matrix_from(a->matrix, "draft");
    if (object == NULL) return -1;
    const sd_token_matrix* matrix = options.matrix = &object->matrix;
    if (sd_ids_from(a->parents, "parents", &nodes, &options.shape.n_nodes) == 0 &&
        sd_floats_from(a->chances, "chances", &numbers, &n_chances) == 0) {
        options.shape.parents = nodes;
        options.chances = numbers;
        result = n_chances != matrix->k
                     ? sd_refuse("chances has %d entries, expected %d", n_chances, matrix->k)
                     : sd_passed(sd_recycling_drafter_create(&c->drafting, &options, drafter));
    }
    PyMem_Free(numbers);
    PyMem_Free(nodes);
    return result;
}

/* source: ids or None */
MAKER(make_input_copy) {
    int32_t* source;
    sd_input_options options = {
        .start = a->start, .min_match = a->min_match, .n_candidates = a->n_candidates};
    if (sd_optional_ids_from(a->source, "source", &source, &options.n_source) < 0) return -1;
    options.source = source;
    options.predictions = a->source == NULL;
    int result = 0;
    for (int i = 0; i < options.n_source && result == 0; i++) result = check_tokens(source[i], c);
    if (result == 0) result = sd_passed(sd_input_drafter_create(&c->drafting, &options, drafter));
    PyMem_Free(source);
    return result;
}

/* Create the drafters of a tuple of descriptions, into an array of as many. Returns 0, or -1 with an
 * exception and no drafters. */
static int make_several(PyObject* descriptions, const sd_drafter_context* c, sd_drafter** drafters) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(descriptions); i++) {
        if (sd_drafter_from(PyTuple_GET_ITEM(descriptions, i), c, &drafters[i]) == 0) continue;
        while (i-- > 0) drafters[i]->free(drafters[i]);
        return -1;
    }
    return 0;
}

/* gammas, drafts: the most draft tokens and the description of each drafter, in order */
MAKER(make_ensemble) {
    sd_ensemble_options options = {.adaptive = a->adaptive};
    PyObject* descriptions = sd_items_from(a->drafts, "drafts: expected a sequence of descriptions");
    if (descriptions == NULL) return -1;
    Py_ssize_t n_drafts = PyTuple_GET_SIZE(descriptions);
    int32_t* gammas = NULL;
    sd_drafter** drafters = PyMem_Calloc((size_t)n_drafts + 1, sizeof(sd_drafter*));
    int n, result = drafters == NULL ? sd_no_memory() : sd_ids_from(a->gammas, "gammas", &gammas, &n);
    if (result == 0 && (n < 1 || n != n_drafts))
        result =
            sd_refuse("draft: there are %zd descriptions and %d gammas, expected equal numbers, at least 1",
                      n_drafts, n);
    if (result == 0) result = make_several(descriptions, c, drafters);
    if (result == 0) {
        options.n_drafters = n;
        options.gammas = gammas;
        result = sd_passed(sd_ensemble_drafter_create(&c->drafting, &options, drafters, drafter));
    }
    PyMem_Free(drafters);
    PyMem_Free(gammas);
    Py_DECREF(descriptions);
    return result;
}

/* Every method by name, its maker and the arguments that it takes. */
static const struct {
    const char* name;
    int (*make)(const sd_draft_arguments* arguments, const sd_drafter_context* context, sd_drafter** drafter);
    const char* takes[9]; /* ended by NULL */
} METHODS[] = {
    {"model", make_model, {"model"}},
    {"text", make_text, {"translation", "measured"}},
    {"parallel_chains", make_parallel_chains, {"model", "n_chains"}},
    {"static_tree", make_static_tree, {"model", "parents", "how"}},
    {"dynamic_tree", make_dynamic_tree, {"model", "width", "steps", "sharpness"}},
    {"nested", make_nested, {"model", "draft", "gamma"}},
    {"skip_layers", make_skip_layers, {"skipped"}},
    {"ngram", make_ngram, {"table"}},
    {"online_ngram", make_online_ngram, {"table"}},
    {"context_copy", make_context_copy, {"documents", "min_match", "n_candidates"}},
    {"input_copy", make_input_copy, {"source", "start", "min_match", "n_candidates"}},
    {"prediction_copy", make_input_copy, {"start", "min_match", "n_candidates"}},
    {"suffix_memory", make_suffix_memory, {"memory", "min_match", "factor", "min_probability", "branches"}},
    {"token_recycling", make_token_recycling, {"matrix", "parents", "chances"}},
    {"lookahead", make_lookahead, {"window", "ngram", "candidates"}},
    {"ensemble", make_ensemble, {"adaptive", "gammas", "drafts"}},
    {"recorded", sd_make_recorded, {"draft", "samples"}},
    {"python",
     sd_make_python_drafter,
     {"name", "propose", "begin", "commit", "proposal_type", "generator", "trees", "reads_source"}},
    {"random", make_random, {NULL}},
#ifdef SPECDEC_TESTING
    {"fixed_acceptance", sd_make_fixed_acceptance, {"draft", "alpha", "texts"}},
#endif
};

#define ROW(type, name) {#name, SD_FIELD_##type, offsetof(sd_draft_arguments, name)},
static const struct {
    const char* name;
    sd_field_type type;
    size_t offset;
} ARGUMENTS[] = {SD_DRAFT_ARGUMENTS(ROW)};

/* Read the arguments that a method takes. Returns 0, or -1 with an exception. */
static int read_arguments(const char* method, const char* const* takes, sd_draft_arguments* arguments) {
    sd_field fields[sizeof METHODS->takes / sizeof *METHODS->takes];
    int n = 0;
    for (; takes[n] != NULL; n++) {
        size_t i = 0;
        while (strcmp(ARGUMENTS[i].name, takes[n]) != 0) i++;
        fields[n] = (sd_field){takes[n], ARGUMENTS[i].type, SD_FIELD_REQUIRED,
                               (char*)arguments + ARGUMENTS[i].offset};
    }
    return sd_fields_from(arguments->dict, method, fields, n);
}

/* The method's name and a new dict of its arguments, or NULL with an exception. */
static PyObject* dict_of(PyObject* description, const char** name) {
    PyObject* arguments;
    if (sd_is(description, &sd_model_type)) {
        *name = "model";
        return Py_BuildValue("{sO}", "model", description);
    }
    if (sd_is(description, &sd_ngram_type)) {
        *name = "ngram";
        return Py_BuildValue("{sO}", "table", description);
    }
    if (!PyTuple_Check(description))
        return PyErr_Format(PyExc_TypeError,
                            "draft: expected (method, {argument: value}), a Model or an Ngram");
    if (!PyArg_ParseTuple(description, "sO!;draft: expected (method, {argument: value})", name, &PyDict_Type,
                          &arguments))
        return NULL;
    return PyDict_Copy(arguments);
}

int sd_drafter_from(PyObject* description, const sd_drafter_context* outer, sd_drafter** drafter) {
    sd_drafter_context within = *outer;
    const char* name;
    if (within.depth++ == SD_MAX_DRAFTS_WITHIN)
        return sd_refuse("draft: expected at most %d nested drafts", SD_MAX_DRAFTS_WITHIN);
    if (sd_passed(sd_gamma_check(within.drafting.gamma)) < 0) return -1;
    sd_draft_arguments arguments = {.dict = dict_of(description, &name)};
    if (arguments.dict == NULL) return -1;
    int result = PyList_Append(within.arguments, arguments.dict);
    Py_DECREF(arguments.dict); /* the list has it */
    if (result < 0) return -1;
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (strcmp(name, METHODS[i].name) != 0) continue;
        if (read_arguments(name, METHODS[i].takes, &arguments) < 0) return -1;
        return METHODS[i].make(&arguments, &within, drafter);
    }
    return sd_refuse("draft: there is no method '%s'", name);
}
