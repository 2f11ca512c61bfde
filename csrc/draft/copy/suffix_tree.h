/* Suffix trees: the order of a text's places, and past outputs in it.
 *
 * The suffix at a place, the index of a token, is that token and those before it, read backwards. Places
 * whose suffixes end with the same piece lie together, so all occurrences of a piece are one range, which is
 * a node of the suffix tree. A token that is appended to a text changes no suffix but its own. So the order
 * takes 4 bytes a token, and grows with the text. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "memory.h"

typedef struct sd_suffix_order {
    int depth; /* tokens of a suffix that count, ≥ 1; places whose suffixes agree in them lie by index */
    int n;     /* places */
    int32_t* positions; /* [n] with room for as many as are added; borrowed */
} sd_suffix_order;

/* The end of a text. */
typedef struct sd_suffix {
    const int32_t* last; /* its last token; borrowed */
    int n;               /* tokens up to it, ≥ 1; a negative one ends the suffix too */
} sd_suffix;

/* Occurrences of a piece: places [begin, end) of an order. */
typedef struct sd_suffix_range {
    int begin, end;
    int length; /* tokens of the piece; 0: the range is empty */
} sd_suffix_range;

/* Sort places [n] of the text `tokens` as an order has them. spare: [n] scratch. Asks sd_interrupted. */
sd_status sd_suffix_sort(const int32_t* tokens, int depth, int32_t* positions, int n, int32_t* spare);

/* Add places [n] that are sorted and higher than all of the order's. Asks sd_interrupted; an order that could
 * not be added to is to be begun anew. */
sd_status sd_suffix_order_add(sd_suffix_order* order, const int32_t* tokens, const int32_t* positions, int n);

/* The occurrences in the text `tokens` of the longest suffix of something that occurs at one of the
 * places. */
sd_suffix_range sd_suffix_order_find(const sd_suffix_order* order, const int32_t* tokens, sd_suffix suffix);

/* A suffix tree of past outputs, bounded, that sessions of several threads read while outputs are added.
 *
 * A tree never changes. To add outputs is to make another tree of the old one, without its oldest outputs
 * where there is no room for all; whoever reads the old one goes on with it. */

/* The most tokens of a memory. */
#define SD_SUFFIX_MAX_TOKENS (1 << 28)
/* The most tokens of a suffix that count. */
#define SD_SUFFIX_MAX_DEPTH 1024

/* Texts, each an output behind the end of its prompt. The places of the order are those of the tokens that an
 * output's token follows. 4 bytes a token, and 4 more for a token of an output. */
typedef struct sd_suffix_tree {
    atomic_int n_references;
    sd_arena arena; /* owns the arrays */
    int n_texts, n_tokens;
    int32_t* tokens; /* [n_texts + n_tokens + 1] the texts, a -1 before each and behind the last */
    int32_t* texts;  /* [n_texts + 1] index of each text's first token; of the first behind them all, and 1 */
    int32_t* outputs; /* [n_texts] index of the first token of each output */
    int32_t max_token;
    sd_suffix_order order;
} sd_suffix_tree;

/* Texts that are added, one behind the other. */
typedef struct sd_suffix_texts {
    const int32_t* tokens;   /* borrowed */
    const int32_t* lengths;  /* [n] ≥ 1 */
    const int32_t* n_before; /* [n] tokens of the prompt that a text begins with, below its length */
    int n;
} sd_suffix_texts;

typedef struct sd_suffix_memory {
    pthread_mutex_t lock; /* of `tree`, the pointer */
    sd_suffix_tree* tree; /* the memory's own reference; never NULL */
    int max_tokens;       /* ≥ 1 */
} sd_suffix_memory;

/* An empty memory, to be freed. */
sd_status sd_suffix_memory_create(sd_suffix_memory* memory, int max_tokens, int depth);
/* Give back the memory's own reference. */
void sd_suffix_memory_free(sd_suffix_memory* memory);

/* The tree of this moment, with a reference for the caller. */
sd_suffix_tree* sd_suffix_memory_tree(sd_suffix_memory* memory);
/* Give back a reference; NULL is allowed. */
void sd_suffix_tree_release(sd_suffix_tree* tree);

/* Add texts, by one thread at a time. The oldest texts leave where max_tokens would be exceeded; of a text
 * that is longer its end is added. On failure the memory is what it was. Asks sd_interrupted. */
sd_status sd_suffix_memory_add(sd_suffix_memory* memory, const sd_suffix_texts* texts);
