#include "sequence.h"

#include <string.h>

sd_status sd_prompt_check(const sd_prompt* prompt, int index, int n_ctx, int n_vocab) {
    if (prompt->n < 1 || prompt->n >= n_ctx)
        return sd_fail(SD_ERR_CONTEXT, "prompt %d has %d tokens, expected 1 to %d (the context is %d)", index,
                       prompt->n, n_ctx - 1, n_ctx);
    for (int i = 0; i < prompt->n; i++)
        if (prompt->tokens[i] < 0 || prompt->tokens[i] >= n_vocab)
            return sd_fail(SD_ERR_VALUE, "prompt %d: token %d is %d, expected 0 to %d", index, i,
                           (int)prompt->tokens[i], n_vocab - 1);
    return SD_OK;
}

void sd_sequence_begin(sd_sequence* q, const sd_prompt* prompt, int max_text) {
    memcpy(q->text, prompt->tokens, (size_t)prompt->n * sizeof *q->text);
    *q = (sd_sequence){.text = q->text,

                       .n_text = prompt->n,
                       .max_text = max_text,

                       .stream = prompt->stream};
}

void sd_sequence_append(sd_sequence* q, int32_t token, const int32_t* stop_ids, int n_stop_ids) {
    q->text[q->n_text++] = token;
    q->finished |= q->n_text >= q->max_text;
    for (int i = 0; i < n_stop_ids; i++) q->finished |= token == stop_ids[i];
}
