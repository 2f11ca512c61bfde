/* Suffix trees: the sorted positions of a text, and a memory of past outputs.
 *
 * The suffix at a position, the index of a token, is that token and those before it, read backwards.
 * Positions whose suffixes end with the same piece are adjacent, so all occurrences of a piece are one range,
 * which is a node of the suffix tree. An appended token changes no suffix but its own. So the order takes 4
 * bytes per token and grows with the text. */
#pragma once

#include <stdatomic.h>

#include "memory.h"
#include "system.h"

typedef struct sd_suffix_order {
    int depth;          /* tokens of a suffix that are compared, ≥ 1; equal suffixes are in index order */
    int n;              /* positions */
    int32_t* positions; /* [n] with capacity for all that are added; borrowed */
} sd_suffix_order;

/* The end of a text. */
typedef struct sd_suffix {
    const int32_t* last; /* its last token; borrowed */
    int n;               /* tokens up to it, ≥ 1; a negative token also ends the suffix */
} sd_suffix;

/* Occurrences of a piece: positions [begin, end) of an order. */
typedef struct sd_suffix_range {
    int begin, end;
    int length; /* tokens of the piece; 0: the range is empty */
} sd_suffix_range;

/* Sort positions [n] of the text `tokens` by their suffixes. spare: [n] scratch. Checks sd_interrupted. */
sd_status sd_suffix_sort(const int32_t* tokens, int depth, int32_t* positions, int n, int32_t* spare);

/* Add positions [n] that are sorted and higher than all of the order's. Checks sd_interrupted; after a
 * failure the order must be rebuilt. */
sd_status sd_suffix_order_add(sd_suffix_order* order, const int32_t* tokens, const int32_t* positions, int n);

/* Occurrences in the text `tokens` of the longest part of `suffix` that occurs at one of the positions. */
sd_suffix_range sd_suffix_order_find(const sd_suffix_order* order, const int32_t* tokens, sd_suffix suffix);

/* A bounded suffix tree of past outputs, which sessions of several threads read while outputs are added.
 *
 * A tree never changes. Adding outputs creates another tree from the old one, without its oldest outputs if
 * the capacity is exceeded; readers of the old one continue with it. */

/* Most tokens of a memory. */
#define SD_SUFFIX_MAX_TOKENS (1 << 28)
/* Most tokens of a suffix that are compared. */
#define SD_SUFFIX_MAX_DEPTH 1024

/* Texts, each an output after the end of its prompt. The order holds the positions before output tokens. 4
 * bytes per token, and 4 more per output token. */
typedef struct sd_suffix_tree {
    atomic_int n_references;
    sd_arena arena; /* owns the arrays */
    int n_texts, n_tokens;
    int32_t* tokens; /* [n_texts + n_tokens + 1] the texts, with -1 before each and after the last */
    /* [n_texts + 1] index of each text's first token; the last entry is one past the final -1 */
    int32_t* texts;
    int32_t* outputs; /* [n_texts] index of the first token of each output */
    int32_t max_token;
    sd_suffix_order order;
} sd_suffix_tree;

/* Texts to add, one after the other. */
typedef struct sd_suffix_texts {
    const int32_t* tokens;   /* borrowed */
    const int32_t* lengths;  /* [n] ≥ 1 */
    const int32_t* n_before; /* [n] prompt tokens at the start of each text, below its length */
    int n;
} sd_suffix_texts;

typedef struct sd_suffix_memory {
    sd_mutex lock;        /* of `tree`, the pointer */
    sd_suffix_tree* tree; /* the memory's own reference; never NULL */
    int max_tokens;       /* ≥ 1 */
} sd_suffix_memory;

/* Create an empty memory; free with sd_suffix_memory_free. */
sd_status sd_suffix_memory_create(sd_suffix_memory* memory, int max_tokens, int depth);
/* Release the memory's own reference. */
void sd_suffix_memory_free(sd_suffix_memory* memory);

/* The current tree, with a reference for the caller. */
sd_suffix_tree* sd_suffix_memory_tree(sd_suffix_memory* memory);
/* Release a reference; NULL is allowed. */
void sd_suffix_tree_release(sd_suffix_tree* tree);

/* Add texts, one thread at a time. Drops the oldest texts to stay within max_tokens; of a longer text only
 * its end is added. On failure the memory is unchanged. Checks sd_interrupted. */
sd_status sd_suffix_memory_add(sd_suffix_memory* memory, const sd_suffix_texts* texts);
