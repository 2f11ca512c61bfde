/* Seconds as a function of a count, learned from forward passes: of a target by rows, of a draft by steps.
 *
 * Single passes are noisy, so each count has a mean with outliers clipped. The fewer passes a count has, the
 * more its estimate follows a line through the means of all counts. Plain numbers: may be copied; starts as
 * zeros. */
#pragma once

#define SD_COST_MODEL_BINS 56 /* counts to 32 by themselves, then four bins an octave */

/* Weights whose reads do not grow in proportion to the rows: experts, which rows share. */
typedef struct sd_expert_reads {
    /* Share of the seconds of a pass with count 1 spent on reading experts. 0: there are none. */
    double share;
    /* Chance that an expert of one row is not among those of another. */
    double fresh;
} sd_expert_reads;

typedef struct sd_cost_model {
    int known;           /* 0: nothing has been seen */
    double start, slope; /* of the line through the means */
    /* The line's abscissa is the count plus a term for the experts that this many rows read. */
    sd_expert_reads expert_reads;
    double n[SD_COST_MODEL_BINS];    /* passes in each bin */
    double at[SD_COST_MODEL_BINS];   /* mean count of these passes */
    double mean[SD_COST_MODEL_BINS]; /* mean seconds of these passes */
} sd_cost_model;

/* Set which experts passes read. */
void sd_cost_model_reads(sd_cost_model* cost, sd_expert_reads expert_reads);

/* Fix the point (0 steps, 0 seconds). */
void sd_cost_model_anchor(sd_cost_model* cost);

/* Expect the same passes with `counts` times the count to take `seconds` times as long: the line stays, the
 * means go. The point (0, 0) is fixed. */
void sd_cost_model_scale(sd_cost_model* cost, double counts, double seconds);

/* Learn that a pass with this count, ≥ 0, took so long. */
void sd_cost_model_learn(sd_cost_model* cost, int count, double seconds);

/* Estimated seconds of a pass with this count; 0 before anything was learned. */
double sd_cost_model_seconds(const sd_cost_model* cost, int count);

/* Seconds that one more row or step adds, by the line. */
double sd_cost_model_step(const sd_cost_model* cost, int count);

/* Number of passes learned with a count from low to high. */
double sd_cost_model_seen(const sd_cost_model* cost, int low, int high);
