/* The extension module specdec._core. */
#include "module.h"

#include <stdlib.h>

#include "kernels.h"
#include "testing.h"
#include "tree.h"

static int add_type(PyObject* module, PyType_Spec* spec, PyTypeObject** type) {
    *type = (PyTypeObject*)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int execute(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    sd_pool_init();
    sd_status status = sd_kernels_choose(getenv("SPECDEC_KERNELS"));
    if (status != SD_OK) {
        PyErr_SetString(PyExc_ImportError, sd_message());
        return -1;
    }
    if (add_type(module, &sd_model_spec, &state->model_type) < 0 ||
        add_type(module, &sd_ngram_spec, &state->ngram_type) < 0 ||
        add_type(module, &sd_automaton_spec, &state->automaton_type) < 0 ||
        add_type(module, &sd_suffix_tree_spec, &state->suffix_tree_type) < 0 ||
        add_type(module, &sd_token_matrix_spec, &state->token_matrix_type) < 0 ||
        add_type(module, &sd_decoder_spec, &state->decoder_type) < 0 ||
        add_type(module, &sd_corrections_spec, &state->corrections_type) < 0 ||
        add_type(module, &sd_session_spec, &state->session_type) < 0 ||
        add_type(module, &sd_beam_spec, &state->beam_type) < 0 ||
        add_type(module, &sd_adaptive_gamma_spec, &state->adaptive_gamma_type) < 0 ||
        add_type(module, &sd_cached_text_spec, &state->cached_text_type) < 0 ||
        add_type(module, &sd_recurrent_spec, &state->recurrent_type) < 0 ||
        add_type(module, &sd_look_ahead_spec, &state->look_ahead_type) < 0 ||
        add_type(module, &sd_eagle_spec, &state->eagle_type) < 0 ||
        add_type(module, &sd_heads_spec, &state->heads_type) < 0)
        return -1;
#ifdef SPECDEC_TESTING
    if (PyModule_AddFunctions(module, sd_testing_functions) < 0) return -1;
#endif
    if (PyModule_AddIntConstant(module, "MAX_GAMMA", SD_MAX_GAMMA) < 0) return -1;
    return PyModule_AddStringConstant(module, "__version__", SPECDEC_VERSION);
}

static int traverse(PyObject* module, visitproc visit, void* arg) {
    sd_module_state* state = PyModule_GetState(module);
    Py_VISIT(state->model_type);
    Py_VISIT(state->ngram_type);
    Py_VISIT(state->automaton_type);
    Py_VISIT(state->suffix_tree_type);
    Py_VISIT(state->token_matrix_type);
    Py_VISIT(state->decoder_type);
    Py_VISIT(state->corrections_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->beam_type);
    Py_VISIT(state->adaptive_gamma_type);
    Py_VISIT(state->cached_text_type);
    Py_VISIT(state->recurrent_type);
    Py_VISIT(state->look_ahead_type);
    Py_VISIT(state->eagle_type);
    Py_VISIT(state->heads_type);
    return 0;
}

static int clear(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    Py_CLEAR(state->model_type);
    Py_CLEAR(state->ngram_type);
    Py_CLEAR(state->automaton_type);
    Py_CLEAR(state->suffix_tree_type);
    Py_CLEAR(state->token_matrix_type);
    Py_CLEAR(state->decoder_type);
    Py_CLEAR(state->corrections_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->beam_type);
    Py_CLEAR(state->adaptive_gamma_type);
    Py_CLEAR(state->cached_text_type);
    Py_CLEAR(state->recurrent_type);
    Py_CLEAR(state->look_ahead_type);
    Py_CLEAR(state->eagle_type);
    Py_CLEAR(state->heads_type);
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
