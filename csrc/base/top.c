#include "top.h"

/* Whether entry i comes behind entry j in the order of sd_top_sort. */
static int is_less(const sd_top* t, int i, int j) {
    return t->values[i] < t->values[j] || (t->values[i] == t->values[j] && t->tokens[i] > t->tokens[j]);
}

static void swap(sd_top* t, int i, int j) {
    int32_t token = t->tokens[i];
    double value = t->values[i];
    t->tokens[i] = t->tokens[j];
    t->values[i] = t->values[j];
    t->tokens[j] = token;
    t->values[j] = value;
}

/* Let entry i of a heap of n rise to where its parent is less. */
static void rise(sd_top* t, int i) {
    for (int parent; i > 0 && is_less(t, i, parent = (i - 1) / 2); i = parent) swap(t, i, parent);
}

/* Let entry 0 of a heap of n sink to where both children are larger. */
static void sink(sd_top* t, int n) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_less(t, child + 1, child)) child++;
        if (!is_less(t, child, i)) return;
        swap(t, i, child);
    }
}

void sd_top_take(sd_top* top, int32_t token, double value) {
    int full = top->n_found == top->n, at = full ? 0 : top->n_found++;
    top->tokens[at] = token;
    top->values[at] = value;
    if (full)
        sink(top, top->n);
    else
        rise(top, at);
}

void sd_top_sort(sd_top* top) {
    for (int last = top->n_found - 1; last > 0; last--) {
        swap(top, 0, last);
        sink(top, last);
    }
}
