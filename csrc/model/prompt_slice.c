#include "prompt_slice.h"

#include <string.h>

#include "kernels.h"

static int forced;

/* Longer slices take the rows' activations from the second-level cache; AMX multiplies codes so fast that
 * they pay nevertheless (benchmarks/SPEED.md). */
int sd_row_slice(sd_format weights, sd_engine engine) {
    if (forced > 0) return forced;
    if (engine == SD_ENGINE_TILES) return SD_MOST_SLICE;
    int fast = weights != SD_FORMAT_BF16 && strcmp(sd_kernels_get()->name, "amx") == 0;
    return weights == SD_FORMAT_F32 || fast ? 128 : 64;
}

#ifdef SPECDEC_TESTING
void sd_row_slice_force(int n) { forced = n; }
#endif
