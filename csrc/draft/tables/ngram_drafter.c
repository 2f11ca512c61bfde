#include "ngram_drafter.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"

/* The distribution after some contexts. A token that was seen behind none of them, which most were not, has
 * the probability factor · its weight as a unigram; the others have factor · values. */
typedef struct row {
    const sd_unigrams* unigrams;
    double factor;
    double* values;      /* [n_vocab] */
    unsigned char* seen; /* [n_vocab] 1: has a value of its own; all 0 between rows */
    int32_t* tokens;     /* [n_vocab] those that have, n_tokens */
    int n_tokens;
} row;

/* The most probable token after a context, kept because frequent contexts are dear: much followed them. */
typedef struct memo {
    int k; /* tokens of the context, plus one; 0: nothing is kept here */
    int64_t entry;
    int32_t token;
    double probability;
} memo;

#define MEMOS 1024 /* a power of two */

typedef struct prompt {
    const int32_t* tokens; /* [n] borrowed until it has been counted */
    int n;
} prompt;

typedef struct ngram_drafter {
    sd_drafter base; /* must stay first */
    sd_drafting drafting;
    sd_ngram_drafter_options options;
    sd_arena arena; /* owns the arrays below */
    sd_guesser guesser;
    sd_ngram_counts* counts; /* [n_sequences] if online */
    prompt* prompts;         /* [n_sequences] if online */
    row row;
    float* logits; /* [n_vocab] */
    memo* memos;   /* [MEMOS] if greedy and not online */
} ngram_drafter;

/* A mapped table may have changed since its check, so what is read is looked at again: rows of a changed one
 * are wrong but distributions. */
static inline int32_t count_of(const sd_ngram_level* level, int64_t i) {
    return level->counts[i] > 0 ? level->counts[i] : 1;
}

/* The value of a token, for writing. */
static inline double* value_of(row* r, int n_vocab, int32_t token) {
    if (token < 0 || token >= n_vocab) token = 0;
    if (!r->seen[token]) {
        r->seen[token] = 1;
        r->tokens[r->n_tokens++] = token;
        r->values[token] = sd_unigram_weight(r->unigrams, token);
    }
    return &r->values[token];
}

static void forget(row* r) {
    for (int i = 0; i < r->n_tokens; i++) r->seen[r->tokens[i]] = 0;
    r->n_tokens = 0;
}

/* Go from P_{k−1} to P_k (ngram_drafter.h). */
static void lengthen(row* r, const sd_ngram_table* t, const sd_ngram_counts* c, int k,
                     sd_ngram_context context) {
    int64_t begin, end;
    sd_ngram_after(t, k, context.entry, &begin, &end);
    const sd_counted* own = c != NULL && context.number >= 0 ? &c->counted[context.number] : NULL;
    int different = (int)(end - begin) + (own ? own->n_new : 0);
    if (different == 0) return;
    const sd_ngram_level* level = &t->levels[k - 1];
    int64_t total = own ? own->n_after : 0;
    for (int64_t i = begin; i < end; i++) total += count_of(level, i);
    double sum = (double)total + different, escape = different / sum;
    if (t->back_off) { /* what was seen starts anew: the values of the shorter context are taken out */
        double covered = 0.0;
        for (int64_t i = begin; i < end; i++) covered += *value_of(r, t->n_vocab, level->tokens[i]);
        for (int32_t j = own ? own->first : 0; j > 0; j = c->counted[j].next)
            if (c->counted[j].entry < 0) covered += *value_of(r, t->n_vocab, c->counted[j].token);
        escape /= fmax(1.0 - covered * r->factor, 1e-9);
        for (int64_t i = begin; i < end; i++) *value_of(r, t->n_vocab, level->tokens[i]) = 0.0;
        for (int32_t j = own ? own->first : 0; j > 0; j = c->counted[j].next)
            *value_of(r, t->n_vocab, c->counted[j].token) = 0.0;
    }
    r->factor *= escape;
    double unit = 1.0 / (sum * r->factor);
    for (int64_t i = begin; i < end; i++)
        *value_of(r, t->n_vocab, level->tokens[i]) += count_of(level, i) * unit;
    for (int32_t j = own ? own->first : 0; j > 0; j = c->counted[j].next)
        *value_of(r, t->n_vocab, c->counted[j].token) += c->counted[j].count * unit;
}

