#include "sequence.h"

#include <string.h>

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
