#include "translation.h"

#include <math.h>

#include "kernels.h"

const char* sd_token_string(const sd_token_strings* s, int32_t token, int* n) {
    *n = token >= 0 && token < s->n ? s->starts[token + 1] - s->starts[token] : 0;
    return *n > 0 ? s->bytes + s->starts[token] : NULL;
}

/* The sum of exp(x - most) of x [n]. */
static double sum_of(const float* x, int n, float most, double* terms) {
    double sum = 0.0;
    for (int i = 0; i < n; i += SD_SHARE_PIECE)
        sum += sd_kernels_get()->weigh(n - i < SD_SHARE_PIECE ? n - i : SD_SHARE_PIECE, x + i, most, 1.0f,
                                       terms);
    return sum;
}

double sd_translate_logits(const sd_translation* t, const float* from, float* to, double* terms) {
    for (int i = 0; i < t->target.n; i++) to[i] = t->draft_of[i] < 0 ? -INFINITY : from[t->draft_of[i]];
    float most = from[sd_kernels_get()->argmax(t->draft.n, from)];
    return sum_of(to, t->target.n, most, terms) / sum_of(from, t->draft.n, most, terms);
}
