/* Online samples: texts after which draft tokens were rejected, with the target's distribution there.
 *
 * A ring holds the last ones for an online trainer. Sessions of several threads store into one ring. A thread
 * never waits to store: samples that arrive while another thread uses the ring are dropped. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "drafter.h"
#include "memory.h"

#define SD_MAX_ONLINE_SAMPLES (1 << 20)

typedef struct sd_online_sample_shape {
    int n_before; /* tokens of the text, ≥ 1 */
    int n_top;    /* most probable tokens of the target, ≥ 1 */
    int n_hidden; /* floats of the target's hidden states; 0: none */
} sd_online_sample_shape;

typedef struct sd_online_sample {
    /* [n_before] last tokens of the text, including accepted draft tokens; -1 before its start. */
    int32_t* before;
    /* [n_top] tokens with the largest logits, descending, the lower id first on ties; -1 past the
     * vocabulary. */
    int32_t* top;
    /* [n_top] their log-probabilities under a softmax of all logits; -infinity for -1 */
    float* log_probs;
    float* hidden; /* [n_hidden] hidden states of the token before the round's root */
    float rest;    /* probability of all other tokens */
    int32_t depth; /* draft tokens accepted after the root: the last of `before` */
    /* Number of its text (sd_online_samples_number_text), and of tokens before the position. */
    int32_t text, position;
} sd_online_sample;

typedef struct sd_online_samples {
    sd_online_sample_shape shape;
    sd_arena arena;            /* owns the array below */
    sd_online_sample* entries; /* [n_entries] */
    int n_entries, first, n;
    /* 1: also store positions at which the draft was right */
    int everywhere;
    atomic_int n_texts;
    atomic_flag busy; /* a thread is using the ring */
} sd_online_samples;

/* Create an empty ring, owned by the caller; free with sd_online_samples_free. */
sd_status sd_online_samples_create(sd_online_samples* ring, const sd_online_sample_shape* shape,
                                   int n_entries);
void sd_online_samples_free(sd_online_samples* ring);

/* Number for the next text to store samples of, counting from 0. */
int32_t sd_online_samples_number_text(sd_online_samples* ring);

/* Take the arrays of a sample from the arena. */
sd_online_sample sd_online_sample_take(sd_arena* arena, const sd_online_sample_shape* shape);

/* Fill in the target's distribution: logits [n_vocab] f32, finite, borrowed. weights [n_vocab]: scratch. */
void sd_online_sample_fill_target(sd_online_sample* sample, const sd_online_sample_shape* shape,
                                  const float* logits, int n_vocab, double* weights);

/* Store a copy of a sample of the ring's shape; replaces the oldest if the ring is full. */
void sd_online_samples_store(sd_online_samples* ring, const sd_online_sample* sample);

/* Number of samples in the ring. */
int sd_online_samples_count(sd_online_samples* ring);

/* Move the oldest out of the ring into a sample of its shape. Returns 0 if there is none. */
int sd_online_samples_pop(sd_online_samples* ring, sd_online_sample* sample);

/* A recorded drafter drafts like its inner drafter. It stores an online sample where the target rejects draft
 * tokens and, with `everywhere`, also where it accepts them. Between rounds the inner drafter can be replaced
 * by one of the same method with newly trained weights.
 *
 * A stored position costs one pass over a row of logits, any other nothing. */
typedef struct sd_recorded_options {
    /* Ring to store into; borrowed, must outlive the drafter. Hidden states of its samples are the inner
     * drafter's captures, concatenated. */
    sd_online_samples* samples;
    void* owner; /* tag for the caller to find the drafter by; borrowed */
} sd_recorded_options;

/* Create a drafter, owned by the caller, who passes it to a session. Takes ownership of `inner`, created with
 * the same `drafting`, also on failure. */
sd_status sd_recorded_drafter_create(const sd_drafting* drafting, const sd_recorded_options* options,
                                     sd_drafter* inner, sd_drafter** drafter);

/* The drafter that stores into this ring, `drafter` itself or one within it; NULL: none. */
sd_drafter* sd_recorded_drafter_find(sd_drafter* drafter, const sd_online_samples* samples);

/* The `drafting` it was created with, borrowed, and its owner. */
const sd_drafting* sd_recorded_drafter_drafting(const sd_drafter* drafter);
void* sd_recorded_drafter_owner(const sd_drafter* drafter);

/* Can `inner`, created with the same drafting, replace the drafter within? Its tree type, point masses and
 * captures must be the same. */
sd_status sd_recorded_drafter_check(const sd_drafter* drafter, const sd_drafter* inner);

/* Replace the inner drafter by `inner`, which has begun the texts (sd_session_begin_drafter). Takes ownership
 * and frees the old one. */
void sd_recorded_drafter_swap(sd_drafter* drafter, sd_drafter* inner);
