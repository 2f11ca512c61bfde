#include "draft_tokens.h"

#include <string.h>

sd_status sd_draft_tokens_check(const int32_t* tokens, int n_draft, int n_vocab) {
    if (tokens == NULL && n_draft < n_vocab)
        return sd_fail(SD_ERR_VALUE, "there are no tokens, expected %d of the target's %d", n_draft, n_vocab);
    for (int i = 0; tokens != NULL && i < n_draft; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "tokens[%d] is %d, expected 0 to %d", i, (int)tokens[i],
                           n_vocab - 1);
    return SD_OK;
}

void sd_draft_tokens_scatter(const int32_t* tokens, int n_draft, const float* from, float* to) {
    if (tokens == NULL) memcpy(to, from, (size_t)n_draft * sizeof *to);
    for (int i = 0; tokens != NULL && i < n_draft; i++) to[tokens[i]] = from[i];
}
