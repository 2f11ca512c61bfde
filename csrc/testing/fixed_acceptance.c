/* A drafter with a given acceptance rate, for tests and benchmarks. It replaces each token that another
 * drafter proposes: with probability alpha by the right token, otherwise by a wrong one. At temperature 0
 * Algorithm 1 accepts each with probability alpha, independently of the others. */
#include <string.h>

#include "memory.h"
#include "testing.h"

/* The tokens that decoding will produce: at temperature 0 those of plain decoding. */
typedef struct known_text {
    const int32_t* tokens; /* [n] prompt and continuation; borrowed while the drafter is created */
    int n;                 /* draft tokens past it are not replaced */
} known_text;

typedef struct fixed_acceptance_drafter {
    sd_drafter base;   /* must stay first */
    sd_drafter* inner; /* owned */
    double alpha;
    int n_vocab;
    sd_arena arena;    /* owns the arrays below */
    known_text* known; /* [n] */
    /* [n][n_text] texts with the inner drafter's own tokens where they were replaced: its caches and its work
     * are those of a drafter that was right. */
    int32_t** imagined;
} fixed_acceptance_drafter;

static sd_status reserve(sd_drafter* base) {
    return sd_drafter_reserve(((fixed_acceptance_drafter*)base)->inner);
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    fixed_acceptance_drafter* d = (fixed_acceptance_drafter*)base;
    const known_text* known = &d->known[sequence];
    size_t n = (size_t)(prompt->n < known->n ? prompt->n : known->n);
    if (memcmp(known->tokens, prompt->tokens, n * sizeof *prompt->tokens) != 0)
        return sd_fail(SD_ERR_VALUE,
                       "fixed_acceptance: the text of sequence %d does not start with its prompt", sequence);
    memcpy(d->imagined[sequence], prompt->tokens, (size_t)prompt->n * sizeof *prompt->tokens);
    return sd_drafter_begin(d->inner, sequence, prompt);
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    return sd_drafter_read(((fixed_acceptance_drafter*)base)->inner, done);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    fixed_acceptance_drafter* d = (fixed_acceptance_drafter*)base;
    for (int i = 0; i < n; i++) proposals[i].text = d->imagined[proposals[i].sequence];
    sd_status status = d->inner->propose(d->inner, proposals, n);
    if (status != SD_OK) return status;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        const known_text* known = &d->known[p->sequence];
        int32_t* own = d->imagined[p->sequence] + p->n_text;
        memcpy(own, p->tree.tokens + 1, (size_t)(p->tree.n_nodes - 1) * sizeof *own);
        for (int node = 1; node < p->tree.n_nodes && p->n_text + node - 1 < known->n; node++) {
            int32_t token = known->tokens[p->n_text + node - 1];
            double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_FIXED_ACCEPTANCE, (uint32_t)node);
            if (!(u < d->alpha)) token = (token + 1) % d->n_vocab;
            p->tree.tokens[node] = token;
            p->tree.drawn_from[node].point = token; /* it was not drawn from the draft's distribution */
        }
    }
    base->other_s = d->inner->other_s;
    return SD_OK;
}

/* Commit the inner drafter's own tokens in place of those accepted; the last token is new. */
static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    fixed_acceptance_drafter* d = (fixed_acceptance_drafter*)base;
    int32_t* own = d->imagined[sequence];
    own[n_tokens - 1] = tokens[n_tokens - 1];
    return sd_drafter_commit(d->inner, sequence, own, n_tokens);
}

static void release(sd_drafter* base) {
    fixed_acceptance_drafter* d = (fixed_acceptance_drafter*)base;
    d->inner->free(d->inner);
    sd_arena_free(&d->arena);
    sd_free(d);
}

static void lay_out(fixed_acceptance_drafter* d, const known_text* known, int n, int n_text) {
    d->known = sd_arena_take(&d->arena, (size_t)n, sizeof *d->known);
    d->imagined = sd_arena_take(&d->arena, (size_t)n, sizeof *d->imagined);
    for (int i = 0; i < n; i++) {
        int32_t* text = sd_arena_take(&d->arena, (size_t)known[i].n, sizeof *text);
        int32_t* own = sd_arena_take(&d->arena, (size_t)n_text, sizeof *own);
        if (d->arena.base == NULL) continue;
        memcpy(text, known[i].tokens, (size_t)known[i].n * sizeof *text);
        d->known[i] = (known_text){text, known[i].n};
        d->imagined[i] = own;
    }
}

/* Check the known texts [n] against the session's settings. */
static sd_status check(const sd_drafter* inner, double alpha, int n_vocab, const known_text* known, int n) {
    if (!(alpha >= 0.0 && alpha <= 1.0))
        return sd_fail(SD_ERR_VALUE, "fixed_acceptance: alpha is %g, expected 0 to 1", alpha);
    if (inner->tree_type != SD_TREE_CHAINS)
        return sd_fail(SD_ERR_VALUE,
                       "fixed_acceptance: the draft proposes trees, expected one that proposes chains");
    for (int i = 0; i < n; i++)
        for (int j = 0; j < known[i].n; j++)
            if (known[i].tokens[j] < 0 || known[i].tokens[j] >= n_vocab)
                return sd_fail(SD_ERR_VALUE, "fixed_acceptance: text %d: token %d is %d, expected 0 to %d", i,
                               j, (int)known[i].tokens[j], n_vocab - 1);
    return SD_OK;
}

/* Takes ownership of `inner`, a drafter of chains, also on failure. */
static sd_status create(sd_drafter* inner, double alpha, const sd_drafting* drafting, const known_text* known,
                        sd_drafter** drafter) {
    fixed_acceptance_drafter* d = NULL;
    sd_status status = check(inner, alpha, drafting->n_vocab, known, drafting->n_sequences);
    if (status == SD_OK && (d = sd_alloc(sizeof *d)) == NULL) status = SD_ERR_MEMORY;
    if (status != SD_OK) {
        inner->free(inner);
        return status;
    }
    d->base = (sd_drafter){.points = inner->points,
                           .captures = inner->captures,
                           .in_target = 1, /* its texts differ from the session's */
                           .reserve = reserve,
                           .begin = begin,
                           .read = read_prompts,
                           .propose = propose,
                           .commit = commit,
                           .free = release};
    d->inner = inner;
    d->alpha = alpha;
    d->n_vocab = drafting->n_vocab;
    status = SD_ARENA_BUILD(&d->arena, lay_out(d, known, drafting->n_sequences, drafting->n_text));
    return sd_drafter_made(&d->base, status, drafter);
}

/* Read the known texts of all sequences; their tokens belong to the caller (PyMem_Free). *n counts the texts
 * read, also on failure. Returns 0, or -1 with an exception. */
static int texts_from(PyObject* items, int n_sequences, known_text* texts, int* n) {
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
    known_text* texts = PyMem_Calloc((size_t)d->n_sequences + 1, sizeof *texts);
    if (texts == NULL)
        sd_no_memory();
    else if (texts_from(items, d->n_sequences, texts, &n) == 0 && sd_drafter_from(a->draft, c, &inner) == 0)
        result = sd_passed(create(inner, a->alpha, d, texts, drafter));
    while (n > 0) PyMem_Free((void*)texts[--n].tokens);
    PyMem_Free(texts);
    Py_DECREF(items);
    return result;
}
