#include "logprobs.h"

#include <math.h>
#include <string.h>

#include "row_distribution.h"

sd_status sd_logprobs_find(const char* name, sd_logprobs_type* of) {
    *of = strcmp(name, "model") == 0 ? SD_LOGPROBS_MODEL : SD_LOGPROBS_SAMPLING;
    if (*of == SD_LOGPROBS_MODEL || strcmp(name, "sampling") == 0) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "logprobs_of is '%s', expected model or sampling", name);
}

sd_logprobs sd_logprobs_take(sd_arena* arena, int n_tokens, int n_top) {
    size_t n = (size_t)n_tokens, top = (size_t)n_top;
    sd_logprobs logprobs = {.log_probs = sd_arena_take(arena, n, sizeof *logprobs.log_probs)};
    logprobs.top_tokens = sd_arena_take(arena, n, top * sizeof *logprobs.top_tokens);
    logprobs.top_log_probs = sd_arena_take(arena, n, top * sizeof *logprobs.top_log_probs);
    return logprobs;
}

/* Find the n most probable tokens of a distribution, best first, lower ids first on ties: tokens [n], -1
 * after the last with a probability, and log_probs [n]. */
static void find_top(const sd_distribution* d, int n_vocab, int n, int32_t* tokens, double* log_probs) {
    if (n == 0) return;
    sd_top top = {.n = n, .tokens = tokens, .values = log_probs};
    for (int32_t token = 0; token < n_vocab; token++) {
        double p = sd_prob(d, token);
        if (p > 0.0) sd_top_offer(&top, token, p);
    }
    sd_top_sort(&top);
    for (int i = 0; i < top.n_found; i++) log_probs[i] = log(log_probs[i]);
    for (int i = top.n_found; i < n; i++) tokens[i] = -1, log_probs[i] = -INFINITY;
}

/* Fill from the distribution that is sampled from. */
static sd_status fill_by_sampling(sd_verifier* v, const sd_verification* of, int node, int32_t token,
                                  const sd_logprobs* to, int n_top) {
    const sd_distribution* d;
    sd_status status = sd_verifier_distribute(v, of, node, &d);
    if (status != SD_OK) return status;
    *to->log_probs = log(sd_prob(d, token));
    find_top(d, v->n_vocab, n_top, to->top_tokens, to->top_log_probs);
    return SD_OK;
}

/* Fill from the logits. */
static void fill_by_logits(const sd_verifier* v, const sd_verification* of, int node, int32_t token,
                           const sd_logprobs* to, int n_top) {
    const float* logits = of->logits + of->node_rows[node] * of->stride;
    const sd_row_distribution row = sd_row_distribution_of(logits, v->n_vocab);
    *to->log_probs = sd_row_log_prob(&row, logits, token);
    sd_row_top(&row, logits, v->n_vocab, n_top, to->top_tokens, to->top_log_probs);
}

sd_status sd_logprobs_fill(const sd_logprobs* logprobs, const sd_logprobs_options* o, sd_verifier* v,
                           const sd_verification* of, const sd_verdict* verdict) {
    sd_status status = SD_OK;
    sd_logprobs to = *logprobs;
    for (int i = 0; i <= verdict->n_path && o->of != SD_LOGPROBS_NONE && status == SD_OK; i++) {
        int node = i == 0 ? 0 : verdict->path[i - 1];
        int32_t token = i < verdict->n_path ? of->tree->tokens[verdict->path[i]] : verdict->token;
        if (o->of == SD_LOGPROBS_SAMPLING)
            status = fill_by_sampling(v, of, node, token, &to, o->n_top);
        else
            fill_by_logits(v, of, node, token, &to, o->n_top);
        to.log_probs++, to.top_tokens += o->n_top, to.top_log_probs += o->n_top;
    }
    return status;
}
