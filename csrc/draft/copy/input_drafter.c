/* Drafts the rest of the input, for outputs that are the input with edits. */
#include "copy_drafters.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "memory.h"

/* Most tokens compared for a match; for longer ones the alignment decides. */
#define MAX_MATCH 32
/* Tokens without a counterpart at which drafting stops, and how far ahead a single one is searched. */
#define MAX_LOST 8
#define NEAR 8

/* Alignment of a text with its source. */
typedef struct alignment {
    int n_text; /* tokens of the text that have been read */
    int at;     /* index in the source after the last token with a counterpart */
    int n_lost; /* tokens read after that token */
    int length; /* consecutive matching tokens up to it */
} alignment;

typedef struct sequence_state {
    const int32_t* source; /* [n_source] of the options, of the prompt, the prediction, or `prompt` */
    int n_source;
    int32_t* prompt; /* [n_text] owned by the arena; for prompts that are their own source */
    int n_prompt;    /* index at which the output begins */
    alignment committed;
    sd_odds odds;
} sequence_state;

typedef struct input_drafter {
    sd_drafter base; /* must stay first */
    sd_input_options options;
    int n_vocab;            /* of the target */
    int32_t* source;        /* [options.n_source] */
    sequence_state* states; /* [options.n_sequences] */
} input_drafter;

/* Number of equal tokens that end at tokens[n_tokens - 1] of the output and at source[end]. */
static int match_length(const sequence_state* r, const int32_t* tokens, int n_tokens, int end) {
    int most = n_tokens - r->n_prompt, length = 0;
    if (end + 1 < most) most = end + 1;
    if (MAX_MATCH < most) most = MAX_MATCH;
    while (length < most && r->source[end - length] == tokens[n_tokens - 1 - length]) length++;
    return length;
}

/* Rank of an index in the source among equal matches: best ahead, then nearest to the index after a
 * substitution. */
static int misfit(const sequence_state* r, const alignment* p, int next) {
    int distance = abs(next - (p->at + p->n_lost));
    return next >= p->at ? distance : distance + r->n_source;
}

/* Find the longest suffix of the output in the source. */
static void realign(const sequence_state* r, const int32_t* tokens, int min_match, alignment* p) {
    int length = 0, at = 0;
    for (int end = 0; end < r->n_source; end++) {
        if (r->source[end] != tokens[p->n_text - 1]) continue;
        int found = match_length(r, tokens, p->n_text, end);
        if (found > length || (found == length && misfit(r, p, end + 1) < misfit(r, p, at)))
            length = found, at = end + 1;
    }
    if (length >= min_match) *p = (alignment){p->n_text, at, 0, length};
}

/* Align the rest of the text. odds: learn how often the source was right; or NULL. */
static sd_status follow(const sequence_state* r, const int32_t* tokens, int n_tokens, int min_match,
                        alignment* p, sd_odds* odds) {
    while (p->n_text < n_tokens) {
        /* searches all of the source for a token without counterpart */
        SD_TRY(sd_interrupted());
        int32_t token = tokens[p->n_text++];
        int right = p->n_lost == 0 && p->at < r->n_source && r->source[p->at] == token;
        if (odds && p->n_lost == 0 && p->at < r->n_source) sd_odds_learn(odds, p->length, right);
        if (right) {
            p->at++;
            p->length++;
        } else {
            p->n_lost++;
            realign(r, tokens, min_match, p);
        }
    }
    return SD_OK;
}

/* Number of tokens of a prompt's source before the first that the target lacks: the encoder may have another
 * vocabulary. */
