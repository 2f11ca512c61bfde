#include "adjustment.h"

#include <math.h>
#include <string.h>

sd_adjustment sd_adjustment_take(sd_arena* arena, int n_vocab, int n_text) {
    return (sd_adjustment){.logits = sd_arena_take(arena, (size_t)n_vocab, sizeof(float)),
                           .counts = sd_arena_take(arena, (size_t)n_vocab, sizeof(int32_t)),
                           .reversed = sd_arena_take(arena, (size_t)n_text, sizeof(int32_t)),
                           .borders = sd_arena_take(arena, (size_t)n_text, sizeof(int32_t))};
}

/* Read `logits`, not `adjusted`: penalizing a token again changes nothing. */
static void penalize(const float* logits, float penalty, int32_t token, float* adjusted) {
    adjusted[token] = logits[token] > 0.0f ? logits[token] / penalty : logits[token] * penalty;
}

static void penalize_occurred(float penalty, const float* logits, const sd_history* h, int node,
                              float* adjusted) {
    for (int i = 0; i < h->n_tokens; i++) penalize(logits, penalty, h->tokens[i], adjusted);
    for (int i = node; i > 0; i = h->tree->parents[i])
        penalize(logits, penalty, h->tree->tokens[i], adjusted);
}

/* Subtract the presence and frequency penalties of a counted token, and reset its count. */
static void take_counted(const sd_sampling* s, int32_t token, const sd_adjustment* a) {
    if (a->counts[token] == 0) return;
    double penalty = s->presence_penalty + a->counts[token] * s->frequency_penalty;
    a->logits[token] = (float)(a->logits[token] - penalty);
    a->counts[token] = 0;
}

static void penalize_counted(const sd_sampling* s, const sd_history* h, int node, const sd_adjustment* a) {
    for (int i = h->n_prompt; i < h->n_tokens; i++) a->counts[h->tokens[i]]++;
    for (int i = node; i > 0; i = h->tree->parents[i]) a->counts[h->tree->tokens[i]]++;
    for (int i = h->n_prompt; i < h->n_tokens; i++) take_counted(s, h->tokens[i], a);
    for (int i = node; i > 0; i = h->tree->parents[i]) take_counted(s, h->tree->tokens[i], a);
}

/* Number of generated tokens up to `node`. */
static int n_new(const sd_history* h, int node) {
    int n = h->n_tokens - h->n_prompt;
    for (; node > 0; node = h->tree->parents[node]) n++;
    return n;
}

static void mask_ends(const sd_sampling* s, int n_vocab, float* logits) {
    for (int i = 0; i < s->n_end_ids; i++)
        if (s->end_ids[i] >= 0 && s->end_ids[i] < n_vocab) logits[s->end_ids[i]] = -INFINITY;
}

/* A position in the sequence: after a tree node or, if node is 0, after the first n tokens. */
typedef struct text_position {
    int node, n;
} text_position;

/* Step back over the token before a position. Returns the token, or -1 at the start. */
static int32_t step_back(const sd_history* h, text_position* at) {
    if (at->node == 0) return at->n > 0 ? h->tokens[--at->n] : -1;
    int32_t token = h->tree->tokens[at->node];
    at->node = h->tree->parents[at->node];
    return token;
}

/* Mask each token that follows an earlier occurrence of the last n_gram - 1 tokens. Knuth-Morris-Pratt search
 * over the reversed text, which starts with the pattern: one pass for any n_gram. */
static void mask_repeated(const sd_history* h, int node, int n_gram, const sd_adjustment* a) {
    int32_t *reversed = a->reversed, *borders = a->borders;
    text_position at = {node, h->n_tokens};
    int n = 0, n_pattern = n_gram - 1, n_equal = 0;
    for (int32_t token; (token = step_back(h, &at)) >= 0;) reversed[n++] = token;
    if (n_pattern == 0)
        for (int i = 0; i < n; i++) a->logits[reversed[i]] = -INFINITY;
    if (n_pattern == 0 || n_pattern >= n) return;
    borders[0] = 0;
    for (int i = 1; i < n; i++) {
        while (n_equal > 0 && (n_equal == n_pattern || reversed[i] != reversed[n_equal]))
            n_equal = borders[n_equal - 1];
        n_equal += reversed[i] == reversed[n_equal];
        borders[i] = n_equal;
        if (n_equal == n_pattern) a->logits[reversed[i - n_pattern]] = -INFINITY;
    }
}

/* Does the sequence up to `at` end with these tokens? */
static int ends_with(const sd_history* h, text_position at, const int32_t* tokens, int n) {
    while (n > 0 && step_back(h, &at) == tokens[n - 1]) n--;
    return n == 0;
}

static void mask_words(const sd_history* h, int node, const sd_sequences* words, float* logits) {
    for (int i = 0, begin = 0; i < words->n; begin = words->ends[i++]) {
        int last = words->ends[i] - 1;
        if (ends_with(h, (text_position){node, h->n_tokens}, words->tokens + begin, last - begin))
            logits[words->tokens[last]] = -INFINITY;
    }
}

const float* sd_logits_adjust(const sd_sampling* s, int n_vocab, const float* logits,
                              const sd_history* history, int node, const sd_adjustment* a) {
    float penalty = (float)s->repetition_penalty;
    int counts = s->presence_penalty != 0.0 || s->frequency_penalty != 0.0;
    if (!sd_sampling_changes_logits(s)) return logits;
    memcpy(a->logits, logits, (size_t)n_vocab * sizeof *a->logits);
    if (penalty != 1.0f) penalize_occurred(penalty, logits, history, node, a->logits);
    if (counts) penalize_counted(s, history, node, a);
    /* Set forbidden tokens to −infinity: adding infinities could give NaN. */
    const sd_biases* biases = &s->logit_bias;
    for (int i = 0; i < biases->n; i++) {
        float bias = biases->values[i], *logit = &a->logits[biases->tokens[i]];
        *logit = bias == -INFINITY ? bias : *logit + bias;
    }
    if (s->min_tokens > 0 && n_new(history, node) < s->min_tokens) mask_ends(s, n_vocab, a->logits);
    if (s->no_repeat_ngram_size > 0) mask_repeated(history, node, s->no_repeat_ngram_size, a);
    mask_words(history, node, &s->bad_words, a->logits);
    return a->logits;
}
