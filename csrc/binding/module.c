/* The extension module specdec._core. */
#include "module.h"

#include <stddef.h>
#include <stdlib.h>

#include "heads.h"
#include "kernels.h"
#include "recurrent.h"
#include "testing.h"
#include "tree.h"

/* -------------------------------------------------------------------------- objects of the types */

static PyObject** reference(PyObject* self, size_t offset) {
    return (PyObject**)(void*)((char*)self + offset);
}

static Py_buffer* views_of(PyObject* self, const sd_type_spec* spec) {
    return (Py_buffer*)(void*)((char*)self + spec->views);
}

static int traverse(PyObject* self, visitproc visit, void* arg) {
    const sd_type_spec* spec = ((sd_object*)self)->spec;
    Py_VISIT(Py_TYPE(self));
    for (const size_t* offset = spec->references; *offset > 0; offset++) Py_VISIT(*reference(self, *offset));
    for (int i = 0; i < spec->n_views; i++) {
        PyObject* owner = views_of(self, spec)[i].obj;
        /* The collector may clear a memoryview that is exported, which then cannot be released. */
        if (owner != NULL && !PyMemoryView_Check(owner)) Py_VISIT(owner);
    }
    return spec->traverse ? spec->traverse(self, visit, arg) : 0;
}

static int clear(PyObject* self) {
    const sd_type_spec* spec = ((sd_object*)self)->spec;
    if (spec->release) spec->release(self); /* first: what it owns borrows from the others */
    for (int i = 0; i < spec->n_views; i++) PyBuffer_Release(&views_of(self, spec)[i]);
    for (const size_t* offset = spec->references; *offset > 0; offset++) Py_CLEAR(*reference(self, *offset));
    return 0;
}

static void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Allocate an object that the garbage collector does not track yet. */
static PyObject* allocate(PyTypeObject* type, const sd_type_spec* spec) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    PyObject_GC_UnTrack(self);
    ((sd_object*)self)->spec = spec;
    return self;
}

static PyObject* make(PyTypeObject* type, const sd_type_spec* spec, PyObject* args, PyObject* kwargs) {
    PyObject* self = allocate(type, spec);
    if (self == NULL) return NULL;
    if (spec->make(self, args, kwargs) == 0)
        PyObject_GC_Track(self);
    else
        Py_CLEAR(self);
    return self;
}

int sd_is(const PyObject* object, const sd_type_spec* spec) {
    return Py_TYPE(object)->tp_dealloc == dealloc && ((const sd_object*)object)->spec == spec;
}

PyObject* sd_object_from(PyObject* object, const sd_type_spec* spec, const char* type, const char* argument) {
    if (sd_is(object, spec)) return object;
    return PyErr_Format(PyExc_TypeError, "%s: expected specdec._core.%s, not %s", argument, type,
                        Py_TYPE(object)->tp_name);
}

/* ------------------------------------------------------------------------------------- the types */

#define NEW(name, Name)                                                                 \
    static PyObject* new_##name(PyTypeObject* type, PyObject* args, PyObject* kwargs) { \
        return make(type, &sd_##name##_type, args, kwargs);                             \
    }
SD_TYPES(NEW)

#define ROW(name, Name) {"specdec._core." #Name, &sd_##name##_type, new_##name},
static const struct {
    const char* name;
    const sd_type_spec* spec;
    newfunc new;
} types[SD_N_TYPES] = {SD_TYPES(ROW)};

PyObject* sd_object_new(PyObject* other, sd_type type) {
    const sd_module_state* state = PyType_GetModuleState(Py_TYPE(other));
    PyObject* self = allocate(state->types[type], types[type].spec);
    if (self != NULL) PyObject_GC_Track(self);
    return self;
}

static int add_type(PyObject* module, sd_type i, PyTypeObject** type) {
    const sd_type_spec* spec = types[i].spec;
    const PyType_Slot all[] = {{Py_tp_doc, (void*)spec->doc},
                               {Py_tp_new, spec->make ? (void*)types[i].new : NULL},
                               {Py_tp_dealloc, (void*)dealloc},
                               {Py_tp_traverse, (void*)traverse},
                               {Py_tp_clear, spec->traverse ? (void*)clear : NULL},
                               {Py_tp_methods, spec->methods},
                               {Py_tp_getset, spec->getters},
                               {Py_tp_members, spec->members}};
    enum { N = sizeof all / sizeof *all };
    PyType_Slot slots[N + 1] = {0};
    for (int slot = 0, n = 0; slot < N; slot++)
        if (all[slot].pfunc != NULL) slots[n++] = all[slot];
    unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    if (spec->make == NULL) flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
    PyType_Spec python_spec = {types[i].name, (int)spec->size, 0, flags, slots};
    *type = (PyTypeObject*)PyType_FromModuleAndSpec(module, &python_spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* ------------------------------------------------------------------------------------ the module */

/* Limits for messages in Python. */
static const struct {
    const char* name;
    int value;
} limits[] = {
    {"MAX_GAMMA", SD_MAX_GAMMA},
    {"MAX_CAPTURES", SD_MAX_CAPTURES},
    {"MAX_HEADS", SD_MAX_HEADS},
    {"MAX_HEAD_BLOCKS", SD_MAX_HEAD_BLOCKS},
    {"MAX_RECURRENT_LAYERS", SD_MAX_RECURRENT_LAYERS},
};

static int execute(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    sd_pool_init();
    if (sd_kernels_choose(getenv("SPECDEC_KERNELS")) != SD_OK) {
        PyErr_SetString(PyExc_ImportError, sd_message());
        return -1;
    }
    for (int i = 0; i < SD_N_TYPES; i++)
        if (add_type(module, i, &state->types[i]) < 0) return -1;
#ifdef SPECDEC_TESTING
    if (PyModule_AddFunctions(module, sd_testing_functions) < 0) return -1;
#endif
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (PyModule_AddIntConstant(module, limits[i].name, limits[i].value) < 0) return -1;
    return PyModule_AddStringConstant(module, "__version__", SPECDEC_VERSION);
}

static int traverse_module(PyObject* module, visitproc visit, void* arg) {
    sd_module_state* state = PyModule_GetState(module);
    for (int i = 0; i < SD_N_TYPES; i++) Py_VISIT(state->types[i]);
    Py_VISIT(state->slot_round_type);
    Py_VISIT(state->round_class);
    Py_VISIT(state->round_fields);
    return 0;
}

static int clear_module(PyObject* module) {
    sd_module_state* state = PyModule_GetState(module);
    for (int i = 0; i < SD_N_TYPES; i++) Py_CLEAR(state->types[i]);
    Py_CLEAR(state->slot_round_type);
    Py_CLEAR(state->round_class);
    Py_CLEAR(state->round_fields);
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
    .m_traverse = traverse_module,
    .m_clear = clear_module,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