static int n_known(const sd_prompt* prompt, int n_vocab) {
    int n = 0;
    while (n < prompt->n_source && prompt->source[n] < n_vocab) n++;
    return n;
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    const input_drafter* d = (const input_drafter*)base;
    sequence_state* r = &d->states[sequence];
    r->source = d->source;
    r->n_source = d->options.n_source;
    if (d->options.predictions) {
        r->source = prompt->settings->prediction;
        r->n_source = prompt->settings->n_prediction;
    } else if (d->options.source == NULL && prompt->source != NULL) {
        r->source = prompt->source;
        r->n_source = n_known(prompt, d->n_vocab);
    } else if (d->options.source == NULL) {
        memcpy(r->prompt, prompt->tokens, (size_t)prompt->n * sizeof *r->prompt);
        r->source = r->prompt;
        r->n_source = prompt->n;
    }
    r->n_prompt = prompt->n;
    int start = d->options.start < r->n_source ? d->options.start : r->n_source;
    r->committed = (alignment){.n_text = prompt->n, .at = start};
    sd_odds_clear(&r->odds);
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    const input_drafter* d = (const input_drafter*)base;
    sequence_state* r = &d->states[sequence];
    return follow(r, tokens, n_tokens, d->options.min_match, &r->committed, &r->odds);
}

static sd_copy copy_from(const sequence_state* r, int at, int length) {
    return (sd_copy){r->source, r->n_source, at, 0, length, &r->odds};
}

/* Find what to copy. After tokens without a counterpart, each hypothesis about the edit gives an index to
 * continue from. */
static sd_status find_copies(const input_drafter* d, const sd_proposal* p, sd_copy* copies, int* n_copies) {
    const sequence_state* r = &d->states[p->sequence];
    alignment now = r->committed;
    *n_copies = 0;
    SD_TRY(follow(r, p->text, p->n_text, d->options.min_match, &now, NULL));
    if (now.at >= r->n_source || now.n_lost > MAX_LOST) return SD_OK;
    if (now.n_lost == 0) {
        copies[(*n_copies)++] = copy_from(r, now.at, now.length);
        return SD_OK;
    }
    int n = 0;
    for (int end = now.at; end < r->n_source && end < now.at + NEAR && n == 0; end++)
        if (r->source[end] == p->text[p->n_text - 1]) copies[n++] = copy_from(r, end + 1, 1); /* deletion */
    copies[n++] = copy_from(r, now.at + now.n_lost, 0); /* substitution */
    copies[n++] = copy_from(r, now.at, 0);              /* insertion */
    *n_copies = n < d->options.n_candidates ? n : d->options.n_candidates;
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    const input_drafter* d = (const input_drafter*)base;
    for (int i = 0; i < n; i++) {
        if (proposals[i].budget == 0) continue;
        sd_copy copies[3];
        int n_copies;
        SD_TRY(find_copies(d, &proposals[i], copies, &n_copies));
        sd_copies_grow(&proposals[i], copies, n_copies);
    }
    return SD_OK;
}

static void lay_out(input_drafter* d, const sd_drafting* drafting) {
    const sd_input_options* o = &d->options;
    d->source = sd_arena_copy(&d->base.arena, o->source, o->n_source, sizeof *d->source);
    d->states = sd_arena_take(&d->base.arena, (size_t)drafting->n_sequences, sizeof *d->states);
    int copies = o->source == NULL && !o->predictions && !drafting->has_sources;
    for (int i = 0; i < drafting->n_sequences && copies; i++) {
        int32_t* prompt = sd_arena_take(&d->base.arena, (size_t)drafting->n_text, sizeof *prompt);
        if (d->base.arena.base != NULL) d->states[i].prompt = prompt;
    }
}

sd_status sd_input_drafter_create(const sd_drafting* drafting, const sd_input_options* options,
                                  sd_drafter** drafter) {
    SD_TRY(sd_check_range("start", options->start, 0, INT_MAX));
    SD_TRY(sd_check_range("min_match", options->min_match, 1, MAX_MATCH));
    SD_TRY(sd_check_range("n_candidates", options->n_candidates, 1, SD_MAX_COPIES));
    SD_NEW(input_drafter, d);
    d->base = SD_MAKE(sd_drafter, .tree_type = options->n_candidates > 1 ? SD_TREE_ANY : SD_TREE_CHAINS,
                      .points = 1, .begin = begin, .propose = propose, .commit = commit,
                      .free = sd_drafter_release);
    d->options = *options;
    d->n_vocab = drafting->n_vocab;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafting)), drafter);
}
