#include "token_laws.h"

#include <math.h>
#include <string.h>

#include "row_law.h"
#include "top.h"

sd_status sd_token_law_find(const char* name, sd_token_law* law) {
    *law = strcmp(name, "model") == 0 ? SD_LAW_MODEL : SD_LAW_SAMPLING;
    if (*law == SD_LAW_MODEL || strcmp(name, "sampling") == 0) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "the law is '%s', expected model or sampling", name);
}

sd_token_laws sd_token_laws_take(sd_arena* arena, int n_tokens, int n_top) {
    size_t n = (size_t)n_tokens, top = (size_t)n_top;
    sd_token_laws laws = {.log_probs = sd_arena_take(arena, n, sizeof *laws.log_probs)};
    laws.top_tokens = sd_arena_take(arena, n, top * sizeof *laws.top_tokens);
    laws.top_log_probs = sd_arena_take(arena, n, top * sizeof *laws.top_log_probs);
    return laws;
}

/* The n most probable tokens of a distribution, the best first, of equal ones the lower: tokens [n], -1 where
 * there is none with a probability, and log_probs [n]. */
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

/* ln p of a token, and of the top tokens [n_top] in its place, by the distribution after a node. */
static sd_status fill_by_sampling(sd_verifier* v, const sd_verification* asked, int node, int32_t token,
                                  double* log_prob, int n_top, int32_t* top, double* of_top) {
    const sd_distribution* d;
    sd_status status = sd_verifier_distribute(v, asked, node, &d);
    if (status != SD_OK) return status;
    *log_prob = log(sd_prob(d, token));
    find_top(d, v->n_vocab, n_top, top, of_top);
    return SD_OK;
}

/* The same by the logits. */
static void fill_by_logits(const sd_verifier* v, const sd_verification* asked, int node, int32_t token,
                           double* log_prob, int n_top, int32_t* top, double* of_top) {
    const float* logits = asked->logits + asked->node_rows[node] * asked->stride;
    const sd_row_law law = sd_row_law_of(logits, v->n_vocab);
    *log_prob = sd_row_log_prob(&law, logits, token);
    sd_row_top(&law, logits, v->n_vocab, n_top, top, of_top);
}

sd_status sd_token_laws_fill(const sd_token_laws* laws, const sd_token_laws_options* o, sd_verifier* v,
                             const sd_verification* asked, const sd_verdict* verdict) {
    sd_status status = SD_OK;
    for (int i = 0; i <= verdict->n_path && o->law != SD_LAW_NONE && status == SD_OK; i++) {
        int node = i == 0 ? 0 : verdict->path[i - 1];
        int32_t token = i < verdict->n_path ? asked->tree->tokens[verdict->path[i]] : verdict->token;
        ptrdiff_t at = (ptrdiff_t)i * o->n_top;
        int32_t* top = laws->top_tokens + at;
        double* of_top = laws->top_log_probs + at;
        if (o->law == SD_LAW_SAMPLING)
            status = fill_by_sampling(v, asked, node, token, &laws->log_probs[i], o->n_top, top, of_top);
        else
            fill_by_logits(v, asked, node, token, &laws->log_probs[i], o->n_top, top, of_top);
    }
    return status;
}
