/* The extension module specdec._core. */
#include "module.h"

#include <stddef.h>
#include <stdlib.h>

#include "cache.h"
#include "heads.h"
#include "kernels.h"
#include "recurrent.h"
#include "testing.h"
#include "tree.h"

/* The types of the module: what each is made of, and where the state has it. */
static const struct {
    PyType_Spec* spec;
    size_t offset;
} types[] = {
    {&sd_model_spec, offsetof(sd_module_state, model_type)},
    {&sd_ngram_spec, offsetof(sd_module_state, ngram_type)},
    {&sd_automaton_spec, offsetof(sd_module_state, automaton_type)},
    {&sd_suffix_tree_spec, offsetof(sd_module_state, suffix_tree_type)},
    {&sd_token_matrix_spec, offsetof(sd_module_state, token_matrix_type)},
    {&sd_decoder_spec, offsetof(sd_module_state, decoder_type)},
    {&sd_corrections_spec, offsetof(sd_module_state, corrections_type)},
    {&sd_session_spec, offsetof(sd_module_state, session_type)},
    {&sd_beam_spec, offsetof(sd_module_state, beam_type)},
    {&sd_adaptive_gamma_spec, offsetof(sd_module_state, adaptive_gamma_type)},
    {&sd_cached_text_spec, offsetof(sd_module_state, cached_text_type)},
    {&sd_recurrent_spec, offsetof(sd_module_state, recurrent_type)},
    {&sd_look_ahead_spec, offsetof(sd_module_state, look_ahead_type)},
    {&sd_eagle_spec, offsetof(sd_module_state, eagle_type)},
    {&sd_heads_spec, offsetof(sd_module_state, heads_type)},
    {&sd_translation_spec, offsetof(sd_module_state, translation_type)},
    {&sd_settings_spec, offsetof(sd_module_state, settings_type)},
};
enum { N_TYPES = sizeof types / sizeof *types };

static PyTypeObject** type_at(sd_module_state* state, int i) {
    return (PyTypeObject**)(void*)((char*)state + types[i].offset);
}

static int add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** type) {
    *type = (PyTypeObject*)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* The limits that Python names in messages. */
static const struct {
    const char* name;
    int value;
} limits[] = {
    {"MAX_GAMMA", SD_MAX_GAMMA},
    {"MAX_TAPS", SD_MAX_TAPS},
    {"MAX_HEADS", SD_MAX_HEADS},
    {"MAX_HEAD_BLOCKS", SD_MAX_HEAD_BLOCKS},
    {"MAX_RECURRENT_LAYERS", SD_MAX_RECURRENT_LAYERS},
};

static int execute(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    sd_pool_init();
    sd_status status = sd_kernels_choose(getenv("SPECDEC_KERNELS"));
    if (status != SD_OK) {
        PyErr_SetString(PyExc_ImportError, sd_message());
        return -1;
    }
    for (int i = 0; i < N_TYPES; i++)
        if (add_type(module, types[i].spec, type_at(state, i)) < 0) return -1;
#ifdef SPECDEC_TESTING
    if (PyModule_AddFunctions(module, sd_testing_functions) < 0) return -1;
#endif
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (PyModule_AddIntConstant(module, limits[i].name, limits[i].value) < 0) return -1;
    return PyModule_AddStringConstant(module, "__version__", SPECDEC_VERSION);
}

static int traverse(PyObject* module, visitproc visit, void* arg) {
    sd_module_state* state = PyModule_GetState(module);
    for (int i = 0; i < N_TYPES; i++) Py_VISIT(*type_at(state, i));
    Py_VISIT(state->slot_round_type);
    Py_VISIT(state->round_class);
    return 0;
}

static int clear(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    for (int i = 0; i < N_TYPES; i++) Py_CLEAR(*type_at(state, i));
    Py_CLEAR(state->slot_round_type);
    Py_CLEAR(state->round_class);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "specdec._core",
    .m_doc = "The C core of specdec.",
    .m_size = sizeof(sd_module_state),
    .m_methods = sd_functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
