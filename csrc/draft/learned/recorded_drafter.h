/* Corrections: texts behind which a draft's guesses were refused, and what the target says there.
 *
 * A ring of them holds the last ones, for whoever learns from them. Sessions of several threads store into
 * one ring. A thread that stores waits for no other: what comes while another thread is in the ring is not
 * stored. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "drafter.h"
#include "memory.h"

#define SD_MAX_ONLINE_SAMPLES (1 << 20)

typedef struct sd_online_sample_shape {
    int n_before; /* tokens of the text, ≥ 1 */
    int n_top;    /* tokens of the target's law, ≥ 1 */
    int n_hidden; /* hidden states of the target, as floats; 0: none */
} sd_online_sample_shape;

typedef struct sd_online_sample {
    /* [n_before] the last tokens of the text, guesses that were accepted among them; -1 in front of its
     * beginning. */
    int32_t* before;
    /* [n_top] the tokens of the greatest logits, from the greatest down, the lower id first; -1 behind the
     * last of a smaller vocabulary. */
    int32_t* top;
    /* [n_top] ln of their probabilities, by a softmax of all logits; -infinity for -1. */
    float* log_probs;
    float* hidden; /* [n_hidden] hidden states of the token before the round's root. */
    float rest;    /* The probability of all other tokens. */
    int32_t depth; /* Guesses that were accepted behind the root: they are the last of `before`. */
    /* Which text it is of (sd_online_samples_number_text), and how many tokens of that stand before. */
    int32_t text, position;
} sd_online_sample;

typedef struct sd_online_samples {
    sd_online_sample_shape shape;
    sd_arena arena;            /* owns the array below */
    sd_online_sample* entries; /* [n_entries] */
    int n_entries, first, n;
    /* 1: positions at which the draft was right are stored too. */
    int everywhere;
    atomic_int n_texts;
    atomic_flag busy; /* a thread is in the ring */
} sd_online_samples;

/* An empty ring. Owned by the caller, for sd_online_samples_free. */
sd_status sd_online_samples_create(sd_online_samples* ring, const sd_online_sample_shape* shape,
                                   int n_entries);
void sd_online_samples_free(sd_online_samples* ring);

/* A number for a text of which corrections will be stored: how many have been given before. */
int32_t sd_online_samples_number_text(sd_online_samples* ring);

/* Room for a correction in an arena. */
sd_online_sample sd_online_sample_take(sd_arena* arena, const sd_online_sample_shape* shape);

/* Fill what the target says: logits [n_vocab] f32, finite, borrowed. weights [n_vocab]: scratch. */
void sd_online_sample_fill_target(sd_online_sample* sample, const sd_online_sample_shape* shape,
                                  const float* logits, int n_vocab, double* weights);

/* Store a copy of a correction of the ring's shape, in place of the oldest where the ring is full. */
void sd_online_samples_store(sd_online_samples* ring, const sd_online_sample* sample);

/* How many there are. */
int sd_online_samples_count(sd_online_samples* ring);

/* Move the oldest out of the ring into a correction of its shape. Returns whether there was one. */
int sd_online_samples_pop(sd_online_samples* ring, sd_online_sample* sample);

/* A drafter that is watched: it drafts as the one within it does, and where the target refuses the guesses,
 * it stores what stood before and what the target says there, for whoever learns from that; if it is asked
 * to, where guesses were right too. Between rounds another drafter of the same kind may take the inner one's
 * place: the same method with weights that have learned.
 *
 * A position that is stored costs one look at a row of logits, any other nothing. */
typedef struct sd_recorded_options {
    /* Where corrections go; borrowed, must outlive the drafter. Where these have hidden states, they are the
     * inner drafter's captures, one after the other. */
    sd_online_samples* samples;
    void* owner; /* Whatever the caller wants to find the drafter by; borrowed. */
} sd_recorded_options;

/* Create a drafter. inner is made with the same `drafting`; it is owned from the call on, also when it fails.
 * Owned by the caller, who hands it to a session. */
sd_status sd_recorded_drafter_create(const sd_drafting* drafting, const sd_recorded_options* options,
                                     sd_drafter* inner, sd_drafter** drafter);

/* The drafter that stores there, `drafter` itself or one within it; NULL: there is none. */
sd_drafter* sd_recorded_drafter_find(sd_drafter* drafter, const sd_online_samples* samples);

/* What it was made with, borrowed, and its owner. */
const sd_drafting* sd_recorded_drafter_drafting(const sd_drafter* drafter);
void* sd_recorded_drafter_owner(const sd_drafter* drafter);

/* May `inner`, made with the same drafting, take the place of the drafter within? Its trees, its point masses
 * and its captures are of the same kind. */
sd_status sd_recorded_drafter_check(const sd_drafter* drafter, const sd_drafter* inner);

/* Let it do so: it has been told of the texts (sd_session_begin_drafter), is owned from now on, and the other is
 * freed. */
void sd_recorded_drafter_swap(sd_drafter* drafter, sd_drafter* inner);
