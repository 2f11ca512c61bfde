#include "adjustment.h"

#include <float.h>
#include <math.h>
#include <string.h>

sd_adjustment sd_adjustment_take(sd_arena* arena, int n_vocab, int n_text) {
    return (sd_adjustment){.logits = sd_arena_take(arena, (size_t)n_vocab, sizeof(float)),
                           .counts = sd_arena_take(arena, (size_t)n_vocab, sizeof(int32_t)),
                           .reversed = sd_arena_take(arena, (size_t)n_text, sizeof(int32_t)),
                           .lengths = sd_arena_take(arena, (size_t)n_text, sizeof(int32_t))};
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

/* Write the text up to `node` to a->reversed, last token first. Returns its length. */
static int reverse(const sd_history* h, int node, const sd_adjustment* a) {
    text_position at = {node, h->n_tokens};
    int n = 0;
    for (int32_t token; (token = step_back(h, &at)) >= 0;) a->reversed[n++] = token;
    return n;
}

/* Mask each token that follows an earlier occurrence of the last n_gram - 1 tokens. Knuth-Morris-Pratt search
 * over the reversed text [n], which starts with the pattern: one pass for any n_gram. */
static void mask_repeated(int n, int n_gram, const sd_adjustment* a) {
    int32_t *reversed = a->reversed, *borders = a->lengths;
    int n_pattern = n_gram - 1, n_equal = 0;
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

/* Index of the first sequence that begins with a token of at least this id. */
static int first_with(const sd_sequences* s, int32_t token) {
    int low = 0, high = s->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->tokens[sd_sequences_begin(s, middle)] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Length of the longest sequence that the reversed text contains from reversed[at] on; 0: none. */
static int longest_sequence(const sd_sequences* s, const int32_t* reversed, int at) {
    int longest = 0;
    for (int i = first_with(s, reversed[at]); i < s->n; i++) {
        const int32_t* tokens = s->tokens + sd_sequences_begin(s, i);
        int n = s->ends[i] - sd_sequences_begin(s, i), n_equal = 0;
        if (tokens[0] != reversed[at]) break;
        while (n_equal < n && n_equal <= at && tokens[n_equal] == reversed[at - n_equal]) n_equal++;
        if (n_equal == n && n > longest) longest = n;
    }
    return longest;
}

/* Number of tokens after the breaker that begins last in the reversed text [n]; n without one. */
static int n_after_breaker(const sd_sequences* breakers, const int32_t* reversed, int n) {
    for (int i = 0; i < n; i++) {
        int length = longest_sequence(breakers, reversed, i);
        if (length > 0) return i + 1 - length;
    }
    return n;
}

/* lengths[k]: how many tokens from position k of the reversed text [n] on equal those at its start (the
 * Z-algorithm: one pass). */
static void find_repetitions(const int32_t* reversed, int n, int32_t* lengths) {
    int begin = 0, end = 0; /* of the known repetition that reaches furthest */
    for (int k = 1; k < n; k++) {
        int length = 0;
        if (k < end) length = lengths[k - begin] < end - k ? lengths[k - begin] : end - k;
        while (k + length < n && reversed[length] == reversed[k + length]) length++;
        lengths[k] = length;
        if (k + length > end) begin = k, end = k + length;
    }
}

/* base^exponent by squaring: the same products everywhere, unlike pow. */
static double power(double base, int exponent) {
    double product = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2 == 1) product *= base;
    return product;
}

/* Is this token alone a breaker? */
static int is_breaker(const sd_sequences* s, int32_t token) {
    for (int i = first_with(s, token); i < s->n && s->tokens[sd_sequences_begin(s, i)] == token; i++)
        if (s->ends[i] == sd_sequences_begin(s, i) + 1) return 1;
    return 0;
}

/* DRY ("don't repeat yourself"), by the reversed text [n]. */
static void penalize_repetitions(const sd_sampling* s, int n, const sd_adjustment* a) {
    const int32_t* reversed = a->reversed;
    if (n > s->dry_penalty_last_n) n = s->dry_penalty_last_n;
    int most = n_after_breaker(&s->dry_sequence_breakers, reversed, n);
    find_repetitions(reversed, n, a->lengths);
    for (int k = 1; k < n; k++) { /* counts: 1 + the longest repetition that a token would extend */
        int length = a->lengths[k] < most ? a->lengths[k] : most;
        int32_t* count = &a->counts[reversed[k - 1]];
        if (length >= s->dry_allowed_length && length >= *count) *count = length + 1;
    }
    for (int k = 1; k < n; k++) {
        int32_t token = reversed[k - 1], length = a->counts[token] - 1;
        a->counts[token] = 0;
        if (length < 0 || is_breaker(&s->dry_sequence_breakers, token)) continue;
        double penalty = s->dry_multiplier * power(s->dry_base, length - s->dry_allowed_length);
        a->logits[token] = (float)(a->logits[token] - fmin(penalty, FLT_MAX));
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
    int counts = s->presence_penalty != 0.0 || s->frequency_penalty != 0.0, n_text = 0;
    if (!sd_sampling_changes_logits(s)) return logits;
    memcpy(a->logits, logits, (size_t)n_vocab * sizeof *a->logits);
    if (penalty != 1.0f) penalize_occurred(penalty, logits, history, node, a->logits);
    if (counts) penalize_counted(s, history, node, a);
    if (s->dry_multiplier != 0.0 || s->no_repeat_ngram_size > 0) n_text = reverse(history, node, a);
    if (s->dry_multiplier != 0.0) penalize_repetitions(s, n_text, a);
    /* Set forbidden tokens to −infinity: adding infinities could give NaN. */
    const sd_biases* biases = &s->logit_bias;
    for (int i = 0; i < biases->n; i++) {
        float bias = biases->values[i], *logit = &a->logits[biases->tokens[i]];
        *logit = bias == -INFINITY ? bias : *logit + bias;
    }
    if (s->min_tokens > 0 && n_new(history, node) < s->min_tokens) mask_ends(s, n_vocab, a->logits);
    if (s->no_repeat_ngram_size > 0) mask_repeated(n_text, s->no_repeat_ngram_size, a);
    mask_words(history, node, &s->bad_words, a->logits);
    return a->logits;
}
