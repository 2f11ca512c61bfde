/* Ngram: counts of n-grams. */
#include "module.h"

/* Read a level's arrays from a tuple (starts, tokens, counts), and hold their views. */
static int level_from(PyObject* tuple, int64_t n_before, Py_buffer views[3], sd_ngram_level* level) {
    static const char* const names[] = {"starts", "tokens", "counts"};
    static const char formats[] = {sizeof(long) == 8 ? 'l' : 'q', 'i', 'i'}; /* NumPy's int64 is q or l */
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 3)
        return sd_set_error(PyExc_TypeError, "levels: expected tuples (starts, tokens, counts)");
    for (int i = 0; i < 3; i++)
        if (sd_view(PyTuple_GET_ITEM(tuple, i), names[i], formats[i], 1, &views[i]) < 0) return -1;
    if (views[0].shape[0] != n_before + 1 || views[1].shape[0] != views[2].shape[0])
        return sd_refuse(
            "levels: starts has %zd entries, tokens %zd and counts %zd; expected %lld, one more "
            "than there are n-grams of the order below, and tokens and counts alike",
            views[0].shape[0], views[1].shape[0], views[2].shape[0], (long long)n_before + 1);
    *level = (sd_ngram_level){views[1].shape[0], views[0].buf, views[1].buf, views[2].buf};
    return 0;
}

static int make(PyObject* object, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"unigrams", "levels", "back_off", NULL};
    sd_ngram_object* self = (sd_ngram_object*)object;
    sd_ngram_table* table = &self->table;
    PyObject *unigrams, *levels;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|p", names, &unigrams, &PyTuple_Type, &levels,
                                     &table->back_off))
        return -1;
    Py_ssize_t n_levels = PyTuple_GET_SIZE(levels);
    if (n_levels >= SD_MAX_NGRAM)
        return sd_refuse("levels has %zd entries, expected at most %d", n_levels, SD_MAX_NGRAM - 1);
    if (sd_view(unigrams, "unigrams", 'i', 1, &self->views[0]) < 0) return -1;
    int64_t n = self->views[0].shape[0];
    if (n < 1 || n > INT32_MAX)
        return sd_refuse("unigrams has %lld entries, expected 1 to %d", (long long)n, INT32_MAX);
    table->n_vocab = (int)n;
    table->n = (int)n_levels + 1;
    table->unigrams = self->views[0].buf;
    for (Py_ssize_t i = 0; i < n_levels; n = table->levels[i++].n)
        if (level_from(PyTuple_GET_ITEM(levels, i), n, &self->views[3 * i + 1], &table->levels[i]) < 0)
            return -1;
    sd_status status;
    SD_WITHOUT_GIL(status = sd_ngram_table_check(table));
    return sd_passed(status);
}

const sd_type_spec sd_ngram_type = {
    .doc = "Ngram(unigrams, levels, back_off=False)\n--\n\n",
    .size = sizeof(sd_ngram_object),
    .make = make,
    .views = offsetof(sd_ngram_object, views),
    .n_views = 3 * SD_MAX_NGRAM,
};
