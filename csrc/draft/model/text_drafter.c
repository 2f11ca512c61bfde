/* A model of another vocabulary drafts in its own tokens; the text becomes draft tokens of the target. */
#include "model_drafters.h"

#include <math.h>
#include <string.h>

#include "interrupt.h"
#include "kernels.h"
#include "memory.h"
#include "row_distribution.h"
#include "token_drafter.h"
#include "translation.h"

/* Bytes of context for the target's tokenizer before the written text. */
#define LOOK_BACK 48
/* Most bytes written before a word must end, or counts as ended when deciding whether more pays. */
#define LONGEST_WORD 64
#define LONGEST_UNPRICED 32
/* Bytes per target token, before there is any text. */
#define USUAL_BYTES 4.0

/* Rounds in which both methods alternate at first, and the interval at which the worse is tried later. */
#define TRIALS 4
#define TRIED_EACH 16
/* Rounds that a mean averages over. */
#define MEMORY 32.0

typedef struct writing {
    /* In the draft's tokens, for the predictor. After the round its budget is above 0 until commit has
     * counted the accepted tokens. */
    sd_proposal own;
    sd_proposal* for_target;
    char* text; /* [n_before + n] context, from near the start of a word on, then the written text */
    int n_before, n;
    int begins;             /* no text comes before */
    double bytes_per_token; /* of the target, over the last bytes of the text */
    double confidence;      /* the draft's probability of the text written after n_before */
    int node;               /* last node of the target's proposal */
    int restricted;         /* draft tokens are drawn from the restricted distribution */
    int open;
    int ending;  /* enough has been written, except for the end of a word */
    int foreign; /* the target lacks some token written after n_before */
} writing;

/* Statistics of a text since it began, independent of other texts. */
typedef struct experience {
    long n_rounds;
    double accepted[2], n_known[2]; /* by `restricted`: mean accepted tokens, and its number of rounds */
} experience;

typedef struct text_drafter {
    sd_predicting base; /* must stay first */
    const sd_translation* translation;
    void* caller;
    int n_written;           /* most tokens that the draft writes in a round */
    int text_capacity;       /* bytes of a writing's text */
    writing* writings;       /* [n_sequences] by proposal */
    sd_draft_nodes* batch;   /* [n_sequences] */
    int32_t* last;           /* [n_sequences] node of each to predict from */
    int* at;                 /* [n_sequences] writing of each */
    int32_t* ids;            /* [text_capacity] ids of an encoded text */
    experience* experiences; /* [n_sequences] by sequence */
    int measures;            /* both methods are used */
    int n_proposed;          /* writings of the last round in which it drafted */
    sd_token_drafter token_drafter;
    float* logits; /* [the target's tokens] */
} text_drafter;

static void lay_out(text_drafter* d, const sd_drafting* drafting) {
    sd_arena* arena = &d->base.drafter.arena;
    size_t n = (size_t)drafting->n_sequences, nodes = (size_t)d->n_written + 1;
    d->writings = sd_arena_take(arena, n, sizeof *d->writings);
    d->experiences = sd_arena_take(arena, n, sizeof *d->experiences);
    d->batch = sd_arena_take(arena, n, sizeof *d->batch);
    d->last = sd_arena_take(arena, n, sizeof *d->last);
    d->at = sd_arena_take(arena, n, sizeof *d->at);
    d->ids = sd_arena_take(arena, (size_t)d->text_capacity, sizeof *d->ids);
    if (d->measures) {
        d->token_drafter = sd_token_drafter_take(arena, drafting);
        d->logits = sd_arena_take(arena, (size_t)drafting->n_vocab, sizeof *d->logits);
    }
    for (size_t i = 0; i < n; i++) {
        writing one = {.text = sd_arena_take(arena, (size_t)d->text_capacity, 1)};
        one.own.tree.tokens = sd_arena_take(arena, nodes, sizeof(int32_t));
        one.own.tree.parents = sd_arena_take(arena, nodes, sizeof(int32_t));
        if (arena->base != NULL) d->writings[i] = one;
    }
}

static int begins_word(char byte) { return byte == ' ' || byte == '\n' || byte == '\t'; }

/* Bytes to cut at the start of text [n], so that it starts with a word, or at least with a character. */
static int cut_of(const char* text, int n) {
    for (int i = 0; i < n; i++)
        if (begins_word(text[i])) return i;
    for (int i = 0; i < n; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80) return i;
    return n;
}

