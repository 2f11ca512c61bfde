/* Standardized probabilities (section 2.2 of Leviathan et al. 2023): every sampling method becomes a
 * distribution to sample from. */
#pragma once

#include <stdint.h>

#include "rng.h"
#include "sampling.h"

/* A distribution over the vocabulary: dense, or a point mass. A dense one is not normalized but carries its
 * sum, which saves a pass over the row. Its factor is 1 / mass, unless lenience multiplied it (rules.c): then
 * the probabilities sum to more than 1. */
typedef struct sd_distribution {
    int32_t point;   /* the token with all mass, or -1 when dense */
    double* weights; /* [n_vocab] when dense, ≥ 0; borrowed */
    double mass;     /* sum of the weights */
    double factor;   /* weight · factor is a probability */
} sd_distribution;

/* Standardize logits [n_vocab] into out->weights (unused at temperature 0) and the rest of `out`. scratch [2
 * · n_vocab]. Logits may be −infinity but not NaN. Returns 0 if the largest logit is not finite; `out` then
 * has all mass on it, so it is always a distribution. */
int sd_standardize(const sd_sampling* sampling, int n_vocab, const float* logits, double* scratch,
                   sd_distribution* out);

/* Probability of a token. */
double sd_prob(const sd_distribution* distribution, int32_t token);

/* The most probable token, the lowest id on ties. */
int32_t sd_most_probable(const sd_distribution* distribution, int n_vocab);

/* Σ min(scale · target, draft), at most 1: with scale 1 the acceptance rate β (Theorem 3.5). */
double sd_overlap(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab);

/* Token at `uniform` in [0, 1) of the cumulative distribution, in order of ids. Never returns a token without
 * mass. */
int32_t sd_sample(const sd_distribution* distribution, int n_vocab, double uniform);

/* Noise of a text position: noise [n_vocab] uniform in [0, 1), a number for each token that may follow
 * `position` tokens. */
void sd_noise(sd_stream stream, uint32_t position, int n_vocab, double* noise);

/* Winner of an exponential race: the token with the smallest −ln(1 − noise) / probability, lowest id on ties.
 * With noise [n_vocab] uniform in [0, 1) this is a draw (Gumbel-max); the same noise tends to give similar
 * distributions the same token. */
int32_t sd_race(const sd_distribution* distribution, int n_vocab, const double* noise);

/* The race with the noise of a position, generated in noise [n_vocab] when needed. The noise belongs to the
 * new token's position in the text, so every round and tree sees the same. */
int32_t sd_coupled_token(const sd_distribution* distribution, sd_stream stream, uint32_t position,
                         int n_vocab, double* noise);

/* First k ≥ 1 tokens of the race of a dense distribution: order [k] and times [k], ascending. Each is a draw
 * without replacement (Gumbel top-k, Kool et al. 2019). Returns their number: tokens without mass never
 * arrive. */
int sd_race_order(const sd_distribution* distribution, int n_vocab, const double* noise, int k,
                  int32_t* order, double* times);

/* Set *rest to max(0, scale · target − draft), normalized. Its weights go to left [n_vocab], which must not
 * be the weights of either input. They are not normalized: multiply by rest->factor. Returns the mass before
 * normalization, in units of probability. If it is 0 (equal distributions up to rounding), *rest is the
 * target. rest NULL: only the mass is wanted, and left is scratch. *overlap is sd_overlap with scale 1. */
double sd_residual(const sd_distribution* target, double scale, const sd_distribution* draft, int n_vocab,
                   double* left, sd_distribution* rest, double* overlap);
