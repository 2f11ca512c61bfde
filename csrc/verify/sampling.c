#include "sampling.h"

#include <math.h>

#define ROW(type, name, neutral, changes) {#name, SD_SAMPLING_##type, offsetof(sd_sampling, name), changes},
const sd_sampling_field sd_sampling_fields[] = {SD_SAMPLING_TABLE(ROW)};

#define NEUTRAL(type, name, neutral, changes) .name = neutral,
const sd_sampling sd_sampling_neutral = {SD_SAMPLING_TABLE(NEUTRAL)};

static const void* value_of(const sd_sampling* s, const sd_sampling_field* field) {
    return (const char*)s + field->offset;
}

int sd_sampling_uses(const sd_sampling* s, const sd_sampling_field* field) {
    const void *value = value_of(s, field), *neutral = value_of(&sd_sampling_neutral, field);
    switch (field->type) {
    case SD_SAMPLING_REAL: return *(const double*)value != *(const double*)neutral;
    case SD_SAMPLING_INTEGER: return *(const int*)value != *(const int*)neutral;
    case SD_SAMPLING_BIASES: return ((const sd_biases*)value)->n > 0;
    case SD_SAMPLING_SEQUENCES: return ((const sd_sequences*)value)->n > 0;
    }
    return 0;
}

int sd_sampling_changes_logits(const sd_sampling* s) {
    for (int i = 0; i < SD_N_SAMPLING_FIELDS; i++)
        if (sd_sampling_fields[i].changes_logits && sd_sampling_uses(s, &sd_sampling_fields[i])) return 1;
    return 0;
}

static int are_tokens(const int32_t* tokens, int n, int n_vocab) {
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab) return 0;
    return 1;
}

static int are_sorted(const sd_sequences* s) {
    for (int i = 1; i < s->n; i++)
        if (s->tokens[sd_sequences_begin(s, i)] < s->tokens[sd_sequences_begin(s, i - 1)]) return 0;
    return 1;
}

static int is_sound(const sd_sampling* s, const sd_sampling_field* field, int n_vocab) {
    const void* value = value_of(s, field);
    const sd_biases* biases = value;
    const sd_sequences* sequences = value;
    switch (field->type) {
    case SD_SAMPLING_REAL: return isfinite((float)*(const double*)value);
    case SD_SAMPLING_INTEGER: return *(const int*)value >= 0;
    case SD_SAMPLING_BIASES: return are_tokens(biases->tokens, biases->n, n_vocab);
    case SD_SAMPLING_SEQUENCES:
        return are_tokens(sequences->tokens, sd_sequences_begin(sequences, sequences->n), n_vocab) &&
               are_sorted(sequences);
    }
    return 0;
}

sd_status sd_sampling_check(const sd_sampling* s, int n_vocab) {
    for (int i = 0; i < SD_N_SAMPLING_FIELDS; i++)
        if (!is_sound(s, &sd_sampling_fields[i], n_vocab))
            return sd_fail(SD_ERR_VALUE, "%s is out of its range", sd_sampling_fields[i].name);
    if (!(s->temperature >= 0.0 && s->top_p > 0.0))
        return sd_fail(SD_ERR_VALUE, "temperature or top_p is out of its range");
    return SD_OK;
}