/* Copy the last bytes of a text [n_text], at most LOOK_BACK and none before a special token, to the end of
 * `to` [LOOK_BACK]. Returns their number; *n_tokens: tokens they come from; *begins: the text has no
 * bytes. */
static int last_bytes(const sd_token_strings* strings, const int32_t* text, int n_text, char* to,
                      int* n_tokens, int* begins) {
    int n_free = LOOK_BACK, at = n_text - 1, n;
    *n_tokens = 0;
    for (; at >= 0 && n_free > 0; at--) {
        const char* string = sd_token_string(strings, text[at], &n);
        if (string == NULL) break;
        int some = n < n_free ? n : n_free;
        n_free -= some;
        ++*n_tokens;
        memcpy(to + n_free, string + n - some, (size_t)some);
    }
    *begins = n_free == LOOK_BACK;
    for (; at >= 0 && *begins; at--) *begins = sd_token_string(strings, text[at], &n) == NULL;
    return LOOK_BACK - n_free;
}

/* Set the context: the text's last bytes after any special token, from the start of a word on. */
static void look_back(const text_drafter* d, writing* w) {
    const sd_proposal* p = w->for_target;
    int n_tokens, n = last_bytes(&d->translation->target, p->text, p->n_text, w->text, &n_tokens, &w->begins);
    w->bytes_per_token = n_tokens > 0 ? (double)n / n_tokens : USUAL_BYTES;
    int first = n < LOOK_BACK ? LOOK_BACK - n : cut_of(w->text, n);
    for (;;) {
        int valid = sd_utf8_valid(w->text + first, LOOK_BACK - first), rest = LOOK_BACK - first - valid;
        if (rest == 0 || sd_utf8_begun(w->text + first + valid, rest)) break;
        first += valid + 1;
    }
    w->n_before = LOOK_BACK - first;
    memmove(w->text, w->text + first, (size_t)w->n_before);
}

static void begin_writing(const text_drafter* d, writing* w, sd_proposal* p) {
    sd_tree tree = w->own.tree;
    tree.n_nodes = 1;
    tree.parents[0] = -1;
    w->own = SD_MAKE(sd_proposal, .sequence = p->sequence, .text = p->text, .n_text = p->n_text,
                     .budget = sd_proposal_may_draft(p, 0) ? d->n_written : 0, .depth = d->n_written,
                     .stream = p->stream, .cache = p->cache, .failure = p->failure, .tree = tree);
    w->for_target = p;
    w->node = w->ending = w->foreign = w->n = 0;
    w->confidence = 1.0;
    look_back(d, w);
}

/* Add a draft token of the target if there is capacity and it pays; else stop writing. */
static void add(writing* w, int32_t token, double confidence) {
    sd_proposal* p = w->for_target;
    if (!w->open || !sd_proposal_may_add(p, w->node) || !sd_proposal_allows(p, w->node, token)) {
        w->open = 0;
        return;
    }
    w->node = sd_proposal_add_point(p, w->node, token, confidence);
}

/* Turn the written text into draft tokens of the target, without an incomplete character at its end. */
static sd_status settle(text_drafter* d, writing* w) {
    const sd_translation* t = d->translation;
    int whole = sd_utf8_valid(w->text, w->n_before + w->n), n = whole - w->n_before;
    if (n <= 0) return SD_OK;
    const sd_encodable text = SD_MAKE(sd_encodable, .what = SD_ENCODE_FOR_TARGET, .text = w->text, .n = whole,
                                      .n_before = w->n_before, .begins = w->begins);
    sd_encoded_ids ids = {.ids = d->ids, .capacity = d->text_capacity};
    SD_TRY(t->encode(t, d->caller, &text, &ids));
    if (ids.n > ids.capacity || ids.n == 0) {
        w->open = 0;
        return SD_OK;
    }
    double each = pow(w->confidence, 1.0 / ids.n);
    for (int i = 0; i < ids.n; i++) add(w, ids.ids[i], each);
    /* context from now on: the last word, as far as it fits */
    int rest = w->n - n, keep = whole < LOOK_BACK ? whole : LOOK_BACK;
    while (keep > 0 && keep < whole && ((unsigned char)w->text[whole - keep] & 0xC0) == 0x80) keep--;
    memmove(w->text, w->text + whole - keep, (size_t)(keep + rest));
    w->n_before = keep;
    w->n = rest;
    w->begins = w->foreign = 0;
    w->confidence = 1.0;
    return SD_OK;
}

