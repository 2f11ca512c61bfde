#include "prompt_slice.h"

#include "kernels.h"

static int forced;

/* In longer slices rows no longer fit the second-level cache; tiles multiply codes so fast that slices of 128
 * pay nevertheless (benchmarks/SPEED.md). */
int sd_row_slice(sd_format weights, sd_engine engine) {
    if (forced > 0) return forced;
    if (engine == SD_ENGINE_TILES) return SD_MOST_SLICE;
    int by_tiles = sd_kernels_get()->thresholds.tiles_from[weights] < SD_NEVER;
    return weights == SD_FORMAT_F32 || by_tiles ? 128 : 64;
}

#ifdef SPECDEC_TESTING
void sd_row_slice_force(int n) { forced = n; }
#endif
