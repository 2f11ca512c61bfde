/* Suffix automaton of token ids: which pieces of a text occur in it, and where (Blumer et al. 1985).
 *
 * Built token by token without allocations, in O(1) amortized time per token for any text. A state stands for
 * all pieces of the text that end at the same positions; its link leads to their longest suffix that also
 * ends elsewhere. The root stands for the empty piece. */
#pragma once

#include "memory.h"

/* The longest text an automaton can hold. */
#define SD_AUTOMATON_MAX_TOKENS (1 << 27)

typedef struct sd_automaton_state {
    int32_t length; /* of its longest piece */
    int32_t link;   /* -1 for the root */
    int32_t end;    /* index of the last token of an occurrence (see sd_automaton_append) */
    int32_t first;  /* slot of an edge that leaves it; -1: none */
} sd_automaton_state;

typedef struct sd_automaton_edge {
    int32_t from, token;
    int32_t to;   /* 0: the slot is empty; no edge leads to the root */
    int32_t next; /* slot of the next edge of the same state; -1: none */
} sd_automaton_edge;

typedef struct sd_automaton {
    int max_tokens, n_tokens, n_states;
    int last;                   /* state of the whole text */
    int32_t* text;              /* [max_tokens] */
    sd_automaton_state* states; /* [2 · max_tokens + 1] */
    sd_automaton_edge* edges;   /* [n_slots] by hash of (from, token) */
    uint32_t n_slots;           /* a power of two, at least 4 · max_tokens: there are at most 3 · n edges */
} sd_automaton;

/* A piece of the text: the last `length` tokens of a state's longest piece. */
typedef struct sd_match {
    int32_t state;
    int32_t length;
} sd_match;

/* Take an automaton for at most max_tokens tokens (0 to SD_AUTOMATON_MAX_TOKENS) from the arena; clear it
 * before use. */
sd_automaton sd_automaton_take(sd_arena* arena, int max_tokens);

/* Reset to the empty text. */
void sd_automaton_clear(sd_automaton* automaton);

/* Append a token, of any value.
 *
 * A state's `end` is its most recent occurrence before the end of the text, if it was among the text's 32
 * longest suffixes then; otherwise an earlier one. Refreshing more would cost O(n) per token in periodic
 * text, where the order of occurrences does not matter. */
sd_status sd_automaton_append(sd_automaton* automaton, int32_t token);

/* The longest suffix of the text that also occurs earlier in it; `end` of its state is earlier. */
sd_match sd_automaton_repeated(const sd_automaton* automaton);

/* Advance the longest suffix of some tokens that occurs in the text by one token. Start with the root and
 * length 0, or for the text itself with `last` and n_tokens. O(1) amortized. */
void sd_match_advance(sd_match* match, const sd_automaton* automaton, int32_t token);
