#include "prompt_slice.h"

static int forced;

/* Longer slices take the rows' activations from the second-level cache (benchmarks/SPEED.md). */
int sd_row_slice(sd_format weights) {
    if (forced > 0) return forced;
    return weights == SD_FORMAT_F32 ? 128 : 64;
}

#ifdef SPECDEC_TESTING
void sd_row_slice_force(int n) { forced = n; }
#endif
