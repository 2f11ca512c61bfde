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

#define SD_MAX_CORRECTIONS (1 << 20)

typedef struct sd_correction_shape {
    int n_before; /* tokens of the text, ≥ 1 */
    int n_top;    /* tokens of the target's law, ≥ 1 */
    int n_hidden; /* hidden states of the target, as floats; 0: none */
} sd_correction_shape;

typedef struct sd_correction {
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
    /* Which text it is of (sd_corrections_number_text), and how many tokens of that stand before. */
    int32_t text, position;
} sd_correction;

typedef struct sd_corrections {
    sd_correction_shape shape;
    sd_arena arena;         /* owns the array below */
    sd_correction* entries; /* [n_entries] */
    int n_entries, first, n;
    /* 1: positions at which the draft was right are stored too. */
    int everywhere;
    atomic_int n_texts;
    atomic_flag busy; /* a thread is in the ring */
} sd_corrections;

/* An empty ring. Owned by the caller, for sd_corrections_free. */
sd_status sd_corrections_create(sd_corrections* ring, const sd_correction_shape* shape, int n_entries);
void sd_corrections_free(sd_corrections* ring);

/* A number for a text of which corrections will be stored: how many have been given before. */
int32_t sd_corrections_number_text(sd_corrections* ring);

/* Room for a correction in an arena. */
sd_correction sd_correction_take(sd_arena* arena, const sd_correction_shape* shape);

/* Fill what the target says: logits [n_vocab] f32, finite, borrowed. weights [n_vocab]: scratch. */
void sd_correction_fill_law(sd_correction* correction, const sd_correction_shape* shape, const float* logits,
                            int n_vocab, double* weights);

/* Store a copy of a correction of the ring's shape, in place of the oldest where the ring is full. */
void sd_corrections_store(sd_corrections* ring, const sd_correction* correction);

/* How many there are. */
int sd_corrections_count(sd_corrections* ring);

/* Move the oldest out of the ring into a correction of its shape. Returns whether there was one. */
int sd_corrections_pop(sd_corrections* ring, sd_correction* correction);

/* A drafter that is watched: it drafts as the one within it does, and where the target refuses the guesses,
 * it stores what stood before and what the target says there, for whoever learns from that; if it is asked
 * to, where guesses were right too. Between rounds another drafter of the same kind may take the inner one's
 * place: the same method with weights that have learned.
 *
 * A position that is stored costs one look at a row of logits, any other nothing. */
typedef struct sd_watched_options {
    /* Where corrections go; borrowed, must outlive the drafter. Where these have hidden states, they are the
     * inner drafter's captures, one after the other. */
    sd_corrections* corrections;
    void* owner; /* Whatever the caller wants to find the drafter by; borrowed. */
} sd_watched_options;

/* Create a drafter. inner is made with the same `drafting`; it is owned from the call on, also when it fails.
 * Owned by the caller, who hands it to a session. */
sd_status sd_watched_drafter_create(const sd_drafting* drafting, const sd_watched_options* options,
                                    sd_drafter* inner, sd_drafter** drafter);

/* The drafter that stores there, `drafter` itself or one within it; NULL: there is none. */
sd_drafter* sd_watched_drafter_find(sd_drafter* drafter, const sd_corrections* corrections);

/* What it was made with, borrowed, and its owner. */
const sd_drafting* sd_watched_drafter_drafting(const sd_drafter* drafter);
void* sd_watched_drafter_owner(const sd_drafter* drafter);

/* May `inner`, made with the same drafting, take the place of the drafter within? Its trees, its point masses
 * and its captures are of the same kind. */
sd_status sd_watched_drafter_check(const sd_drafter* drafter, const sd_drafter* inner);

/* Let it do so: it has been told of the texts (sd_session_tell), is owned from now on, and the other is
 * freed. */
void sd_watched_drafter_swap(sd_drafter* drafter, sd_drafter* inner);
