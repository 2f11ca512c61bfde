/* Seconds as a function of a count, learned from runs: of a target by its rows, of a draft by its steps.
 *
 * Single runs are noisy. So each count has a mean in which outliers are clipped; the fewer runs a count has,
 * the more its estimate is drawn towards a line through the means of all counts. Plain numbers: it may be
 * copied, and begins as all zeros. */
#pragma once

#define SD_COST_MODEL_BINS 56 /* counts to 32 by themselves, then four bins an octave */

/* What a run reads that is not the same for every count: experts, which rows share. */
typedef struct sd_expert_reads {
    /* Of the seconds of a run with count 1, those of reading its experts. 0: there are none. */
    double share;
    /* The chance that an expert which one row goes through is not among those of another. */
    double fresh;
} sd_expert_reads;

typedef struct sd_cost_model {
    int known;           /* 0: nothing has been seen */
    double start, slope; /* of a line through the means */
    /* The line is over counts, and over the experts that so many rows read. */
    sd_expert_reads expert_reads;
    double n[SD_COST_MODEL_BINS];    /* runs in each bin */
    double at[SD_COST_MODEL_BINS];   /* mean count of these runs */
    double mean[SD_COST_MODEL_BINS]; /* mean seconds of these runs */
} sd_cost_model;

/* Say what runs read. */
void sd_cost_model_reads(sd_cost_model* cost, sd_expert_reads expert_reads);

/* It is known that nothing takes no time. */
void sd_cost_model_anchor(sd_cost_model* cost);

/* A run with this count, ≥ 0, took so long. */
void sd_cost_model_learn(sd_cost_model* cost, int count, double seconds);

/* Seconds that a run with this count takes; 0 where nothing has been seen. */
double sd_cost_model_seconds(const sd_cost_model* cost, int count);

/* Seconds of one more than this count, by the line. */
double sd_cost_model_step(const sd_cost_model* cost, int count);

/* Runs with a count from low to high that have been seen. */
double sd_cost_model_seen(const sd_cost_model* cost, int low, int high);
