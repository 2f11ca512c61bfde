#include "row_law.h"

#include <math.h>

#include "kernels.h"

sd_row_law sd_row_law_of(const float* logits, int n_vocab) {
    const sd_kernels* k = sd_kernels_get();
    double largest = k->max(n_vocab, logits), total = 0.0;
    for (int i = 0; i < n_vocab; i++) total += exp((double)logits[i] - largest);
    return (sd_row_law){largest, log(total), k->argmax(n_vocab, logits)};
}

void sd_row_top(const float* logits, int n_vocab, int n, int32_t* tokens) {
    if (n == 0) return;
    for (int32_t token = 0; token < n_vocab; token++) {
        if (token >= n && !(logits[token] > logits[tokens[n - 1]])) continue;
        int at = token < n ? token : n - 1; /* the last one leaves */
        for (; at > 0 && logits[token] > logits[tokens[at - 1]]; at--) tokens[at] = tokens[at - 1];
        tokens[at] = token;
    }
}
