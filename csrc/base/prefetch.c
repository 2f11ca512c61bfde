#include "prefetch.h"

#include <assert.h>

void sd_soon_add(sd_soon* soon, const char* from, size_t bytes) {
    assert(soon->n < SD_MOST_PIECES);
    soon->from[soon->n] = from;
    soon->lines[soon->n++] = (int)((bytes + SD_LINE - 1) / SD_LINE);
}

void sd_request(const sd_soon* soon, int share, int n_shares) {
    int most = 0;
    for (int p = 0; p < soon->n; p++)
        if (soon->lines[p] > most) most = soon->lines[p];
    for (int line = most * share / n_shares; line < most * (share + 1) / n_shares; line++)
        for (int p = 0; p < soon->n; p++)
            if (line < soon->lines[p]) __builtin_prefetch(soon->from[p] + (ptrdiff_t)line * SD_LINE, 0, 2);
}
