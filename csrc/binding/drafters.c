#include "drafters.h"

#include <string.h>

#include "copy_drafter.h"
#include "dynamic_tree_drafter.h"
#include "ensemble_drafter.h"
#include "input_drafter.h"
#include "lookahead_drafter.h"
#include "model_drafter.h"
#include "nested_drafter.h"
#include "ngram_drafter.h"
#include "python_drafter.h"
#include "random_drafter.h"
#include "testing.h"

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

/* The model that drafts, with the target's vocabulary, and what its drafter is made of. */
static int model_options_from(PyObject* argument, const sd_drafter_context* c,
                              sd_model_drafter_options* options) {
    const sd_model_object* object = sd_model_from(c->state, argument, "draft");
    if (object == NULL) return -1;
    int n_draft = object->model->config.n_vocab, n_vocab = c->drafting.n_vocab;
    if (n_draft != n_vocab) {
        return made(sd_fail(SD_ERR_VALUE,
                            "the draft has %d tokens and the target %d, expected one vocabulary", n_draft,
                            n_vocab));
    }
    *options = (sd_model_drafter_options){.model = object->model};
    return 0;
}

/* ("chains", k) or ("shape", how, parents); the parents are to be freed. */
static int shape_from(PyObject* tree, sd_shape_options* shape) {
    static const char* const choices[] = {"sample", "without replacement", "top-k"};
    const char *kind, *how = choices[0];
    PyObject* parents = NULL;
    if (PyArg_ParseTuple(tree, "si", &kind, &shape->n_chains) && strcmp(kind, "chains") == 0) return 0;
    PyErr_Clear();
    *shape = (sd_shape_options){0};
    if (!PyArg_ParseTuple(tree, "ssO", &kind, &how, &parents) || strcmp(kind, "shape") != 0) {
        PyErr_SetString(PyExc_TypeError,
                        "tree: expected (\"chains\", k), (\"shape\", how, parents) or (\"grown\", width, "
                        "steps, sharpness)");
        return -1;
    }
    for (shape->how = SD_CHOOSE_DRAWS; shape->how <= SD_CHOOSE_TOP; shape->how++) {
        if (strcmp(how, choices[shape->how]) != 0) continue;
        int32_t* ids;
        if (sd_ids_from(parents, "parents", &ids, &shape->n_nodes) < 0) return -1;
        shape->parents = ids;
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "tree: how is '%s', expected sample, without replacement or top-k", how);
    return -1;
}

/* arguments: (model,) or (model, tree) */
static int make_model(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *model, *tree = NULL;
    sd_model_drafter_options options;
    if (!PyArg_ParseTuple(arguments, "O|O!;draft: expected (\"model\", Model) or (\"model\", Model, tree)",
                          &model, &PyTuple_Type, &tree))
        return -1;
    if (model_options_from(model, c, &options) < 0) return -1;
    const char* kind;
    sd_dynamic_tree_options dynamic;
    sd_status status;
    if (tree != NULL &&
        PyArg_ParseTuple(tree, "siid", &kind, &dynamic.width, &dynamic.steps, &dynamic.sharpness) &&
        strcmp(kind, "grown") == 0) {
        status = sd_dynamic_tree_drafter_create(&c->drafting, &options, &dynamic, drafter);
    } else {
        sd_shape_options shape = {.n_chains = 1};
        PyErr_Clear();
        if (tree != NULL && shape_from(tree, &shape) < 0) return -1;
        status = sd_model_drafter_create(&c->drafting, &options, &shape, drafter);
        PyMem_Free((void*)shape.parents);
    }
    return made(status);
}

/* arguments: (model, description of the drafter that drafts for it, its gamma) */
static int make_nested(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *model, *description;
    sd_model_drafter_options options;
    sd_nested_options nested;
    if (!PyArg_ParseTuple(arguments,
                          "OOi;draft: expected (\"speculating\", Model, description, gamma of its draft)",
                          &model, &description, &nested.inner_gamma))
        return -1;
    if (model_options_from(model, c, &options) < 0) return -1;
    sd_drafter_context inner = *c;
    inner.target = options.model;
    inner.drafting = sd_nested_inner(&c->drafting, nested.inner_gamma);
    if (sd_drafter_from(description, &inner, &nested.inner) < 0) return -1;
    return made(sd_nested_drafter_create(&c->drafting, &options, &nested, drafter));
}

/* arguments: (skipped,): bytes [n_layer], what is passed by of each layer (forward.h) */
static int make_layers(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* bytes;
    if (!PyArg_ParseTuple(arguments, "S;draft: expected (\"layers\", bytes)", &bytes)) return -1;
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
    const sd_model_drafter_options options = {c->target, skipped};
    const sd_shape_options chain = {.n_chains = 1};
    return made(sd_model_drafter_create(&c->drafting, &options, &chain, drafter));
}

/* arguments: (table,) */
static int make_table(PyObject* arguments, const sd_drafter_context* c, int online, sd_drafter** drafter) {
    PyObject* argument;
    if (!PyArg_ParseTuple(arguments, "O!;draft: expected (method, Ngram)", c->state->ngram_type, &argument))
        return -1;
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
    return make_table(arguments, c, 0, drafter);
}

