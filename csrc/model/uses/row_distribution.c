#include "row_distribution.h"

#include <math.h>

#include "kernels.h"

/* Logits weighed at once. */
#define PIECE 512

sd_row_distribution sd_row_distribution_of(const float* logits, int n_vocab) {
    const sd_kernels* k = sd_kernels_get();
    double largest = k->max(n_vocab, logits), total = 0.0;
    for (int i = 0; i < n_vocab; i++) total += exp((double)logits[i] - largest);
    return (sd_row_distribution){largest, log(total), k->argmax(n_vocab, logits)};
}

double sd_row_mass(const float* logits, int n_vocab, float from) {
    double terms[PIECE], sum = 0.0; /* terms are not kept; a piece fits the first-level cache */
    for (int i = 0; i < n_vocab; i += PIECE)
        sum +=
            sd_kernels_get()->weigh(n_vocab - i < PIECE ? n_vocab - i : PIECE, logits + i, from, 1.0f, terms);
    return sum;
}

void sd_row_top(const sd_row_distribution* row, const float* logits, int n_vocab, int n, int32_t* tokens,
                double* log_probs) {
    if (n == 0) return;
    sd_top top = {.n = n, .tokens = tokens, .values = log_probs};
    for (int32_t token = 0; token < n_vocab; token++) sd_top_offer(&top, token, (double)logits[token]);
    sd_top_sort(&top);
    for (int i = 0; i < n; i++) log_probs[i] = sd_row_log_prob(row, logits, tokens[i]);
}

/* Does entry i follow entry j in the order of sd_top_sort? */
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

/* Sift entry i of a heap of n up until its parent is less. */
static void rise(sd_top* t, int i) {
    for (int parent; i > 0 && is_less(t, i, parent = (i - 1) / 2); i = parent) swap(t, i, parent);
}

/* Sift entry 0 of a heap of n down until both children are larger. */
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