static double probability_of(const text_drafter* d, const float* logits, int32_t token) {
    return 1.0 / sd_row_mass(logits, d->translation->draft.n, logits[token]);
}

/* Does the written text likely fill the remaining capacity? */
static int is_enough(const writing* w) {
    const sd_proposal* p = w->for_target;
    int n_free = p->budget + 1 - p->tree.n_nodes, deep = p->depth - p->depths[w->node];
    return w->n >= w->bytes_per_token * (n_free < deep ? n_free : deep);
}

/* Handle a token without text: draft the target's token of the same meaning; without one, stop. */
static void write_special(const text_drafter* d, writing* w, int32_t token, double probability) {
    int32_t same = d->translation->target_of[token];
    if (same >= 0 && w->n == 0) add(w, same, probability);
    w->open = 0;
}

/* Are the last bytes written invalid UTF-8, so that they give no text? */
static int is_broken(const writing* w) {
    int n = w->n_before + w->n, valid = sd_utf8_valid(w->text, n);
    return valid < n && !sd_utf8_begun(w->text + valid, n - valid);
}

static sd_status write_string(text_drafter* d, writing* w, int32_t token, const char* string, int n) {
    if (w->n_before + w->n + n > d->text_capacity) {
        w->open = 0;
        return SD_OK;
    }
    memcpy(w->text + w->n_before + w->n, string, (size_t)n);
    w->n += n;
    w->foreign |= d->translation->target_of[token] < 0;
    int node = w->own.tree.n_nodes++;
    w->own.tree.tokens[node] = token;
    w->own.tree.parents[node] = node - 1;
    w->ending = is_enough(w);
    const sd_proposal* p = w->for_target;
    int priced = p->policy != NULL && w->n >= LONGEST_UNPRICED;
    int done = node >= w->own.depth || is_broken(w) || (w->ending && (!w->foreign || w->n >= LONGEST_WORD));
    if (!done && !priced) return SD_OK;
    sd_status status = settle(d, w);
    w->open = w->open && !done && !w->ending && sd_proposal_may_draft(p, w->node);
    return status;
}

static sd_status write_token(text_drafter* d, writing* w, const float* logits) {
    const sd_translation* t = d->translation;
    const sd_proposal* p = w->for_target;
    int32_t token = sd_kernels_get()->argmax(t->draft.n, logits);
    double probability = p->policy ? probability_of(d, logits, token) : 1.0;
    int n;
    const char* string = sd_token_string(&t->draft, token, &n);
    if (string != NULL && w->begins && w->n == 0 && t->draft_strips && string[0] == ' ') string++, n--;
    int ends =
        string == NULL || (n > 0 && begins_word(string[0])); /* turn the written words into draft tokens */
    if (ends && (string == NULL || w->ending || p->policy != NULL)) {
        SD_TRY(settle(d, w));
        w->open = w->open && !w->ending && sd_proposal_may_draft(p, w->node);
    }
    if (!w->open) return SD_OK;
    if (string == NULL) {
        write_special(d, w, token, probability);
        return SD_OK;
    }
    w->confidence *= probability;
    return write_string(d, w, token, string, n);
}

