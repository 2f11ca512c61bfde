/* Which tokens a distribution keeps: top-k, then the nucleus, then min-p. Found by selection, without
 * sorting. */
#ifndef SD_TRUNCATION_H
#define SD_TRUNCATION_H

#include "distribution.h"

/* Zero the weights [n] of the tokens that the settings drop. mass: the sum of the weights. best: the lowest
 * id of the largest weight. scratch [2 · n]. All borrowed. Returns the mass of the tokens that are kept. */
double sd_truncate(const sd_sampling* sampling, int n, double* weights, double mass, int32_t best,
                   double* scratch);

#endif
