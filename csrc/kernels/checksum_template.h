/* The sums of a checksum (checksum.c) over whole lines, several lanes per register.
 *
 * Included by loading_template.h. Uses the compiler's vector types, as wide as a register of the set. The
 * sums are integers, so every width gives the same result. */

#define C_LANES (Q_LANES / 2)
typedef uint64_t c_words __attribute__((vector_size(8 * C_LANES)));

static void NAME(checksum_lines)(size_t n_lines, const char* lines, uint64_t first[SD_CHECKSUM_LANES],
                                 uint64_t second[SD_CHECKSUM_LANES]) {
    enum {
        LINE = 8 * SD_CHECKSUM_LANES,
        AHEAD = 32
    }; /* lines: hardware prefetching stops at the end of a page */
    c_words one[SD_CHECKSUM_LANES / C_LANES], two[SD_CHECKSUM_LANES / C_LANES], word;
    memcpy(one, first, sizeof one);
    memcpy(two, second, sizeof two);
    for (size_t i = 0; i < n_lines; i++, lines += LINE) {
        if (n_lines - i > AHEAD) __builtin_prefetch(lines + AHEAD * LINE);
        UNROLL for (int v = 0; v < SD_CHECKSUM_LANES / C_LANES; v++) {
            memcpy(&word, lines + 8 * C_LANES * v, sizeof word);
            one[v] += word;
            one[v] = one[v] << 29 | one[v] >> 35;
            two[v] += one[v];
        }
    }
    memcpy(first, one, sizeof one);
    memcpy(second, two, sizeof two);
}