static void fill_row(row* r, const sd_ngram_table* t, const sd_ngram_counts* c,
                     const sd_ngram_context* contexts) {
    r->unigrams = c ? &c->unigrams : &t->unigrams;
    r->factor = 1.0 / r->unigrams->total;
    for (int k = 1; k < t->n; k++) lengthen(r, t, c, k, contexts[k]);
}

static double value(const row* r, int32_t token) {
    return r->seen[token] ? r->values[token] : sd_unigram_weight(r->unigrams, token);
}

static int32_t better(const row* r, int32_t a, int32_t b) {
    double at_a = value(r, a), at_b = value(r, b);
    return at_a > at_b || (at_a == at_b && a < b) ? a : b;
}

/* The most probable token. */
static int32_t best_of(const row* r, int n_vocab) {
    int32_t best = r->unigrams->best;
    for (int i = 0; i < r->n_tokens; i++) best = better(r, r->tokens[i], best);
    /* what was not seen is at most as frequent as the most frequent one; is that enough? */
    if (value(r, best) < sd_unigram_weight(r->unigrams, r->unigrams->best))
        for (int32_t i = 0; i < n_vocab; i++) best = better(r, i, best);
    return best;
}

static void fill_logits(const row* r, int n_vocab, float* logits) {
    float shift = (float)log(r->factor);
    for (int i = 0; i < n_vocab; i++) logits[i] = r->unigrams->logs[i] + shift;
    for (int i = 0; i < r->n_tokens; i++)
        logits[r->tokens[i]] = logf((float)(r->values[r->tokens[i]] * r->factor));
}

static int is_greedy(const sd_sampling* s) {
    return s->temperature == 0.0 && s->repetition_penalty == 1.0 && s->n_biased == 0;
}

/* The memo of the longest context that anything followed, on which the row depends alone; its own if the slot
 * holds another's. *known: it is filled in. */
static memo* memo_of(ngram_drafter* d, const sd_ngram_context* contexts, int* known) {
    const sd_ngram_table* t = d->options.table;
    int k = t->n - 1;
    for (int64_t begin, end; k > 0; k--) {
        sd_ngram_after(t, k, contexts[k].entry, &begin, &end);
        if (begin < end) break;
    }
    int64_t entry = contexts[k].entry;
    memo* m = &d->memos[((uint64_t)entry * 0x9E3779B97F4A7C15u >> 32 ^ (uint64_t)k) & (MEMOS - 1)];
    *known = m->k == k + 1 && m->entry == entry;
    m->k = k + 1;
    m->entry = entry;
    return m;
}

/* A guess behind `node`, after these contexts; -1 if it does not pay. */
static int guess(ngram_drafter* d, sd_proposal* p, int node, const sd_ngram_counts* c,
                 const sd_ngram_context* contexts) {
    const sd_ngram_table* t = d->options.table;
    memo here, *m = &here;
    int known = 0;
    if (d->memos != NULL) m = memo_of(d, contexts, &known);
    if (!known) fill_row(&d->row, t, c, contexts);
    if (!is_greedy(d->drafting.sampling)) {
        fill_logits(&d->row, t->n_vocab, d->logits);
        forget(&d->row);
        return sd_guess_if_it_pays(&d->guesser, p, node, d->logits);
    }
    if (!known) {
        m->token = best_of(&d->row, t->n_vocab);
        m->probability = fmin(value(&d->row, m->token) * d->row.factor, 1.0);
        forget(&d->row);
    }
    if (!sd_proposal_worth_verifying(p, node, m->probability)) return -1;
    p->tree.drawn_from[p->tree.n_nodes].point = m->token;
    return sd_proposal_add(p, node, m->token, m->probability);
}

