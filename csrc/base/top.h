/* The largest of values that come one after the other, such as the most probable of all tokens. */
#ifndef SD_TOP_H
#define SD_TOP_H

#include <stdint.h>

/* While values come, a heap with the least of those kept at 0. */
typedef struct sd_top {
    int n; /* how many are kept, at least 1 */
    int n_found;
    int32_t* tokens; /* [n], borrowed */
    double* values;  /* [n], borrowed; none is NaN */
} sd_top;

/* Keep a token in any case, in place of the least one where there are n. */
void sd_top_take(sd_top* top, int32_t token, double value);

/* Keep a token if its value is among the n largest so far. Tokens come in ascending order. */
static inline void sd_top_offer(sd_top* top, int32_t token, double value) {
    if (top->n_found < top->n || value > top->values[0]) sd_top_take(top, token, value);
}

/* When all have come: put those that were kept in order, the largest first, of equal ones the lower token. */
void sd_top_sort(sd_top* top);

#endif
