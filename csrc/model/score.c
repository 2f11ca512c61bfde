#include "score.h"

#include <math.h>

#include "encoder.h"
#include "kernels.h"

/* ln softmax(logits)[token] with max subtraction and a double sum. */
static double log_prob(const float* logits, int n_vocab, int32_t token) {
    float best = sd_kernels_get()->max(n_vocab, logits);
    double sum = 0.0;
    for (int i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - best);
    return (double)logits[token] - best - log(sum);
}

sd_status sd_score_create(sd_score* s, const sd_model* model, const int32_t* tokens, int n,
                          const int32_t* source, int n_source, int n_threads) {
    int n_vocab = model->config.n_vocab, slice = sd_prompt_slice(model);
    *s = (sd_score){.tokens = tokens, .n = n, .source = source, .n_source = n_source};
    if (n < 2) return sd_fail(SD_ERR_VALUE, "ids: %d tokens, expected at least 2", n);
    if (tokens[n - 1] < 0 || tokens[n - 1] >= n_vocab) /* the others are checked by the forward */
        return sd_fail(SD_ERR_VALUE, "ids[%d] is %d, expected 0 to %d", n - 1, (int)tokens[n - 1],
                       n_vocab - 1);
    sd_status status = sd_encoder_check(model, source, n_source);
    if (status == SD_OK) status = sd_cache_create(&s->cache, model, n, 0, 0, NULL);
    if (status == SD_OK) status = sd_workspace_create(&s->workspace, model, n_threads, slice, slice, n);
    s->workspace.name = "the model";
    return status;
}

void sd_score_free(sd_score* s) {
    sd_cache_free(&s->cache);
    sd_workspace_free(&s->workspace);
}

sd_status sd_score_slice(sd_score* s, double* log_probs, int* done) {
    const sd_workspace* w = &s->workspace;
    int first = s->n_done;
    if (s->source != NULL && s->cache.encoded == NULL) {
        sd_status status = sd_encode(&s->cache, s->source, s->n_source, w->n_threads, w->name);
        if (status != SD_OK) return status;
    }
    sd_status status = sd_forward_slice(&s->workspace, &s->cache, s->tokens, s->n - 1, &s->n_done, 1);
    if (status != SD_OK) return status;
    for (int i = first; i < s->n_done; i++)
        log_probs[i] =
            log_prob(w->logits + (i - first) * w->ld_logits, w->model->config.n_vocab, s->tokens[i + 1]);
    *done = s->n_done == s->n - 1;
    return SD_OK;
}
