#include "fixed_acceptance_drafter.h"
#include "testing.h"

/* The known texts of all sequences, their tokens owned by the caller (PyMem_Free). *n counts those that are
 * read, also when this fails. Returns 0, or -1 with an exception. */
static int texts_from(PyObject* items, int n_sequences, sd_known_text* texts, int* n) {
    if (PyTuple_GET_SIZE(items) != n_sequences)
        return sd_refuse("fixed_acceptance: %zd texts, expected one for each of %d sequences",
                         PyTuple_GET_SIZE(items), n_sequences);
    for (*n = 0; *n < n_sequences; ++*n) {
        int32_t* tokens;
        if (sd_ids_from(PyTuple_GET_ITEM(items, *n), "texts", &tokens, &texts[*n].n) < 0) return -1;
        texts[*n].tokens = tokens;
    }
    return 0;
}

int sd_make_fixed_acceptance(const sd_draft_arguments* a, const sd_drafter_context* c, sd_drafter** drafter) {
    const sd_drafting* d = &c->drafting;
    PyObject* items = sd_items_from(a->texts, "fixed_acceptance: expected a sequence of texts");
    if (items == NULL) return -1;
    int n = 0, result = -1;
    sd_drafter* inner;
    sd_known_text* texts = PyMem_Calloc((size_t)d->n_sequences + 1, sizeof *texts);
    if (texts == NULL)
        sd_no_memory();
    else if (texts_from(items, d->n_sequences, texts, &n) == 0 && sd_drafter_from(a->draft, c, &inner) == 0)
        result = sd_passed(
            sd_fixed_acceptance_drafter_create(inner, a->alpha, d->n_vocab, texts, n, d->n_text, drafter));
    while (n > 0) PyMem_Free((void*)texts[--n].tokens);
    PyMem_Free(texts);
    Py_DECREF(items);
    return result;
}
