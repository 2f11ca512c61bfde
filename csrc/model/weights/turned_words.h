/* Four words of each of four rows, turned: a corner of what becomes a panel. */
#ifndef SD_TURNED_WORDS_H
#define SD_TURNED_WORDS_H

#include <stdint.h>
#include <string.h>

#include "format.h"

/* Word l of rows[i], of 4 bytes each, becomes word i of line l at `to`. Lines are SD_PANEL words apart. All
 * are borrowed, of any alignment. */
static inline void sd_turn_words(const void* const rows[4], void* to) {
    typedef uint32_t four_words __attribute__((vector_size(16))); /* which every processor has */
    four_words r[4], lines[4];
    for (int i = 0; i < 4; i++) memcpy(&r[i], rows[i], sizeof r[i]);
    four_words low02 = __builtin_shufflevector(r[0], r[2], 0, 4, 1, 5);
    four_words low13 = __builtin_shufflevector(r[1], r[3], 0, 4, 1, 5);
    four_words high02 = __builtin_shufflevector(r[0], r[2], 2, 6, 3, 7);
    four_words high13 = __builtin_shufflevector(r[1], r[3], 2, 6, 3, 7);
    lines[0] = __builtin_shufflevector(low02, low13, 0, 4, 1, 5);
    lines[1] = __builtin_shufflevector(low02, low13, 2, 6, 3, 7);
    lines[2] = __builtin_shufflevector(high02, high13, 0, 4, 1, 5);
    lines[3] = __builtin_shufflevector(high02, high13, 2, 6, 3, 7);
    for (int l = 0; l < 4; l++) memcpy((char*)to + 4 * SD_PANEL * l, &lines[l], sizeof lines[l]);
}

#endif
