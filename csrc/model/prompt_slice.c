#include "prompt_slice.h"

static int forced;

/* Longer slices take the rows' activations from the second-level cache (benchmarks/SPEED.md). */
int sd_row_slice(sd_format weights, sd_engine engine) {
    if (forced > 0) return forced;
    if (engine == SD_ENGINE_TILES) return SD_MOST_SLICE;
    return weights == SD_FORMAT_F32 ? 128 : 64;
}

#ifdef SPECDEC_TESTING
void sd_row_slice_force(int n) { forced = n; }
#endif
