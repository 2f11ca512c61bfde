/* Types of the extension module, and their shared parts. */
#pragma once

#include "adaptive_gamma.h"
#include "automaton.h"
#include "cache.h"
#include "convert.h"
#include "heads.h"
#include "predictors.h"
#include "recorded_drafter.h"
#include "recurrent.h"
#include "sequence.h"
#include "suffix_tree.h"
#include "tables.h"
#include "translation.h"
#include "weights.h"

/* The table of types, F(name, Name): specdec._core.Name has the struct sd_name_object and an sd_name_type. */
#define SD_TYPES(F)                    \
    F(adaptive_gamma, AdaptiveGamma)   \
    F(automaton, Automaton)            \
    F(beam, BeamSearch)                \
    F(cached_text, CachedText)         \
    F(online_samples, OnlineSamples)   \
    F(decoder, Decoder)                \
    F(eagle, Eagle)                    \
    F(heads, Heads)                    \
    F(look_ahead, LookAheadEmbeddings) \
    F(model, Model)                    \
    F(ngram, Ngram)                    \
    F(recurrent, Recurrent)            \
    F(session, Session)                \
    F(settings, Settings)              \
    F(suffix_tree, SuffixTree)         \
    F(token_matrix, TokenMatrix)       \
    F(translation, Translation)

/* First members of every object. */
typedef struct sd_object {
    PyObject_HEAD const struct sd_type_spec* spec;
} sd_object;

/* A type. Its objects are created by `make`, so none is half initialized. The garbage collector clears only
 * objects with `traverse`. Models, tables and decoders lend memory to sessions, which may be cleared later;
 * so they live as long as there are references, like tuples. */
typedef struct sd_type_spec {
    const char* doc; /* text signature and docstring */
    size_t size;     /* size of its struct, all zeros before `make` */
    /* Initialize an object; on failure its contents are released. Returns 0, or -1 with an exception. NULL:
     * Python cannot create one. */
    int (*make)(PyObject* self, PyObject* args, PyObject* kwargs);
    void (*release)(PyObject* self); /* release what it owns, except the two below; NULL: nothing */
    size_t references[4];            /* offsets of its PyObject*, strong or NULL; terminated by 0 */
    size_t views;                    /* offset of its Py_buffer [n_views], held or zeros */
    int n_views;
    traverseproc traverse; /* visits further references; such objects are cleared. NULL: no others */
    PyMethodDef* methods;
    PyGetSetDef* getters;
    PyMemberDef* members;
} sd_type_spec;

/* For each type: its enumerator, its spec, and a checked cast of an argument (borrowed; NULL with
 * TypeError). */
#define SD_DECLARE_TYPE(name, Name)                                                              \
    typedef struct sd_##name##_object sd_##name##_object;                                        \
    extern const sd_type_spec sd_##name##_type;                                                  \
    static inline sd_##name##_object* sd_##name##_from(PyObject* object, const char* argument) { \
        return (sd_##name##_object*)sd_object_from(object, &sd_##name##_type, #Name, argument);  \
    }
#define SD_ENUMERATE_TYPE(name, Name) SD_TYPE_##name,
typedef enum sd_type { SD_TYPES(SD_ENUMERATE_TYPE) SD_N_TYPES } sd_type;

PyObject* sd_object_from(PyObject* object, const sd_type_spec* spec, const char* type, const char* argument);
SD_TYPES(SD_DECLARE_TYPE)

/* Is it an object of this type? */
int sd_is(const PyObject* object, const sd_type_spec* spec);

typedef struct sd_module_state {
    PyTypeObject* types[SD_N_TYPES];
    PyTypeObject* slot_round_type;
    PyObject* round_class;  /* specdec.trace.Round; like the others NULL before the first session */
    PyObject* round_fields; /* names of its fields, a tuple */
} sd_module_state;

/* A new, uninitialized object of a type, in the module of another object; NULL with an exception. */
PyObject* sd_object_new(PyObject* other, sd_type type);

/* Attributes of packed weights. */
typedef struct sd_weights_figures {
    const char* dtype; /* of the matrices */
    size_t n_bytes;
    long long n_parameters;
} sd_weights_figures;

struct sd_model_object {
    sd_object base;
    sd_model* model; /* owned */
    sd_weights_figures figures;
    const char *cache_dtype, *prefill;
    unsigned long long layout;
    uint64_t digest; /* of the weights, once it is computed */
    int prompt_slice, has_digest;
    PyObject* config;    /* dict */
    PyObject* target;    /* Model whose table or head is shared, or that an adapted model builds on */
    Py_buffer packed[2]; /* memory of others that holds the model */
};

