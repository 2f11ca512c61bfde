#include "settings.h"

/* Are the tokens of a prediction the model's? */
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