static int make_online_ngram(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    return make_table(arguments, c, 1, drafter);
}

/* arguments: () */
static int make_random(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    if (!PyArg_ParseTuple(arguments, ";draft: expected (\"random\",)")) return -1;
    return made(sd_random_drafter_create(&c->drafting, drafter));
}

/* arguments: (window, ngram, candidates) */
static int make_lookahead(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    sd_lookahead_options options;
    if (!PyArg_ParseTuple(arguments, "iii;draft: expected (\"lookahead\", window, ngram, candidates)",
                          &options.window, &options.ngram, &options.candidates))
        return -1;
    return made(sd_lookahead_drafter_create(&c->drafting, &options, drafter));
}

/* arguments: (documents, min_match, n_candidates); documents: an Automaton or None */
static int make_context_copy(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* given;
    sd_copy_options options = {0};
    if (!PyArg_ParseTuple(arguments,
                          "Oii;draft: expected (\"context_copy\", documents, min_match, n_candidates)",
                          &given, &options.min_match, &options.n_candidates))
        return -1;
    if (given != Py_None) {
        const sd_automaton_object* documents = sd_automaton_from(c->state, given, "draft");
        if (documents == NULL) return -1;
        if (check_tokens(documents->max_token, c) < 0) return -1;
        options.documents = &documents->automaton;
    }
    return made(sd_copy_drafter_create(&c->drafting, &options, drafter));
}

/* arguments: (source, start, min_match, n_candidates); source: ids or None */
static int make_input_copy(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject* given;
    int32_t* source = NULL;
    sd_input_options options = {0};
    if (!PyArg_ParseTuple(arguments,
                          "Oiii;draft: expected (\"input_copy\", source, start, min_match, n_candidates)",
                          &given, &options.start, &options.min_match, &options.n_candidates))
        return -1;
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

/* arguments: (adaptive, gammas, descriptions): of the drafters, in their order */
static int make_ensemble(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    sd_ensemble_options options = {.gamma = c->drafting.gamma,
                                   .n_sequences = c->drafting.n_sequences,
                                   .coupled = c->drafting.rule == SD_RULE_COUPLED};
    PyObject *list, *descriptions;
    if (!PyArg_ParseTuple(arguments, "pOO!;draft: expected (\"best\", adaptive, gammas, descriptions)",
                          &options.adaptive, &list, &PyTuple_Type, &descriptions))
        return -1;
    int32_t* gammas;
    int n, result = -1;
    if (sd_ids_from(list, "gammas", &gammas, &n) < 0) return -1;
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
        result = made(sd_ensemble_drafter_create(&options, drafters, drafter));
    }
    PyMem_Free(drafters);
    PyMem_Free(gammas);
    return result;
}

/* Every method by name. A maker is given what stands behind the name. */
static const struct {
    const char* name;
    int (*make)(PyObject* arguments, const sd_drafter_context* context, sd_drafter** drafter);
} METHODS[] = {
    {"model", make_model},
    {"best", make_ensemble},
    {"lookahead", make_lookahead},
    {"python", sd_make_python_drafter},
    {"ngram", make_ngram},
    {"online_ngram", make_online_ngram},
    {"random", make_random},
    {"context_copy", make_context_copy},
    {"input_copy", make_input_copy},
    {"layers", make_layers},
    {"speculating", make_nested},
#ifdef SPECDEC_TESTING
    {"fixed_acceptance", sd_make_fixed_acceptance},
#endif
};

/* A description that is no tuple stands for the method that has nothing else to say. */
static int from_object(PyObject* object, const sd_drafter_context* c, sd_drafter** drafter) {
    int is_table = PyObject_TypeCheck(object, c->state->ngram_type);
    PyObject* arguments = PyTuple_Pack(1, object);
    if (arguments == NULL) return -1;
    int result = (is_table ? make_ngram : make_model)(arguments, c, drafter);
    Py_DECREF(arguments);
    return result;
}

int sd_drafter_from(PyObject* description, const sd_drafter_context* c, sd_drafter** drafter) {
    if (!PyTuple_Check(description)) return from_object(description, c, drafter);
    PyObject* first = PyTuple_GET_SIZE(description) > 0 ? PyTuple_GET_ITEM(description, 0) : NULL;
    const char* name = first != NULL && PyUnicode_Check(first) ? PyUnicode_AsUTF8(first) : NULL;
    if (name == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "draft: expected (method, ...)");
        return -1;
    }
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (strcmp(name, METHODS[i].name) != 0) continue;
        PyObject* arguments = PyTuple_GetSlice(description, 1, PyTuple_GET_SIZE(description));
        int result = arguments ? METHODS[i].make(arguments, c, drafter) : -1;
        Py_XDECREF(arguments);
        return result;
    }
    PyErr_Format(PyExc_ValueError, "draft: there is no method '%s'", name);
    return -1;
}