struct sd_eagle_object {
    sd_object base;
    PyObject* model;
    sd_eagle eagle;
    int32_t* tokens; /* of the eagle; PyMem_Free */
};

struct sd_ngram_object {
    sd_object base;
    sd_ngram_table table;
    Py_buffer views[3 * SD_MAX_NGRAM]; /* arrays that the table borrows */
};

struct sd_automaton_object {
    sd_object base;
    sd_arena arena; /* owns the automaton's arrays */
    sd_automaton automaton;
    int32_t max_token; /* of its text, at least 0 */
};

struct sd_online_samples_object {
    sd_object base;
    sd_online_samples ring;
};

struct sd_heads_object {
    sd_object base;
    sd_heads* heads; /* owned */
    sd_weights_figures figures;
};

struct sd_suffix_tree_object {
    sd_object base;
    sd_suffix_memory memory;
    sd_exclusive exclusive; /* held while adding */
};

struct sd_token_matrix_object {
    sd_object base;
    sd_token_matrix matrix; /* owns its rows */
};

struct sd_adaptive_gamma_object {
    sd_object base;
    sd_adaptive_gamma learned;
};

struct sd_cached_text_object {
    sd_object base;
    PyObject* model;
    sd_cache cache; /* never changes, so threads may read it concurrently */
    size_t n_bytes;
};

struct sd_look_ahead_object {
    sd_object base;
    float* memory;          /* PyMem_Free */
    sd_extra_queries extra; /* borrows from `memory` */
};

struct sd_settings_object {
    sd_object base;
    sd_settings settings;                 /* without transform and constraint */
    sd_sampling sampling, draft_sampling; /* their arrays are owned */
    int32_t *stop_ids, *prediction;       /* PyMem_Free */
    PyObject *transform, *constraint;
    PyObject* model; /* model of the sequence */
    int has_states;  /* the transform has a method `start` */
};

struct sd_recurrent_object {
    sd_object base;
    sd_recurrent* recurrent; /* owned */
    sd_weights_figures figures;
};

#define SD_N_TRANSLATION_ARRAYS 7

struct sd_translation_object {
    sd_object base;
    PyObject *model, *strings, *encoders; /* tuples: bytes of target and draft; functions, by sd_encoding */
    Py_buffer views[SD_N_TRANSLATION_ARRAYS]; /* the arrays of its tables */
    sd_translation translation;               /* borrows from all of these */
    int n_pairs;                              /* tokens that both vocabularies have */
    atomic_llong n_rows, named;               /* its counters */
    atomic_llong n_encoded, encoding_ns;      /* calls of encoders, and their time */
};

/* A new CachedText with a copy of a cache's committed tokens; NULL with an exception. The cache must not
 * change meanwhile: copying releases the GIL. */
PyObject* sd_cached_text_new(sd_model_object* model, const sd_cache* cache);

/* Tokens of a cache's snapshots, from `low` on: a new tuple, or NULL with an exception. */
PyObject* sd_snapshots_of(const sd_cache* cache, int low);

/* Find a number format or an engine of matrix products by its Python name; -1 with an exception that names
 * `argument`. */
int sd_format_from(const char* name, const char* argument, sd_format* format);
int sd_engine_from(const char* name, const char* argument, sd_engine* engine);

/* The module's functions: functions.c, and those in their own files. */
extern PyMethodDef sd_functions[];
PyObject* sd_product_of_arrays(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_score_of_texts(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_verify_arrays(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_used_thresholds(PyObject* module, PyObject* ignored);
PyObject* sd_own_thresholds(PyObject* module, PyObject* ignored);
PyObject* sd_set_thresholds(PyObject* module, PyObject* argument);
PyObject* sd_panel_formats(PyObject* module, PyObject* ignored);
PyObject* sd_panel_seconds(PyObject* module, PyObject* args, PyObject* kwargs);
PyObject* sd_processor(PyObject* module, PyObject* ignored);

/* Entries of tables of methods and of attributes. */
#define SD_KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS
#define SD_MEMBER(name, type, struct_, member, doc) {name, type, offsetof(struct_, member), READONLY, doc}
#define SD_FIGURES(struct_)                                                                     \
    SD_MEMBER("dtype", T_STRING, struct_, figures.dtype, "Number format of the matrices."),     \
        SD_MEMBER("n_bytes", T_PYSSIZET, struct_, figures.n_bytes, "Bytes of packed weights."), \
        SD_MEMBER("n_parameters", T_LONGLONG, struct_, figures.n_parameters, "Weights.")
