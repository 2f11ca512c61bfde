/* The types of the extension module and what they share. */
#ifndef SD_MODULE_H
#define SD_MODULE_H

#include "adaptive_gamma.h"
#include "automaton.h"
#include "cache.h"
#include "exclusive.h"
#include "heads.h"
#include "predictors.h"
#include "recurrent.h"
#include "settings.h"
#include "suffix_tree.h"
#include "tables.h"
#include "translation.h"
#include "watched_drafter.h"
#include "weights.h"

typedef struct sd_module_state {
    PyTypeObject *model_type, *ngram_type, *automaton_type, *suffix_tree_type, *token_matrix_type,
        *decoder_type, *corrections_type, *session_type, *beam_type, *adaptive_gamma_type, *cached_text_type,
        *recurrent_type, *look_ahead_type, *eagle_type, *heads_type, *translation_type, *settings_type;
    PyTypeObject* slot_round_type;
    PyObject* round_class; /* specdec.trace.Round; both NULL before the first session */
} sd_module_state;

typedef struct sd_model_object {
    PyObject_HEAD sd_model* model; /* owned; NULL until __init__ has succeeded */
    PyObject* config;              /* dict */
    PyObject* target;    /* strong reference to the Model whose table or head is shared, or whose weights an
                       * adapted model has; NULL: there is none */
    Py_buffer packed[2]; /* memory of others that the model lies in; obj NULL: there is none */
    sd_exclusive exclusive; /* of __init__ */
} sd_model_object;

typedef struct sd_eagle_object {
    PyObject_HEAD sd_model_object* model; /* strong reference; NULL until __init__ has succeeded */
    sd_eagle eagle;
    int32_t* tokens;        /* of the eagle, PyMem_Free */
    sd_exclusive exclusive; /* of __init__ */
} sd_eagle_object;

typedef struct sd_ngram_object {
    PyObject_HEAD sd_ngram_table table; /* its n is 0 until __init__ has succeeded */
    Py_buffer views[3 * SD_MAX_NGRAM];  /* the first n_views are held: the arrays that the table borrows */
    int n_views;
    sd_exclusive exclusive; /* of __init__ */
} sd_ngram_object;

typedef struct sd_automaton_object {
    PyObject_HEAD sd_arena arena; /* owns the automaton's arrays */
    sd_automaton automaton;       /* its states are NULL until __init__ has succeeded */
    int32_t max_token;            /* of its text, at least 0 */
} sd_automaton_object;

typedef struct sd_corrections_object {
    PyObject_HEAD sd_corrections ring; /* its entries are NULL until __init__ has succeeded */
} sd_corrections_object;

typedef struct sd_heads_object {
    PyObject_HEAD sd_heads* heads; /* owned; NULL until __init__ has succeeded */
    sd_exclusive exclusive;        /* of __init__ */
} sd_heads_object;

typedef struct sd_suffix_tree_object {
    PyObject_HEAD sd_suffix_memory memory; /* its tree is NULL until __init__ has succeeded */
    sd_exclusive exclusive;                /* of __init__ and of who adds */
} sd_suffix_tree_object;

typedef struct sd_token_matrix_object {
    PyObject_HEAD sd_token_matrix matrix; /* owns its rows, which are NULL until __init__ has succeeded */
    sd_exclusive exclusive;               /* of __init__ */
} sd_token_matrix_object;

typedef struct sd_adaptive_gamma_object {
    PyObject_HEAD sd_adaptive_gamma learnt;
} sd_adaptive_gamma_object;

typedef struct sd_cached_text_object {
    PyObject_HEAD sd_model_object* model; /* strong reference */
    sd_cache cache;                       /* never changes, so threads may read it at the same time */
} sd_cached_text_object;

typedef struct sd_look_ahead_object {
    PyObject_HEAD float* memory; /* owned (PyMem_Free); NULL until __init__ has succeeded */
    sd_extra_queries extra;      /* it borrows from `memory` */
} sd_look_ahead_object;

typedef struct sd_settings_object {
    PyObject_HEAD sd_settings
        settings; /* without transform and constraint; max_new_tokens is 0 until __init__ has succeeded */
    sd_sampling sampling, draft_sampling; /* their arrays are owned */
    int32_t *stop_ids, *prediction;       /* owned (PyMem_Free) */
    PyObject* transform;                  /* strong reference, or NULL */
    PyObject* constraint;                 /* strong reference, or NULL */
    PyObject* model;                      /* whose text it is: strong reference, or NULL */
    int has_states;                       /* the transform has a method `start` */
    sd_exclusive exclusive;               /* of __init__ */
} sd_settings_object;

typedef struct sd_recurrent_object {
    PyObject_HEAD sd_recurrent* recurrent; /* owned; NULL until __init__ has succeeded */
    sd_exclusive exclusive;                /* of __init__ */
} sd_recurrent_object;

#define SD_N_TRANSLATION_ARRAYS 7

