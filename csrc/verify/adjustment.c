#include "adjustment.h"

#include <math.h>
#include <string.h>

sd_status sd_adjustment_check(const sd_adjustment* a, int n_vocab) {
    if (!(a->repetition_penalty > 0.0 && isnormal((float)a->repetition_penalty)))
        return sd_fail(SD_ERR_VALUE,
                       "repetition_penalty is %g, expected a finite number above 0, of the range of float32",
                       a->repetition_penalty);
    int n_forbidden = 0;
    for (int i = 0; i < a->n_biased; i++) {
        if (a->biased[i] < 0 || a->biased[i] >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "logit_bias: token %d, expected 0 to %d", (int)a->biased[i],
                           n_vocab - 1);
        if (isnan(a->biases[i]) || a->biases[i] == INFINITY)
            return sd_fail(SD_ERR_VALUE, "logit_bias[%d] is %g, expected a finite number or -infinity",
                           (int)a->biased[i], (double)a->biases[i]);
        n_forbidden += isinf(a->biases[i]);
    }
    if (n_forbidden >= n_vocab) return sd_fail(SD_ERR_VALUE, "logit_bias forbids every token");
    return SD_OK;
}

/* From `logits`, not in place: so a second time changes nothing. */
static void penalise(const float* logits, float penalty, int32_t token, float* adjusted) {
    adjusted[token] = logits[token] > 0.0f ? logits[token] / penalty : logits[token] * penalty;
}

const float* sd_logits_adjust(const sd_adjustment* a, int n_vocab, const float* logits, const int32_t* text,
                              int n_text, const sd_tree* tree, int node, float* adjusted) {
    float penalty = (float)a->repetition_penalty;
    if (penalty == 1.0f && a->n_biased == 0) return logits;
    memcpy(adjusted, logits, (size_t)n_vocab * sizeof *adjusted);
    if (penalty != 1.0f) {
        for (int i = 0; i < n_text; i++) penalise(logits, penalty, text[i], adjusted);
        for (int i = node; i > 0; i = tree->parents[i]) penalise(logits, penalty, tree->tokens[i], adjusted);
    }
    for (int i = 0; i < a->n_biased; i++) { /* forbidding by assignment, as infinities may not be added */
        float bias = a->biases[i], *logit = &adjusted[a->biased[i]];
        *logit = bias == -INFINITY ? bias : *logit + bias;
    }
    return adjusted;
}
