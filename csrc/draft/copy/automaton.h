/* A suffix automaton of token ids: which pieces of a text occur in it, and where (Blumer et al. 1985).
 *
 * It is built token by token and never allocates: a token costs O(1) on average whatever the text is like. A
 * state stands for all pieces of the text that end at the same positions; its link leads to the longest
 * suffix of them that ends at other positions too. The root stands for the empty piece. */
#pragma once

#include "memory.h"

/* The longest text an automaton can hold. */
#define SD_AUTOMATON_MAX_TOKENS (1 << 27)

typedef struct sd_automaton_state {
    int32_t length; /* of the longest piece it stands for */
    int32_t link;   /* -1: of the root */
    int32_t end;    /* index of the last token of an occurrence (see sd_automaton_append) */
    int32_t first;  /* slot of an edge that leaves it; -1: there is none */
} sd_automaton_state;

typedef struct sd_automaton_edge {
    int32_t from, token;
    int32_t to;   /* 0: the slot is empty, for no edge leads to the root */
    int32_t next; /* slot of another edge of the same state; -1: there is none */
} sd_automaton_edge;

typedef struct sd_automaton {
    int max_tokens, n_tokens, n_states;
    int last;                   /* state of the whole text */
    int32_t* text;              /* [max_tokens] */
    sd_automaton_state* states; /* [2 · max_tokens + 1] */
    sd_automaton_edge* edges;   /* [n_slots] by hash of (from, token) */
    uint32_t n_slots;           /* a power of two, at least 4 · max_tokens: there are at most 3 · n edges */
} sd_automaton;

/* A piece of the text: the suffix of `length` tokens of the longest that a state stands for. */
typedef struct sd_match {
    int32_t state;
    int32_t length;
} sd_match;

/* An automaton for at most max_tokens tokens (0 to SD_AUTOMATON_MAX_TOKENS) whose arrays are pieces of the
 * arena; to be cleared before its use. */
sd_automaton sd_automaton_take(sd_arena* arena, int max_tokens);

/* Back to the empty text. */
void sd_automaton_clear(sd_automaton* automaton);

/* Append a token, of any value.
 *
 * A state's `end` is the most recent of its occurrences before the end of the whole text, if the state was
 * among the longest 32 of the text's suffixes when it last occurred; otherwise some earlier one. To refresh
 * more would cost O(n) a token in periodic text, where the order of the occurrences does not matter. */
sd_status sd_automaton_append(sd_automaton* automaton, int32_t token);

/* The longest suffix of the whole text that occurs in it earlier too. Its state's `end` is earlier. */
sd_match sd_automaton_repeated(const sd_automaton* automaton);

/* From the longest suffix of something that occurs in the text to that of the same and another token. The
 * root with length 0 is the beginning, `last` with n_tokens is the whole text. O(1) on average. */
void sd_match_advance(sd_match* match, const sd_automaton* automaton, int32_t token);
