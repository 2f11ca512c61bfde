/* Sampling settings: how the logits of one model become a distribution. */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Values added to the logits of some tokens; arrays owned by the creator. */
typedef struct sd_biases {
    int n;
    int32_t* tokens; /* [n] distinct */
    float* values;   /* [n], −infinity to forbid a token */
} sd_biases;

/* Token sequences, sorted by their first tokens; arrays owned by the creator. */
typedef struct sd_sequences {
    int n;
    int32_t* ends;   /* [n] sequence i is tokens[ends[i − 1]] to tokens[ends[i] − 1], never empty */
    int32_t* tokens; /* [ends[n − 1]] */
} sd_sequences;

/* Index of the first token of sequence i in `tokens`; of sequence n: the number of all tokens. */
static inline int sd_sequences_begin(const sd_sequences* s, int i) { return i > 0 ? s->ends[i - 1] : 0; }

/* The fields of specdec.Sampling, which checks their ranges. They apply in this order: penalties, biases and
 * masks (adjustment.h), temperature, top-k, nucleus, min-p.
 *
 * A sequence has one of these for the target and one for its draft. Other code borrows them by const pointer;
 * they and their arrays must outlive the sequence. */
typedef struct sd_sampling {
    /* ≥ 0; 0: all mass on the argmax, lowest id on ties. */
    double temperature;
    /* Keep the k most probable tokens, ties to the lowest id; 0: all. */
    int top_k;
    /* Keep the smallest set of tokens of at least this mass; 1: all. */
    double top_p;
    /* Keep tokens whose probability is at least this fraction of the largest; 0: all. */
    double min_p;
    /* > 0; logits of tokens that have occurred are divided by it if positive, else multiplied (Keskar et al.
     * 2019, section 4.1); 1: none. */
    double repetition_penalty;
    /* Finite; subtracted from the logits of generated tokens: once, and once per occurrence (OpenAI's
     * definition); 0: none. */
    double presence_penalty, frequency_penalty;
    /* DRY as in llama.cpp: a token that would extend a repetition of n ≥ dry_allowed_length tokens loses
     * dry_multiplier · dry_base^(n − dry_allowed_length); ≥ 0, 0: none. dry_base ≥ 1. */
    double dry_multiplier, dry_base;
    /* dry_penalty_last_n: number of last tokens that are searched for repetitions. */
    int dry_allowed_length, dry_penalty_last_n;
    /* Repetitions do not cross these sequences. */
    sd_sequences dry_sequence_breakers;
    /* Added to logits. */
    sd_biases logit_bias;
    /* Minimum number of new tokens before a token that ends a text; 0: none. */
    int min_tokens;
    /* No n-gram of this length occurs twice in prompt and text; 0: any may. */
    int no_repeat_ngram_size;
    /* Sequences that never occur: the last token is masked after the others. */
    sd_sequences bad_words;
    /* [n_end_ids] tokens that end a text; not a setting. Borrowed. */
    const int32_t* end_ids;
    int n_end_ids;
} sd_sampling;

/* Table of the fields: F(type, name, neutral value, whether it changes logits). The binding, errors and
 * checks use it. */
#define SD_SAMPLING_TABLE(F)                    \
    F(REAL, temperature, 0.0, 0)                \
    F(INTEGER, top_k, 0, 0)                     \
    F(REAL, top_p, 1.0, 0)                      \
    F(REAL, min_p, 0.0, 0)                      \
    F(REAL, repetition_penalty, 1.0, 1)         \
    F(REAL, presence_penalty, 0.0, 1)           \
    F(REAL, frequency_penalty, 0.0, 1)          \
    F(REAL, dry_multiplier, 0.0, 1)             \
    F(REAL, dry_base, 1.75, 0)                  \
    F(INTEGER, dry_allowed_length, 2, 0)        \
    F(INTEGER, dry_penalty_last_n, INT_MAX, 0)  \
    F(SEQUENCES, dry_sequence_breakers, {0}, 0) \
    F(BIASES, logit_bias, {0}, 1)               \
    F(INTEGER, min_tokens, 0, 1)                \
    F(INTEGER, no_repeat_ngram_size, 0, 1)      \
    F(SEQUENCES, bad_words, {0}, 1)

/* The C types of fields: double, int, sd_biases, sd_sequences. */
typedef enum sd_sampling_type {
    SD_SAMPLING_REAL,
    SD_SAMPLING_INTEGER,
    SD_SAMPLING_BIASES,
    SD_SAMPLING_SEQUENCES,
} sd_sampling_type;

/* A row of the table. */
typedef struct sd_sampling_field {
    const char* name;
    sd_sampling_type type;
    size_t offset;      /* in an sd_sampling */
    int changes_logits; /* whether it does so when in use */
} sd_sampling_field;

#define SD_SAMPLING_COUNT(type, name, neutral, changes) +1
typedef enum sd_sampling_count {
    SD_N_SAMPLING_FIELDS = 0 SD_SAMPLING_TABLE(SD_SAMPLING_COUNT)
} sd_sampling_count;

/* The table [SD_N_SAMPLING_FIELDS], and settings whose fields change nothing. */
extern const sd_sampling_field sd_sampling_fields[];
extern const sd_sampling sd_sampling_neutral;

/* Does a field differ from its neutral value? */
int sd_sampling_uses(const sd_sampling* sampling, const sd_sampling_field* field);

/* Is a field that changes logits in use? */
int sd_sampling_changes_logits(const sd_sampling* sampling);

/* Check that numbers are finite, tokens below n_vocab and sequences sorted, as specdec.Sampling has done. */
sd_status sd_sampling_check(const sd_sampling* sampling, int n_vocab);
