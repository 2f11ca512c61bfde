#include "row_law.h"

#include <math.h>

#include "kernels.h"
#include "top.h"

/* Logits that are weighed at once. */
#define PIECE 512

sd_row_law sd_row_law_of(const float* logits, int n_vocab) {
    const sd_kernels* k = sd_kernels_get();
    double largest = k->max(n_vocab, logits), total = 0.0;
    for (int i = 0; i < n_vocab; i++) total += exp((double)logits[i] - largest);
    return (sd_row_law){largest, log(total), k->argmax(n_vocab, logits)};
}

double sd_row_mass(const float* logits, int n_vocab, float from) {
    double terms[PIECE], sum = 0.0; /* the terms are not kept, and a piece of them fits the nearest cache */
    for (int i = 0; i < n_vocab; i += PIECE)
        sum +=
            sd_kernels_get()->weigh(n_vocab - i < PIECE ? n_vocab - i : PIECE, logits + i, from, 1.0f, terms);
    return sum;
}

void sd_row_top(const sd_row_law* law, const float* logits, int n_vocab, int n, int32_t* tokens,
                double* log_probs) {
    if (n == 0) return;
    sd_top top = {.n = n, .tokens = tokens, .values = log_probs};
    for (int32_t token = 0; token < n_vocab; token++) sd_top_offer(&top, token, (double)logits[token]);
    sd_top_sort(&top);
    for (int i = 0; i < n; i++) log_probs[i] = sd_row_log_prob(law, logits, tokens[i]);
}
