/* Thresholds: numbers of rows by which products with packed panels choose how they are computed.
 *
 * They decide when work is done and by which instructions, never what is computed: with any thresholds a
 * product has the same bits. Each table of kernels has thresholds of its own; better ones are measured
 * where a program loads its first model (models/thresholds.py), and kept. */
#ifndef SD_THRESHOLDS_H
#define SD_THRESHOLDS_H

#include "format.h"
#include "status.h"

/* A threshold that no number of rows reaches; the largest one allowed. */
#define SD_NEVER (1 << 20)

/* In formats whose panels are unpacked part by part (coded_template.h) block_rows alone has a meaning. */
typedef struct sd_thresholds {
    int fetch_from[SD_N_FORMATS];      /* from as many rows on panels in memory are prefetched */
    int fetch_from_near[SD_N_FORMATS]; /* the same of panels that are likely in a cache */
    int block_rows[SD_N_FORMATS];      /* rows that are multiplied at once; as many as a table has at most */
    int tiles_from[SD_N_FORMATS];      /* from as many rows on a table with tiles takes them */
    /* bf16: from as many rows on a table with an instruction for pairs multiplies floats instead, which some
     * processors do at twice the rate; in other formats of no meaning */
    int floats_from[SD_N_FORMATS];
} sd_thresholds;

/* The thresholds by name. */
typedef struct sd_threshold_field {
    const char* name;
    size_t offset; /* of its int [SD_N_FORMATS] in sd_thresholds */
} sd_threshold_field;
#define SD_N_THRESHOLDS 5
extern const sd_threshold_field sd_threshold_fields[SD_N_THRESHOLDS];

/* The values [SD_N_FORMATS] of a field, borrowed from the thresholds. */
int* sd_threshold_values(sd_thresholds* thresholds, const sd_threshold_field* field);

/* The thresholds in use: those of the chosen table (kernels.h) until others are set. Static. */
extern sd_thresholds sd_thresholds_used;

/* Use others, which are copied: all are 1 to SD_NEVER, or nothing changes and the name of a wrong one is in
 * the message. No other thread may compute meanwhile. */
sd_status sd_thresholds_set(const sd_thresholds* thresholds);

/* Which sources and compiler made the kernels: 16 digits. Thresholds of other kernels are of no use. */
const char* sd_kernels_digest(void);

#endif