typedef struct sd_translation_object {
    PyObject_HEAD sd_model_object* model; /* strong reference */
    PyObject *strings[2], *encoders[3];   /* strong: bytes of target and draft; functions, by sd_encoding */
    Py_buffer views[SD_N_TRANSLATION_ARRAYS]; /* the first n_views are held: the arrays of its tables */
    int n_views;
    sd_translation translation;          /* it borrows from all of these */
    int n_pairs;                         /* tokens that both vocabularies have */
    atomic_llong n_rows, named;          /* its counters */
    atomic_llong n_encoded, encoding_ns; /* calls of encoders, and their time */
    int ready;                           /* __init__ has succeeded */
} sd_translation_object;

/* Garbage collection. Every type that owns Python objects shows them to the collector. Session alone is also
 * cleared by it: models, tables and decoders lend memory to sessions, which may be cleared later, and so they
 * live as long as they are referred to, as tuples do. A cycle through one of them is collected if it leads
 * through an object that can be cleared, such as a dict; one of such types and tuples alone is not. */
extern PyType_Spec sd_model_spec, sd_ngram_spec, sd_automaton_spec, sd_suffix_tree_spec, sd_token_matrix_spec,
    sd_decoder_spec, sd_corrections_spec, sd_session_spec, sd_beam_spec, sd_adaptive_gamma_spec,
    sd_cached_text_spec, sd_recurrent_spec, sd_look_ahead_spec, sd_eagle_spec, sd_heads_spec,
    sd_translation_spec, sd_settings_spec;
extern PyMethodDef sd_functions[];

/* The finished model of a Model argument, borrowed; NULL with an exception. `state` is the module's. */
sd_model_object* sd_model_from(const sd_module_state* state, PyObject* object, const char* name);

/* What an object of the type Eagle holds, borrowed; NULL with an exception. */
const sd_eagle* sd_eagle_from(PyObject* object);

/* The finished automaton of an Automaton argument, borrowed; NULL with an exception. */
sd_automaton_object* sd_automaton_from(const sd_module_state* state, PyObject* object, const char* name);

/* The finished settings of a Settings argument, borrowed; NULL with an exception. */
sd_settings_object* sd_settings_from(const sd_module_state* state, PyObject* object);

/* The vectors of an object of the type LookAheadEmbeddings, borrowed; NULL with an exception. */
const sd_extra_queries* sd_look_ahead_from(PyObject* object, const char* name);

/* The finished weights of an object of the type Recurrent, borrowed; NULL with an exception. */
const sd_recurrent* sd_recurrent_from(PyObject* object, const char* name);

/* The finished heads of an object of the type Heads, borrowed; NULL with an exception. */
const sd_heads* sd_heads_from(PyObject* object, const char* name);

/* The finished object of a Translation argument, borrowed; NULL with an exception. */
sd_translation_object* sd_translation_from(const sd_module_state* state, PyObject* object, const char* name);

/* The finished object of a SuffixTree or TokenMatrix argument, borrowed; NULL with an exception. */
sd_suffix_tree_object* sd_suffix_tree_from(const sd_module_state* state, PyObject* object, const char* name);
sd_token_matrix_object* sd_token_matrix_from(const sd_module_state* state, PyObject* object,
                                             const char* name);

/* A new object of the type AdaptiveGamma; NULL with an exception. */
PyObject* sd_adaptive_gamma_new(PyTypeObject* type, const sd_adaptive_gamma* learnt);

/* A copy of what an AdaptiveGamma argument has learnt. Returns 0, or -1 with an exception. */
int sd_adaptive_gamma_from(const sd_module_state* state, PyObject* object, sd_adaptive_gamma* learnt);

/* A new object of the type CachedText with a copy of what a cache of the model has committed; NULL with an
 * exception. The cache must not change meanwhile: the copying releases the GIL. */
PyObject* sd_cached_text_new(PyTypeObject* type, sd_model_object* model, const sd_cache* cache);

/* Which hidden states a cache keeps: a new tuple; NULL with an exception. */
PyObject* sd_taps_as_tuple(const sd_taps* taps);

/* A CachedText argument, borrowed; NULL with an exception. */
sd_cached_text_object* sd_cached_text_from(const sd_module_state* state, PyObject* object);

/* A Corrections argument, borrowed; NULL with an exception. */
sd_corrections_object* sd_corrections_from(const sd_module_state* state, PyObject* object);

/* A number format, and what multiplies matrices, by the name that Python gives it; -1 with an exception that
 * names `argument`. */
int sd_format_from(const char* name, const char* argument, sd_format* format);
int sd_engine_from(const char* name, const char* argument, sd_engine* engine);

/* The module's functions `product` (product.c), `verify` (verification.c), `score` and `score_texts`
 * (scores.c). */
PyObject* sd_product(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_score_of_text(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_score_of_texts(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_verify_arrays(PyObject* module, PyObject* args, PyObject* kwargs);
/* Those of the thresholds of kernels, and `processor` (threshold_trials.c). */
PyObject* sd_used_thresholds(PyObject* module, PyObject* ignored);
PyObject* sd_own_thresholds(PyObject* module, PyObject* ignored);
PyObject* sd_set_thresholds(PyObject* module, PyObject* argument);
PyObject* sd_panel_formats(PyObject* module, PyObject* ignored);
PyObject* sd_panel_seconds(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_processor(PyObject* module, PyObject* ignored);

#endif
