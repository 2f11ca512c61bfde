#include "translation.h"

#include <math.h>

#include "kernels.h"
#include "row_law.h"

const char* sd_token_string(const sd_token_strings* s, int32_t token, int* n) {
    *n = token >= 0 && token < s->n ? s->starts[token + 1] - s->starts[token] : 0;
    return *n > 0 ? s->bytes + s->starts[token] : NULL;
}

double sd_translate_logits(const sd_translation* t, const float* from, float* to) {
    for (int i = 0; i < t->target.n; i++) to[i] = t->draft_of[i] < 0 ? -INFINITY : from[t->draft_of[i]];
    float most = from[sd_kernels_get()->argmax(t->draft.n, from)];
    return sd_row_mass(to, t->target.n, most) / sd_row_mass(from, t->draft.n, most);
}
