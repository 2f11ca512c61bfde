/* Prompt lookup: drafts what followed the same suffix earlier in the text, or in documents. */
#include "copy_drafters.h"

#include <limits.h>

/* Edges of a state examined for the next candidate. */
#define N_EDGES 64

/* State of a sequence: its committed text. */
typedef struct sequence_state {
    const int32_t* prompt; /* [n_prompt] borrowed until it has been read */
    int n_prompt;
    sd_automaton text;
    sd_match in_documents; /* of the committed text */
    sd_odds text_odds, document_odds;
} sequence_state;

typedef struct copy_drafter {
    sd_drafter base; /* must stay first */
    sd_copy_options options;
    int n_sequences;
    sequence_state* states; /* [n_sequences] */
} copy_drafter;

/* The token after an occurrence of a match; -1 at the end of its text. */
static int32_t follower(const sd_automaton* a, sd_match match) {
    int at = a->states[match.state].end + 1;
    return at < a->n_tokens ? a->text[at] : -1;
}

/* Append committed text from where the last call ended; learn which of it a copy would have predicted. */
static sd_status read_on(copy_drafter* d, sequence_state* r, const int32_t* tokens, int n_tokens) {
    const sd_automaton* documents = d->options.documents;
    while (r->text.n_tokens < n_tokens) {
        int32_t token = tokens[r->text.n_tokens];
        sd_match match = sd_automaton_repeated(&r->text);
        if (match.length > 0) sd_odds_learn(&r->text_odds, match.length, follower(&r->text, match) == token);
        if (documents) {
            match = r->in_documents;
            if (match.length > 0)
                sd_odds_learn(&r->document_odds, match.length, follower(documents, match) == token);
            sd_match_advance(&r->in_documents, documents, token);
        }
        SD_TRY(sd_automaton_append(&r->text, token));
    }
    return SD_OK;
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    copy_drafter* d = (copy_drafter*)base;
    sequence_state* r = &d->states[sequence];
    sd_automaton_clear(&r->text);
    r->in_documents = (sd_match){0, 0};
    sd_odds_clear(&r->text_odds);
    sd_odds_clear(&r->document_odds);
    r->prompt = prompt->tokens;
    r->n_prompt = prompt->n;
    return SD_OK;
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    copy_drafter* d = (copy_drafter*)base;
    int n_free = SD_READ_SLICE;
    for (int i = 0; i < d->n_sequences && n_free > 0; i++) {
        sequence_state* r = &d->states[i];
        int n_here = sd_slice_take(r->n_prompt, r->text.n_tokens, &n_free);
        if (n_here == 0) continue;
        SD_TRY(read_on(d, r, r->prompt, r->text.n_tokens + n_here));
    }
    *done = n_free > 0;
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    copy_drafter* d = (copy_drafter*)base;
    return read_on(d, &d->states[sequence], tokens, n_tokens);
}

/* Copy from `at` on: from the drafted text with its draft tokens, or from documents. */
static sd_copy copy_from(const sd_automaton* a, const sd_odds* odds, const sd_proposal* p, int at,
                         int length) {
    if (p != NULL) return (sd_copy){p->text, p->n_text, at, 1, length, odds};
    return (sd_copy){a->text, a->n_tokens, at, 0, length, odds};
}

static int begins_with(const sd_copy* copies, int n, int32_t token) {
    for (int i = 0; i < n; i++)
        if (sd_copy_token(&copies[i], 0) == token) return 1;
    return 0;
}

/* Append other continuations of a match and of its suffixes, longest first, most recent first. */
static void add_others(const copy_drafter* d, const sd_automaton* a, const sd_odds* odds,
                       const sd_proposal* p, sd_match match, sd_copy* copies, int* n) {
    while (*n < d->options.n_candidates && match.length >= d->options.min_match) {
        const sd_automaton_edge* best = NULL;
        int32_t slot = a->states[match.state].first;
        for (int i = 0; slot >= 0 && i < N_EDGES; slot = a->edges[slot].next, i++) {
            const sd_automaton_edge* edge = &a->edges[slot];
            if (edge->token < 0 || begins_with(copies, *n, edge->token)) continue;
            if (best == NULL || a->states[edge->to].end > a->states[best->to].end) best = edge;
        }
        if (best != NULL) {
            copies[(*n)++] = copy_from(a, odds, p, a->states[best->to].end, match.length);
        } else {
            int32_t link = a->states[match.state].link;
            match = (sd_match){link, a->states[link].length};
        }
    }
}

