/* Standardised probabilities (section 2.2 of Leviathan et al. 2023): whatever the sampling
 * method, the result is a distribution to sample from. */
#pragma once

#include <stdint.h>

#include "rng.h"
#include "sampling.h"

/* A distribution over the vocabulary: dense, or all mass on one token. A dense one is not divided
 * by its sum but carries it, which saves a pass over the row. Its factor is 1 / mass, unless lenience has
 * multiplied it (rules.c): then the probabilities sum to more than 1. */
typedef struct sd_distribution {
    int32_t point;   /* the one token, or -1 when dense */
    double* weights; /* [n_vocab] when dense, ≥ 0; borrowed */
    double mass;     /* their sum */
    double factor;   /* what makes a weight a probability */
} sd_distribution;

/* Standardise logits [n_vocab] into out->weights (used unless temperature is 0) and the rest of
 * `out`. scratch [2 · n_vocab]. Logits may be −infinity, and not NaN. Returns 0 if the largest of them is not
 * finite; then `out` has all mass on it, so that it is a distribution in any case. */
int sd_standardise(const sd_sampling* sampling, int n_vocab, const float* logits, double* scratch,
                   sd_distribution* out);

/* Probability of a token. */
double sd_prob(const sd_distribution* distribution, int32_t token);

/* The most probable token, the lowest id on ties. */
int32_t sd_most_probable(const sd_distribution* distribution, int n_vocab);

/* Σ min(scale · target, draft), at most 1: with scale 1 the acceptance rate β (Theorem 3.5). */
double sd_overlap(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab);

/* The token at `uniform` in [0, 1) of the cumulative distribution, in order of ids. A token
 * without mass is never returned. */
int32_t sd_sample(const sd_distribution* distribution, int n_vocab, double uniform);

/* The noise of a position in the text: noise [n_vocab] uniform in [0, 1), one number for each token as the
 * one behind `position` tokens. */
void sd_noise(sd_stream stream, uint32_t position, int n_vocab, double* noise);

/* The token that wins an exponential race: the least −ln(1 − noise) / probability, the lowest id on
 * ties. With noise [n_vocab] uniform in [0, 1) this is a draw (Gumbel-max), and the same noise gives
 * like distributions the same token more often than not. */
int32_t sd_race(const sd_distribution* distribution, int n_vocab, const double* noise);

/* That race with the noise of a position, which is made in noise [n_vocab] where it is needed. The noise
 * belongs to the new token's position in the text, so that it is the same in every round and tree. */
int32_t sd_coupled_token(const sd_distribution* distribution, sd_stream stream, uint32_t position,
                         int n_vocab, double* noise);

/* The first k ≥ 1 tokens of that race, of a dense distribution: order [k], and their times [k], ascending.
 * Each is a draw from what is left without those before it (Gumbel top-k, Kool et al. 2019). Returns how many
 * there are: tokens without mass never arrive. */
int sd_race_order(const sd_distribution* distribution, int n_vocab, const double* noise, int k,
                  int32_t* order, double* times);

/* max(0, scale · target − draft), normalized, in *rest. Its weights are written to left [n_vocab], which is
 * neither's own, in any unit: only with rest->factor they are probabilities. Returns the mass before it was
 * normalized, in units of probability. If that is 0 (equal distributions up to rounding), *rest is the
 * target. */
double sd_residual(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab,
                   double* left, sd_distribution* rest);
