/* SuffixTree: past outputs, by the tokens before each. */
#include <string.h>

#include "module.h"

static sd_suffix_memory* memory_of(PyObject* self) { return &((sd_suffix_tree_object*)self)->memory; }

static int make(PyObject* self, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"max_tokens", "depth", NULL};
    int max_tokens, depth;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii", names, &max_tokens, &depth)) return -1;
    return sd_passed(sd_suffix_memory_create(memory_of(self), max_tokens, depth));
}

static void release(PyObject* self) {
    if (memory_of(self)->tree != NULL) sd_suffix_memory_free(memory_of(self));
}

/* Are they texts of tokens [n_tokens]? Returns 0, or -1 with an exception. */
static int check_texts(const sd_suffix_texts* texts, Py_ssize_t n_tokens, int n_before) {
    long long total = 0;
    if (n_before != texts->n)
        return sd_refuse("there are %d lengths and %d n_before, expected equal numbers", texts->n, n_before);
    for (int i = 0; i < texts->n; i++) {
        if (texts->lengths[i] < 1)
            return sd_refuse("lengths[%d] is %d, expected at least 1", i, (int)texts->lengths[i]);
        if (texts->n_before[i] < 0 || texts->n_before[i] >= texts->lengths[i])
            return sd_refuse("n_before[%d] is %d, expected 0 to %d", i, (int)texts->n_before[i],
                             (int)texts->lengths[i] - 1);
        total += texts->lengths[i];
    }
    if (total != n_tokens)
        return sd_refuse("the lengths add up to %lld, expected %zd, the number of tokens", total, n_tokens);
    for (Py_ssize_t i = 0; i < n_tokens; i++)
        if (texts->tokens[i] < 0)
            return sd_refuse("tokens[%zd] is %d, expected at least 0", i, (int)texts->tokens[i]);
    return 0;
}

static PyObject* add(PyObject* object, PyObject* args) {
    sd_suffix_tree_object* self = (sd_suffix_tree_object*)object;
    PyObject *tokens, *lengths, *n_before, *result = NULL;
    int32_t *length = NULL, *before = NULL;
    int n, n_with;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OOO", &tokens, &lengths, &n_before)) return NULL;
    if (sd_view(tokens, "tokens", 'i', 1, &view) < 0) return NULL;
    if (sd_ids_from(lengths, "lengths", &length, &n) == 0 &&
        sd_ids_from(n_before, "n_before", &before, &n_with) == 0) {
        const sd_suffix_texts texts = {view.buf, length, before, n};
        if (check_texts(&texts, view.shape[0], n_with) == 0 &&
            sd_exclusive_enter(&self->exclusive, 1, "SuffixTree", "there") == 0) {
            sd_status status;
            SD_WITHOUT_GIL(status = sd_suffix_memory_add(&self->memory, &texts));
            sd_exclusive_leave(&self->exclusive);
            result = sd_none_if(status);
        }
    }
    PyMem_Free(before);
    PyMem_Free(length);
    PyBuffer_Release(&view);
    return result;
}

static PyObject* find(PyObject* self, PyObject* argument) {
    int32_t* ids;
    int n;
    if (sd_ids_from(argument, "ids", &ids, &n) < 0) return NULL;
    sd_suffix_tree* tree = sd_suffix_memory_tree(memory_of(self));
    sd_suffix_range range = {0};
    if (n > 0) range = sd_suffix_order_find(&tree->order, tree->tokens, (sd_suffix){ids + n - 1, n});
    PyMem_Free(ids);
    sd_suffix_tree_release(tree);
    return Py_BuildValue("(ii)", range.length, range.end - range.begin);
}

/* Three new arrays of a tree's texts; NULL with an exception. */
static PyObject* arrays_of(const sd_suffix_tree* t) {
    int32_t *tokens, *lengths, *n_before;
    PyObject* first = sd_new_array("int32", t->n_tokens, -1, (void**)&tokens);
    PyObject* second = first ? sd_new_array("int32", t->n_texts, -1, (void**)&lengths) : NULL;
    PyObject* third = second ? sd_new_array("int32", t->n_texts, -1, (void**)&n_before) : NULL;
    for (int i = 0; third != NULL && i < t->n_texts; i++) {
        lengths[i] = t->texts[i + 1] - 1 - t->texts[i];
        n_before[i] = t->outputs[i] - t->texts[i];
        memcpy(tokens, t->tokens + t->texts[i], (size_t)lengths[i] * sizeof *tokens);
        tokens += lengths[i];
    }
    PyObject* result = third ? PyTuple_Pack(3, first, second, third) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_XDECREF(third);
    return result;
}

static PyObject* texts(PyObject* self, PyObject* ignored) {
    sd_suffix_tree* tree = sd_suffix_memory_tree(memory_of(self));
    PyObject* result = arrays_of(tree);
    sd_suffix_tree_release(tree);
    return result;
}

/* Figures of the current tree. */
enum { N_TOKENS, N_TEXTS, N_BYTES, MAX_TOKEN };

static PyObject* get_number(PyObject* self, void* which) {
    sd_suffix_tree* t = sd_suffix_memory_tree(memory_of(self));
    const size_t numbers[] = {[N_TOKENS] = (size_t)t->n_tokens,
                              [N_TEXTS] = (size_t)t->n_texts,
                              [N_BYTES] = t->arena.size,
                              [MAX_TOKEN] = (size_t)t->max_token};
    sd_suffix_tree_release(t);
    return PyLong_FromSize_t(numbers[(intptr_t)which]);
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, "add($self, tokens, lengths, n_before, /)\n--\n\n"},
    {"find", find, METH_O, "find($self, ids, /)\n--\n\n"},
    {"texts", texts, METH_NOARGS, "texts($self, /)\n--\n\n"},
    {0},
};

static PyGetSetDef properties[] = {
    {"n_tokens", get_number, NULL, "Tokens of the texts.", (void*)N_TOKENS},
    {"n_texts", get_number, NULL, "Texts.", (void*)N_TEXTS},
    {"n_bytes", get_number, NULL, "Memory held.", (void*)N_BYTES},
    {"max_token", get_number, NULL, "The highest token, at least 0.", (void*)MAX_TOKEN},
    {0},
};

const sd_type_spec sd_suffix_tree_type = {
    .doc = "SuffixTree(max_tokens, depth)\n--\n\n",
    .size = sizeof(sd_suffix_tree_object),
    .make = make,
    .release = release,
    .methods = methods,
    .getters = properties,
};
