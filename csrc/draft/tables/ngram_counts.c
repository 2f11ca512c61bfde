#include "ngram_counts.h"

#include <math.h>
#include <string.h>

sd_ngram_counts sd_ngram_counts_take(sd_arena* arena, const sd_ngram_table* table, int n_text) {
    size_t room = 1 + (size_t)table->n * (size_t)n_text, n_slots = 16;
    while (n_slots < 2 * room) n_slots *= 2;
    if (room > INT32_MAX / 4) arena->overflowed = 1;
    return (sd_ngram_counts){
        .table = table,
        .unigrams = sd_unigrams_take(arena, table->n_vocab),
        .counted = sd_arena_take(arena, room, sizeof(sd_counted)),
        .slots = sd_arena_take(arena, n_slots, sizeof(int32_t)),
        .n_slots = (int32_t)n_slots,
        .n_text = n_text,
    };
}

void sd_ngram_counts_clear(sd_ngram_counts* c) {
    sd_unigrams* u = &c->unigrams;
    const sd_unigrams own = *u, *from = &c->table->unigrams;
    size_t n_vocab = (size_t)c->table->n_vocab;
    *u = *from;
    u->counts = own.counts;
    u->logs = own.logs;
    memcpy(u->counts, from->counts, n_vocab * sizeof *from->counts);
    memcpy(u->logs, from->logs, n_vocab * sizeof *from->logs);
    memset(c->slots, 0, (size_t)c->n_slots * sizeof *c->slots);
    c->counted[0] = (sd_counted){.beginning = -1, .token = -1};
    c->n_counted = 1;
    c->n_read = 0;
    sd_ngram_contexts_begin(c->table, c->contexts);
}

/* The slot of an n-gram: where its number stands, or the free one where it would. There is always one. */
static int32_t slot_of(const sd_ngram_counts* c, int32_t beginning, int32_t token) {
    uint64_t key = ((uint64_t)(uint32_t)beginning << 32 | (uint32_t)token) * 0x9E3779B97F4A7C15u;
    int32_t slot = (int32_t)(key >> 33) & (c->n_slots - 1);
    for (;; slot = (slot + 1) & (c->n_slots - 1)) {
        int32_t number = c->slots[slot];
        if (number == 0) return slot;
        if (c->counted[number].beginning == beginning && c->counted[number].token == token) return slot;
    }
}

/* One more n-gram: `context`, of k tokens, and this one behind it. */
static void count(sd_ngram_counts* c, int k, const sd_ngram_context* context, int32_t token) {
    sd_counted* beginning = &c->counted[context->number];
    int32_t slot = slot_of(c, context->number, token);
    if (c->slots[slot] == 0) {
        int32_t entry = (int32_t)sd_ngram_find(c->table, k, context->entry, token);
        c->slots[slot] = c->n_counted;
        c->counted[c->n_counted] = (sd_counted){
            .beginning = context->number, .token = token, .next = beginning->first, .entry = entry};
        beginning->first = c->n_counted++;
        beginning->n_new += entry < 0;
    }
    c->counted[c->slots[slot]].count++;
    beginning->n_after++;
}

static void count_unigram(sd_unigrams* u, int n_vocab, int32_t token) {
    if (u->counts[token] == INT32_MAX) return;
    u->n++;
    if (u->counts[token]++ == 0) { /* another different one changes the weight of all */
        u->n_different++;
        u->logs_stale = 1;
    }
    sd_unigrams_share(u, n_vocab);
    if (!u->logs_stale) u->logs[token] = logf((float)sd_unigram_weight(u, token));
    int32_t most = u->counts[u->best];
    if (u->counts[token] > most || (u->counts[token] == most && token < u->best)) u->best = token;
}

void sd_ngram_counts_read(sd_ngram_counts* c, const int32_t* text, int n_text) {
    if (n_text > c->n_text) n_text = c->n_text;
    for (; c->n_read < n_text; c->n_read++) {
        int32_t token = text[c->n_read];
        count_unigram(&c->unigrams, c->table->n_vocab, token);
        for (int k = 0; k < c->table->n; k++)
            if (c->contexts[k].number >= 0) count(c, k, &c->contexts[k], token);
        sd_ngram_contexts_advance(c->table, c, token, c->contexts);
    }
}

void sd_ngram_contexts_begin(const sd_ngram_table* table, sd_ngram_context* contexts) {
    for (int k = 0; k < table->n; k++) contexts[k] = (sd_ngram_context){-1, -1};
    contexts[0] = (sd_ngram_context){0, 0};
}

void sd_ngram_contexts_advance(const sd_ngram_table* table, const sd_ngram_counts* counts, int32_t token,
                               sd_ngram_context* contexts) {
    for (int k = table->n - 1; k > 0; k--) {
        sd_ngram_context before = contexts[k - 1], here = {-1, -1};
        if (before.entry >= 0) here.entry = sd_ngram_find(table, k - 1, before.entry, token);
        if (counts != NULL && before.number >= 0) {
            int32_t number = counts->slots[slot_of(counts, before.number, token)];
            if (number > 0) here.number = number;
        }
        contexts[k] = here;
    }
}
