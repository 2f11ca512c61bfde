#include "automaton.h"

#include <string.h>

/* Suffixes of the text whose `end` is updated with every token. */
#define N_REFRESHED 32

sd_automaton sd_automaton_take(sd_arena* arena, int max_tokens) {
    sd_automaton a = {.max_tokens = max_tokens, .n_slots = 16};
    while (a.n_slots < 4 * (uint32_t)max_tokens) a.n_slots *= 2;
    a.text = sd_arena_take(arena, (size_t)max_tokens, sizeof *a.text);
    a.states = sd_arena_take(arena, 2 * (size_t)max_tokens + 1, sizeof *a.states);
    a.edges = sd_arena_take(arena, a.n_slots, sizeof *a.edges);
    return a;
}

void sd_automaton_clear(sd_automaton* a) {
    if (a->n_tokens > 0) memset(a->edges, 0, a->n_slots * sizeof *a->edges); /* new memory is zero */
    a->n_tokens = 0;
    a->n_states = 1;
    a->last = 0;
    a->states[0] = (sd_automaton_state){.length = 0, .link = -1, .end = -1, .first = -1};
}

/* Slot of the edge, or the empty slot for it. */
static sd_automaton_edge* slot_of(const sd_automaton* a, int32_t from, int32_t token) {
    uint64_t key = (uint64_t)(uint32_t)from << 32 | (uint32_t)token;
    uint64_t hash = key * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t mask = a->n_slots - 1, slot = (uint32_t)(hash >> 32) & mask;
    while (a->edges[slot].to != 0 && (a->edges[slot].from != from || a->edges[slot].token != token))
        slot = (slot + 1) & mask;
    return &a->edges[slot];
}

static void add_edge(sd_automaton* a, sd_automaton_edge* slot, int32_t from, int32_t token, int32_t to) {
    *slot = (sd_automaton_edge){from, token, to, a->states[from].first};
    a->states[from].first = (int32_t)(slot - a->edges);
}

/* Split state `whole`: its pieces no longer than state `from` plus the token now end at more positions than
 * the longer ones, and get a state of their own. */
static int32_t split(sd_automaton* a, int32_t from, int32_t token, int32_t whole) {
    int32_t part = a->n_states++;
    a->states[part] = a->states[whole];
    a->states[part].length = a->states[from].length + 1;
    a->states[part].first = -1;
    for (int32_t i = a->states[whole].first; i >= 0; i = a->edges[i].next)
        add_edge(a, slot_of(a, part, a->edges[i].token), part, a->edges[i].token, a->edges[i].to);
    a->states[whole].link = part;
    for (; from >= 0; from = a->states[from].link) {
        sd_automaton_edge* edge = slot_of(a, from, token);
        if (edge->to != whole) break;
        edge->to = part;
    }
    return part;
}

sd_status sd_automaton_append(sd_automaton* a, int32_t token) {
    if (a->n_tokens >= a->max_tokens)
        return sd_fail(SD_ERR_STATE, "the automaton is full: it was made for %d tokens", a->max_tokens);
    int32_t from = a->last;
    /* update the ends of the text's suffixes, which the next token turns into earlier occurrences */
    for (int32_t s = a->states[from].link, i = 0; s > 0 && i < N_REFRESHED; s = a->states[s].link, i++)
        a->states[s].end = a->n_tokens - 1;
    int32_t new = a->n_states++, link = 0;
    a->text[a->n_tokens] = token;
    a->states[new] = (sd_automaton_state){a->n_tokens + 1, 0, a->n_tokens, -1};
    for (; from >= 0; from = a->states[from].link) {
        sd_automaton_edge* edge = slot_of(a, from, token);
        if (edge->to != 0) {
            int32_t known = edge->to;
            int exact = a->states[known].length == a->states[from].length + 1;
            link = exact ? known : split(a, from, token, known);
            break;
        }
        add_edge(a, edge, from, token, new);
    }
    a->states[new].link = link;
    a->last = new;
    a->n_tokens++;
    return SD_OK;
}

sd_match sd_automaton_repeated(const sd_automaton* a) {
    int32_t link = a->states[a->last].link;
    return link < 0 ? (sd_match){0, 0} : (sd_match){link, a->states[link].length};
}

void sd_match_advance(sd_match* m, const sd_automaton* a, int32_t token) {
    for (;;) {
        int32_t to = slot_of(a, m->state, token)->to;
        if (to != 0) {
            *m = (sd_match){to, m->length + 1};
            return;
        }
        if (m->state == 0) return;
        m->state = a->states[m->state].link;
        m->length = a->states[m->state].length;
    }
}