static int find_copies(const copy_drafter* d, const sd_proposal* p, sd_copy* copies) {
    const sequence_state* r = &d->states[p->sequence];
    const sd_automaton *text = &r->text, *documents = d->options.documents;
    sd_match in_text = sd_automaton_repeated(text), in_documents = r->in_documents;
    if (p->n_text > text->n_tokens) in_text = (sd_match){text->last, text->n_tokens};
    for (int i = text->n_tokens; i < p->n_text; i++) { /* draft tokens of others: matched, not appended */
        sd_match_advance(&in_text, text, p->text[i]);
        if (documents) sd_match_advance(&in_documents, documents, p->text[i]);
    }
    int n = 0, min_match = d->options.min_match;
    int text_copied = in_text.length < min_match, documents_copied = in_documents.length < min_match;
    for (int i = 0; i < 2; i++) { /* the longer match first; the text's own on ties */
        if (!text_copied && (documents_copied || in_text.length >= in_documents.length)) {
            copies[n++] =
                copy_from(text, &r->text_odds, p, text->states[in_text.state].end + 1, in_text.length);
            text_copied = 1;
        } else if (!documents_copied) {
            int at = documents->states[in_documents.state].end + 1;
            copies[n] = copy_from(documents, &r->document_odds, NULL, at, in_documents.length);
            n += sd_copy_token(&copies[n], 0) >= 0; /* a document may end there */
            documents_copied = 1;
        }
    }
    if (n > d->options.n_candidates) n = d->options.n_candidates;
    add_others(d, text, &r->text_odds, p, in_text, copies, &n);
    if (documents) add_others(d, documents, &r->document_odds, NULL, in_documents, copies, &n);
    return n;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    copy_drafter* d = (copy_drafter*)base;
    for (int i = 0; i < n; i++) {
        if (proposals[i].budget == 0) continue;
        sd_copy copies[SD_MAX_COPIES + 1]; /* two are found before they are counted */
        int n_copies = find_copies(d, &proposals[i], copies);
        sd_copies_grow(&proposals[i], copies, n_copies);
    }
    return SD_OK;
}

static void lay_out(copy_drafter* d, int n_text) {
    d->states = sd_arena_take(&d->base.arena, (size_t)d->n_sequences, sizeof *d->states);
    for (int i = 0; i < d->n_sequences; i++) {
        sd_automaton text = sd_automaton_take(&d->base.arena, n_text);
        if (d->base.arena.base == NULL) continue;
        d->states[i].text = text;
        sd_automaton_clear(&d->states[i].text);
    }
}

sd_status sd_copy_drafter_create(const sd_drafting* drafting, const sd_copy_options* options,
                                 sd_drafter** drafter) {
    SD_TRY(sd_check_range("min_match", options->min_match, 1, INT_MAX));
    SD_TRY(sd_check_range("n_candidates", options->n_candidates, 1, SD_MAX_COPIES));
    if (drafting->n_text > SD_AUTOMATON_MAX_TOKENS)
        return sd_fail(SD_ERR_VALUE, "the text has up to %d tokens, expected at most %d", drafting->n_text,
                       SD_AUTOMATON_MAX_TOKENS);
    SD_NEW(copy_drafter, d);
    d->base = SD_MAKE(sd_drafter, .tree_type = options->n_candidates > 1 ? SD_TREE_ANY : SD_TREE_CHAINS,
                      .points = 1, .begin = begin, .read = read_prompts, .propose = propose, .commit = commit,
                      .free = sd_drafter_release);
    d->options = *options;
    d->n_sequences = drafting->n_sequences;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafting->n_text)), drafter);
}
