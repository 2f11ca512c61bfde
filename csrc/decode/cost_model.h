/* Seconds as a function of a count, learnt from runs: of a target by its rows, of a draft by its steps.
 *
 * Single runs are noisy. So each count has a mean that looks away from outliers, drawn towards a line through
 * all of them the more the less it has been seen. Plain numbers: it may be copied, and begins as all
 * zeros. */
#ifndef SD_COST_MODEL_H
#define SD_COST_MODEL_H

#define SD_COST_MODEL_BINS 56 /* counts to 32 by themselves, then four bins an octave */

typedef struct sd_cost_model {
    double known;        /* 0: nothing has been seen */
    double start, slope; /* of a line through the means */
    double n[SD_COST_MODEL_BINS], at[SD_COST_MODEL_BINS],
        mean[SD_COST_MODEL_BINS]; /* runs, mean count, mean seconds */
} sd_cost_model;

/* It is known that nothing takes no time. */
void sd_cost_model_anchor(sd_cost_model* cost);

/* A run with this count, ≥ 0, took so long. */
void sd_cost_model_learn(sd_cost_model* cost, int count, double seconds);

/* Seconds that a run with this count takes; 0 where nothing has been seen. */
double sd_cost_model_seconds(const sd_cost_model* cost, int count);

/* Runs with a count from low to high that have been seen. */
double sd_cost_model_seen(const sd_cost_model* cost, int low, int high);

#endif
