#include "sequence.h"

#include <string.h>

#include "forward.h"

/* Are the tokens of a prediction in the model's vocabulary? */
static sd_status check_prediction(const sd_settings* s, int n_vocab) {
    for (int i = 0; i < s->n_prediction; i++)
        if (s->prediction[i] < 0 || s->prediction[i] >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "prediction: token %d is %d, expected 0 to %d", i,
                           (int)s->prediction[i], n_vocab - 1);
    return SD_OK;
}

sd_status sd_settings_check(const sd_settings* s, int n_vocab) {
    sd_status status = sd_gamma_check(s->gamma);
    if (status != SD_OK) return status;
    if (s->max_new_tokens < 1)
        return sd_fail(SD_ERR_VALUE, "max_new_tokens is %d, expected at least 1", s->max_new_tokens);
    if (s->logprobs.n_top < 0 || s->logprobs.n_top > n_vocab)
        return sd_fail(SD_ERR_VALUE, "n_top is %d, expected 0 to %d", s->logprobs.n_top, n_vocab);
    if ((status = sd_sampling_check(s->verify.sampling, n_vocab)) != SD_OK) return status;
    if ((status = sd_sampling_check(s->draft_sampling, n_vocab)) != SD_OK) return status;
    if ((status = check_prediction(s, n_vocab)) != SD_OK) return status;
    return sd_rule_check(s->verify.rule, s->verify.lenience);
}

sd_status sd_prompt_check(const sd_prompt* prompt, const sd_model* model) {
    int n_ctx = model->config.n_ctx, n_vocab = model->config.n_vocab;
    if (prompt->n < 1 || prompt->n >= n_ctx)
        return sd_fail(SD_ERR_CONTEXT, "the prompt has %d tokens, expected 1 to %d (the context is %d)",
                       prompt->n, n_ctx - 1, n_ctx);
    for (int i = 0; i < prompt->n; i++)
        if (prompt->tokens[i] < 0 || prompt->tokens[i] >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "the prompt's token %d is %d, expected 0 to %d", i,
                           (int)prompt->tokens[i], n_vocab - 1);
    const sd_model* own = prompt->settings->model;
    if (own != NULL && sd_model_base(own) != sd_model_base(model))
        return sd_fail(SD_ERR_VALUE,
                       "the prompt's model has other weights than the target, expected one adapted from it");
    sd_status status = sd_encoder_check(model, prompt->source, prompt->n_source);
    return status == SD_OK ? sd_settings_check(prompt->settings, n_vocab) : status;
}

void sd_sequence_begin(sd_sequence* q, const sd_prompt* prompt, int max_text) {
    memcpy(q->text, prompt->tokens, (size_t)prompt->n * sizeof *q->text);
    if (prompt->n_source > 0) memcpy(q->source, prompt->source, (size_t)prompt->n_source * sizeof *q->source);
    *q = (sd_sequence){.text = q->text,
                       .n_prompt = prompt->n,
                       .n_text = prompt->n,
                       .max_text = max_text,
                       .settings = *prompt->settings,
                       .stream = prompt->stream,
                       .source = q->source,
                       .n_source = prompt->n_source};
}

void sd_sequence_append(sd_sequence* q, int32_t token) {
    q->text[q->n_text++] = token;
    q->finished |= q->n_text >= q->max_text;
    for (int i = 0; i < q->settings.n_stop_ids; i++) q->finished |= token == q->settings.stop_ids[i];
}
