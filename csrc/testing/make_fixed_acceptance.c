#include "fixed_acceptance_drafter.h"
#include "testing.h"

/* The known texts of all sequences, their tokens owned by the caller (PyMem_Free). *n counts those that are
 * read, also when this fails. Returns 0, or -1 with an exception. */
static int texts_from(PyObject* items, int n_sequences, sd_known_text* texts, int* n) {
    if (PyTuple_GET_SIZE(items) != n_sequences) {
        PyErr_Format(PyExc_ValueError, "fixed_acceptance: %zd texts, expected one for each of %d sequences",
                     PyTuple_GET_SIZE(items), n_sequences);
        return -1;
    }
    for (*n = 0; *n < n_sequences; ++*n) {
        int32_t* tokens;
        if (sd_ids_from(PyTuple_GET_ITEM(items, *n), "texts", &tokens, &texts[*n].n) < 0) return -1;
        texts[*n].tokens = tokens;
    }
    return 0;
}

int sd_make_fixed_acceptance(PyObject* arguments, const sd_drafter_context* c, sd_drafter** drafter) {
    PyObject *description, *list;
    double alpha;
    const sd_field fields[] = {{"draft", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &description},
                               {"alpha", SD_FIELD_REAL, SD_FIELD_REQUIRED, &alpha},
                               {"texts", SD_FIELD_OBJECT, SD_FIELD_REQUIRED, &list}};
    if (SD_FIELDS_FROM(arguments, "fixed_acceptance", fields) < 0) return -1;
    PyObject* items = sd_items_from(list, "fixed_acceptance: expected a sequence of texts");
    if (items == NULL) return -1;
    int n = 0, result = -1;
    sd_drafter* inner;
    sd_known_text* texts = PyMem_Calloc((size_t)c->drafting.n_sequences + 1, sizeof *texts);
    if (texts == NULL) {
        PyErr_NoMemory();
    } else if (texts_from(items, c->drafting.n_sequences, texts, &n) == 0 &&
               sd_drafter_from(description, c, &inner) == 0) {
        sd_status status = sd_fixed_acceptance_drafter_create(inner, alpha, c->drafting.n_vocab, texts, n,
                                                              c->drafting.n_text, drafter);
        if (status != SD_OK) sd_raise(status);
        result = status == SD_OK ? 0 : -1;
    }
    while (n > 0) PyMem_Free((void*)texts[--n].tokens);
    PyMem_Free(texts);
    Py_DECREF(items);
    return result;
}