static sd_status begin(sd_drafter* base, int sequence, const int32_t* tokens, int n) {
    ngram_drafter* d = (ngram_drafter*)base;
    sd_ngram_counts_clear(&d->counts[sequence]);
    d->prompts[sequence] = (prompt){tokens, n};
    return SD_OK;
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    ngram_drafter* d = (ngram_drafter*)base;
    int room = SD_READ_SLICE;
    for (int i = 0; i < d->drafting.n_sequences && room > 0; i++) {
        const prompt* p = &d->prompts[i];
        int n_here = sd_slice_take(p->n, d->counts[i].n_read, &room);
        if (n_here > 0) sd_ngram_counts_read(&d->counts[i], p->tokens, d->counts[i].n_read + n_here);
    }
    *done = room > 0;
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* text, int n_text) {
    sd_ngram_counts_read(&((ngram_drafter*)base)->counts[sequence], text, n_text);
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    ngram_drafter* d = (ngram_drafter*)base;
    const sd_ngram_table* t = d->options.table;
    sd_ngram_context contexts[SD_MAX_NGRAM];
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        sd_ngram_counts* c = d->options.online ? &d->counts[p->sequence] : NULL;
        if (c != NULL && !is_greedy(d->drafting.sampling)) sd_unigrams_log(&c->unigrams, t->n_vocab);
        sd_ngram_contexts_begin(t, contexts);
        int first = p->n_text - (t->n - 1);
        for (int j = first > 0 ? first : 0; j < p->n_text; j++)
            sd_ngram_contexts_advance(t, c, p->text[j], contexts);
        for (int node = 0; sd_proposal_may_draft(p, node);) {
            sd_status status = sd_interrupted();
            if (status != SD_OK) return status;
            if ((node = guess(d, p, node, c, contexts)) < 0) break;
            sd_ngram_contexts_advance(t, c, p->tree.tokens[node], contexts);
        }
    }
    return SD_OK;
}

static void release(sd_drafter* base) {
    sd_arena_free(&((ngram_drafter*)base)->arena);
    sd_free(base);
}

static void lay_out(ngram_drafter* d) {
    const sd_ngram_table* t = d->options.table;
    size_t n_vocab = (size_t)t->n_vocab, n = d->options.online ? (size_t)d->drafting.n_sequences : 0;
    d->guesser = sd_guesser_take(&d->arena, &d->drafting);
    d->row.values = sd_arena_take(&d->arena, n_vocab, sizeof *d->row.values);
    d->row.seen = sd_arena_take(&d->arena, n_vocab, sizeof *d->row.seen);
    d->row.tokens = sd_arena_take(&d->arena, n_vocab, sizeof *d->row.tokens);
    d->logits = sd_arena_take(&d->arena, n_vocab, sizeof *d->logits);
    if (is_greedy(d->drafting.sampling) && !d->options.online)
        d->memos = sd_arena_take(&d->arena, MEMOS, sizeof *d->memos);
    d->counts = sd_arena_take(&d->arena, n, sizeof *d->counts);
    d->prompts = sd_arena_take(&d->arena, n, sizeof *d->prompts);
    for (size_t i = 0; i < n; i++) {
        sd_ngram_counts counts = sd_ngram_counts_take(&d->arena, t, d->drafting.n_text);
        if (d->arena.base == NULL) continue;
        d->counts[i] = counts;
        sd_ngram_counts_clear(&d->counts[i]);
    }
}

sd_status sd_ngram_drafter_create(const sd_drafting* drafting, const sd_ngram_drafter_options* options,
                                  sd_drafter** drafter) {
    sd_status status = sd_drafting_check(drafting);
    if (status != SD_OK) return status;
    ngram_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) return SD_ERR_MEMORY;
    d->base = (sd_drafter){.points = sd_drafting_points(drafting), .propose = propose, .free = release};
    if (options->online) d->base.begin = begin, d->base.read = read_prompts, d->base.commit = commit;
    d->drafting = *drafting;
    d->options = *options;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->arena, lay_out(d)), drafter);
}
