/* Places of a text in the order of what stands before them: a suffix tree without its edges.
 *
 * The suffix at a place, the index of a token, is that token and those before it, read backwards. Places
 * whose suffixes end with the same piece lie together, so all occurrences of a piece are one range, which is
 * a node of the suffix tree. A token that is appended to a text changes no suffix but its own. So the order
 * takes 4 bytes a token, and grows with the text. */
#ifndef SD_SUFFIX_ORDER_H
#define SD_SUFFIX_ORDER_H

#include "memory.h"

typedef struct sd_suffix_order {
    int depth; /* tokens of a suffix that count, ≥ 1; places whose suffixes agree in them lie by index */
    int n;     /* places */
    int32_t* places; /* [n] with room for as many as are added; borrowed */
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
sd_status sd_suffix_sort(const int32_t* tokens, int depth, int32_t* places, int n, int32_t* spare);

/* Add places [n] that are sorted and higher than all of the order's. Asks sd_interrupted; an order that could
 * not be added to is to be begun anew. */
sd_status sd_suffix_order_add(sd_suffix_order* order, const int32_t* tokens, const int32_t* places, int n);

/* The occurrences in the text `tokens` of the longest suffix of something that occurs at one of the places.
 * */
sd_suffix_range sd_suffix_order_find(const sd_suffix_order* order, const int32_t* tokens, sd_suffix suffix);

#endif
