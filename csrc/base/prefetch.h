/* Memory that is requested before it is read. */
#ifndef SD_PREFETCH_H
#define SD_PREFETCH_H

#include <stddef.h>

/* Bytes of a cache line. */
#define SD_LINE 64

/* Pieces of memory that will be read soon: cache lines from an address on. */
#define SD_MOST_PIECES 8
typedef struct sd_soon {
    int n;
    const char* from[SD_MOST_PIECES]; /* borrowed */
    int lines[SD_MOST_PIECES];
} sd_soon;

/* Add a piece: `bytes` from `from` on, borrowed. There is room for it. */
void sd_soon_add(sd_soon* soon, const char* from, size_t bytes);

/* Request share `share` of n_shares of each piece, to the second-level cache: the first level has few places
 * for lines on their way (benchmarks/SPEED.md). A line of each piece in turn: a processor that fetches the
 * next lines of a page by itself then does so in several pages at once. */
void sd_request(const sd_soon* soon, int share, int n_shares);

/* Request x [n], borrowed, at once. */
static inline void sd_request_floats(const float* x, int n) {
    for (int i = 0; i < n; i += SD_LINE / (int)sizeof *x) __builtin_prefetch(x + i);
}

#endif
