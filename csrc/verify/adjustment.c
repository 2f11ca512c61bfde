#include "adjustment.h"

#include <math.h>
#include <string.h>

/* From `logits`, not in place: so a second time changes nothing. */
static void penalise(const float* logits, float penalty, int32_t token, float* adjusted) {
    adjusted[token] = logits[token] > 0.0f ? logits[token] / penalty : logits[token] * penalty;
}

const float* sd_logits_adjust(const sd_sampling* sampling, int n_vocab, const float* logits,
                              const int32_t* tokens, int n_tokens, const sd_tree* tree, int node,
                              float* adjusted) {
    float penalty = (float)sampling->repetition_penalty;
    if (penalty == 1.0f && sampling->n_biased == 0) return logits;
    memcpy(adjusted, logits, (size_t)n_vocab * sizeof *adjusted);
    if (penalty != 1.0f) {
        for (int i = 0; i < n_tokens; i++) penalise(logits, penalty, tokens[i], adjusted);
        for (int i = node; i > 0; i = tree->parents[i]) penalise(logits, penalty, tree->tokens[i], adjusted);
    }
    /* A forbidden token is set to −infinity, as infinities must not be added. */
    for (int i = 0; i < sampling->n_biased; i++) {
        float bias = sampling->biases[i], *logit = &adjusted[sampling->biased[i]];
        *logit = bias == -INFINITY ? bias : *logit + bias;
    }
    return adjusted;
}