/* Draft a token that both vocabularies have. */
static void draw_token(text_drafter* d, writing* w, const float* logits) {
    const sd_translation* t = d->translation;
    sd_proposal* p = w->for_target;
    double named = sd_translate_logits(t, logits, d->logits);
    atomic_fetch_add_explicit(t->n_rows, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(t->named, (long long)(named * SD_SHARE_UNIT), memory_order_relaxed);
    int added = sd_draft_token_add_if_it_pays(&d->token_drafter, p, w->node, d->logits),
        node = w->own.tree.n_nodes++;
    w->own.tree.parents[node] = node - 1;
    w->open = added >= 0 && node < w->own.depth && sd_proposal_may_draft(p, added);
    if (added < 0) return;
    w->node = added;
    w->own.tree.tokens[node] = t->draft_of[p->tree.tokens[added]];
}

/* Does this round of a text draw from the restricted distribution? Both methods alternate at first; then the
 * one with more accepted tokens is used, and the other tried now and then. Depends only on this text's
 * committed tokens. */
static int choose_method(const text_drafter* d, int sequence) {
    experience* e = &d->experiences[sequence];
    if (!d->measures) return 0;
    long round = e->n_rounds++;
    int better = e->accepted[1] >= e->accepted[0];
    if (round < TRIALS) return (int)(round % 2 == 0);
    return round % TRIED_EACH == 0 ? !better : better;
}

static sd_status begin_text(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    text_drafter* d = (text_drafter*)base;
    d->experiences[sequence] = (experience){0};
    /* forget the slot's previous text: if it failed, commit has not counted its tokens */
    for (int i = 0; i < d->n_proposed; i++)
        if (d->writings[i].own.sequence == sequence) d->writings[i].own.budget = 0;
    sd_predictor_begin(d->base.predictor, sequence, prompt);
    return SD_OK;
}

/* Learn how many draft tokens of the last round were accepted. */
static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    text_drafter* d = (text_drafter*)base;
    (void)tokens;
    for (int i = 0; i < d->n_proposed; i++) {
        writing* w = &d->writings[i];
        if (w->own.sequence != sequence || w->own.budget == 0) continue;
        experience* e = &d->experiences[sequence];
        double *n = &e->n_known[w->restricted], *mean = &e->accepted[w->restricted];
        if (*n < MEMORY) *n += 1.0;
        *mean += (n_tokens - w->own.n_text - 1 - *mean) / *n;
        w->own.budget = 0; /* counted; rounds without drafting call commit again */
    }
    return SD_OK;
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    text_drafter* d = (text_drafter*)base;
    sd_predictor* predictor = d->base.predictor;
    d->n_proposed = n;
    for (int i = 0; i < n; i++) {
        writing* w = &d->writings[i];
        begin_writing(d, w, &proposals[i]);
        SD_TRY(predictor->follow(predictor, &w->own));
        w->open = w->own.failure->status == SD_OK && w->own.budget > 0 && w->own.depth > 0;
        w->restricted = w->open && choose_method(d, w->own.sequence);
    }
    for (;;) {
        int n_open = 0;
        for (int i = 0; i < n; i++) {
            writing* w = &d->writings[i];
            if (!w->open) continue;
            d->at[n_open] = i;
            d->last[n_open] = w->own.tree.n_nodes - 1;
            d->batch[n_open] = (sd_draft_nodes){&w->own, &d->last[n_open], 1};
            n_open++;
        }
        if (n_open == 0) return SD_OK;
        sd_status status = predictor->predict(predictor, d->batch, n_open);
        for (int i = 0; i < n_open && status == SD_OK; i++) {
            const float* logits = predictor->logits + i * predictor->ld_logits;
            if (d->writings[d->at[i]].restricted)
                draw_token(d, &d->writings[d->at[i]], logits);
            else
                status = write_token(d, &d->writings[d->at[i]], logits);
        }
        if (status == SD_OK) status = sd_interrupted();
        if (status != SD_OK) return status;
    }
}

static int longest_of(const sd_token_strings* strings) {
    int longest = 1, n;
    for (int i = 0; i < strings->n; i++) {
        sd_token_string(strings, i, &n);
        if (n > longest) longest = n;
    }
    return longest;
}

sd_status sd_text_drafter_create(const sd_drafting* drafting, const sd_model_predictor_options* options,
                                 sd_vocabulary_method method, sd_drafter** drafter) {
    SD_NEW(text_drafter, d);
    const sd_translation* t = options->translation;
    int measures = method == SD_VOCABULARY_MEASURED;
    d->base.drafter =
        SD_MAKE(sd_drafter, .tree_type = SD_TREE_CHAINS, .points = !measures || !drafting->draws,
                .propose = propose, .commit = measures ? commit : NULL, .free = sd_predicting_free);
    d->measures = measures;
    d->translation = t;
    d->caller = options->caller;
    d->n_written = 8 * drafting->gamma < SD_MAX_GAMMA ? 8 * drafting->gamma : SD_MAX_GAMMA;
    d->text_capacity = LOOK_BACK + LONGEST_WORD + d->n_written * 16 + longest_of(&t->draft);
    sd_status status = SD_ARENA_BUILD(&d->base.drafter.arena, lay_out(d, drafting));
    const sd_prediction prediction = {drafting, drafting->n_text, d->n_written, 1, d->n_written};
    const sd_predictor_maker maker = {sd_model_predictor_make, options};
    if (status == SD_OK) status = sd_predicting_make(&d->base, maker, &prediction);
    d->base.drafter.begin = begin_text;
    return sd_drafter_made(&d->base.drafter, status, drafter);
}
