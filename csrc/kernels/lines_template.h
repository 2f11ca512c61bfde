/* Integer dot products of rows' codes with the lines of codes of a sub-block (format.h). The products of
 * int8, int4 and the coded formats scale and add them. They are exact, so their order is free.
 *
 * Included by products_template.h. An instruction set defines either
 *   dot8(sum, w, p), dot4    sum += Σ of the 4 codes of each lane times the 4 int8 at p
 * or, with SHORT_SUMS 1, sums of products in 16 bits, which are widened before they overflow:
 *   short4, short8           these sums; ivec, i_codes(p): the 4 int8 at p in each lane
 *   s4_zero(); s4_add(sum, w, x), s8_add   sum += the products of codes w with x
 *   s4_sum(sum), s8_sum      the same in 32 bits; i_add
 *   signed8, c8_signed(p)    for blocks of few rows: one-byte codes, without their offset
 *   add_signed(sum, w, x)    the 32-bit sum plus their products with x */

#define N_UNITS (SD_PANEL / UNIT_LANES)
#define FOR_UNITS UNROLL for (int u = first; u < first + at_once; u++)
/* All units at once read memory in order. One unit after another needs fewer registers but skips every other
 * line, which the processor does not prefetch. */
#ifndef UNITS_AT_ONCE4
#define UNITS_AT_ONCE4(n_rows) ((n_rows) <= MAX_ROWS_DOT_WIDE ? N_UNITS : 1)
#define UNITS_AT_ONCE8(n_rows) UNITS_AT_ONCE4(n_rows)
#endif

/* Layouts of codes: bytes; nibbles; nibbles followed by planes of one or two more bits. */
typedef enum line_layout { LINES_BYTES, LINES_NIBBLES, LINES_NIBBLES_BITS, LINES_NIBBLES_PAIRS } line_layout;
/* Lines that share their bytes. */
INLINE int lines_together(const line_layout layout) { return layout == LINES_BYTES ? 1 : 2; }

/* Load the codes of line l from the planes at `at`, starting at `byte` of each line. */
INLINE codes4 line_codes(const line_layout layout, const uint8_t* at, const int l, const int byte) {
    if (layout == LINES_BYTES) return c4_load(at + LINE_BYTES * l + byte);
    const uint8_t *nibbles = at + LINE_BYTES * (l / 2) + byte, *planes = at + SD_NIBBLES + byte;
    codes4 codes = l % 2 == 0 ? c4_low(nibbles) : c4_high(nibbles);
    if (layout == LINES_NIBBLES_BITS) return c4_with(codes, planes, 4 - l, 0x10);
    if (layout == LINES_NIBBLES_PAIRS)
        return c4_with(codes, planes + LINE_BYTES * (l / 4), 4 - 2 * (l % 4), 0x30);
    return codes;
}

/* Prefetch for lines 2s and 2s + 1 of nibbles; requests for the planes after them are spread over the
 * first s. */
INLINE void request_lines(const line_layout layout, const int s, const int u, ahead* fetch) {
    if (layout == LINES_BYTES || UNIT_LANES * 4 * u % 64 != 0) return;
    request(fetch);
    if (s < (layout == LINES_NIBBLES_BITS ? 1 : layout == LINES_NIBBLES_PAIRS ? 2 : 0)) request(fetch);
}

/* The start value of row m's sum, a member of sd_row_block; `starts` is that of row 0. */
INLINE int32_t start_of(const void* starts, const int m) {
    int32_t start;
    memcpy(&start, (const char*)starts + sizeof(sd_row_block) * m, sizeof start);
    return start;
}

#if !SHORT_SUMS
/* dot[m][u] += row codes at x · codes of line l and, in all layouts but bytes, of the next line. */
INLINE void add_lines4(const int n_rows, const int first, const int at_once, const line_layout layout,
                       const uint8_t* at, const int l, const int8_t* x, ahead* fetch, iunit (*dot)[N_UNITS]) {
    const int together = lines_together(layout);
    FOR_UNITS {
        request_lines(layout, l / 2, u, fetch);
        UNROLL for (int i = 0; i < together; i++) {
            codes4 w = line_codes(layout, at, l + i, UNIT_LANES * 4 * u);
            FOR_ROWS dot4(dot[m][u], w, x + m * SD_BLOCK + 4 * i);
        }
    }
}

/* dot[m][u] = start of row m + Σ row codes at x · codes of lines [from, from + n_lines), for units
 * [first, first + at_once). All ints, including most_bits (of a code), are constant where this is inlined. */
INLINE void sum_lines4(const int n_rows, const int first, const int at_once, const line_layout layout,
                       const int most_bits, const uint8_t* at, const int from, const int n_lines,
                       const int8_t* x, const void* starts, ahead* fetch, iunit (*dot)[N_UNITS]) {
    const int together = lines_together(layout);
    (void)most_bits;
    FOR_ROWS FOR_UNITS dot[m][u] = i_set1(start_of(starts, m));
    x += 4 * from;
    if (n_rows > FEW_ROWS && layout <= LINES_NIBBLES) { /* a loop: less code, and fewer registers */
        at += LINE_BYTES * from / together;
        _Pragma("GCC unroll 1") for (int l = 0; l < n_lines; l += together, at += LINE_BYTES)
            add_lines4(n_rows, first, at_once, layout, at, 0, x + 4 * l, fetch, dot);
    } else {
        UNROLL for (int l = 0; l < n_lines; l += together)
            add_lines4(n_rows, first, at_once, layout, at, from + l, x + 4 * l, fetch, dot);
    }
}

INLINE void add_line8(const int n_rows, const int first, const int at_once, const int requests,
                      const uint8_t* at, const int8_t* x, ahead* fetch, iunit (*dot)[N_UNITS]) {
    FOR_UNITS {
        if (requests && UNIT_LANES * 4 * u % 64 == 0) request(fetch);
        codes8 w = c8_load(at + UNIT_LANES * 4 * u);
        FOR_ROWS dot8(dot[m][u], w, x + m * SD_BLOCK);
    }
}

/* The same for one-byte codes with offset OFFSET8; `requests`: whether to prefetch lines. */
INLINE void sum_lines8(const int n_rows, const int first, const int at_once, const int requests,
                       const uint8_t* at, const int8_t* x, const sd_row_block* block, ahead* fetch,
                       iunit (*dot)[N_UNITS]) {
    FOR_ROWS FOR_UNITS dot[m][u] = i_set1(block[m].start8);
    if (n_rows > FEW_ROWS) {
        _Pragma("GCC unroll 1") for (int l = 0; l < 8; l++, at += LINE_BYTES)
            add_line8(n_rows, first, at_once, requests, at, x + 4 * l, fetch, dot);
    } else {
        UNROLL for (int l = 0; l < 8; l++)
            add_line8(n_rows, first, at_once, requests, at + LINE_BYTES * l, x + 4 * l, fetch, dot);
    }
}
#else
/* Add lines 2s and 2s + 1 of the planes at `at` to the sums. */
INLINE void add_lines4(const int n_rows, const int first, const int at_once, const line_layout layout,
                       const uint8_t* at, const int s, const int8_t* x, ahead* fetch,
                       short4 (*sum)[N_UNITS]) {
    FOR_UNITS request_lines(layout, s, u, fetch);
    UNROLL for (int i = 0; i < 2; i++) {
        codes4 w[N_UNITS];
        FOR_UNITS w[u] = line_codes(layout, at, 2 * s + i, UNIT_LANES * 4 * u);
        FOR_ROWS {
            ivec codes = i_codes(x + m * SD_BLOCK + 4 * i);
            FOR_UNITS s4_add(&sum[m][u], w[u], codes);
        }
    }
}

INLINE void sum_lines4(const int n_rows, const int first, const int at_once, const line_layout layout,
                       const int most_bits, const uint8_t* at, const int from, const int n_lines,
                       const int8_t* x, const void* starts, ahead* fetch, iunit (*dot)[N_UNITS]) {
    /* sums of two products of a code with ± 127, over this many lines, stay below 2^15 */
    const int most = most_bits == 4 ? 8 : most_bits == 5 ? 4 : 2, together = n_lines < most ? n_lines : most;
    x += 4 * from;
    UNROLL for (int l = 0; l < n_lines; l += together) {
        short4 sum[MAX_ROWS_DOT][N_UNITS];
        FOR_ROWS FOR_UNITS sum[m][u] = s4_zero();
        if (layout == LINES_NIBBLES && n_rows > FEW_ROWS) {
            /* not unrolled: the compiler then needs fewer registers */
            const uint8_t* lines = at;
            _Pragma("GCC unroll 1") for (int s = 0; s < together / 2; s++, lines += LINE_BYTES, x += 8)
                add_lines4(n_rows, first, at_once, layout, lines, 0, x, fetch, sum);
        } else {
            UNROLL for (int s = 0; s < together / 2; s++, x += 8)
                add_lines4(n_rows, first, at_once, layout, at, (from + l) / 2 + s, x, fetch, sum);
        }
        FOR_ROWS FOR_UNITS dot[m][u] = l == 0 ? s4_sum(sum[m][u]) : i_add(dot[m][u], s4_sum(sum[m][u]));
    }
    FOR_ROWS FOR_UNITS dot[m][u] = i_add(dot[m][u], i_set1(start_of(starts, m)));
}

INLINE void sum_lines8(const int n_rows, const int first, const int at_once, const int requests,
                       const uint8_t* at, const int8_t* x, const sd_row_block* block, ahead* fetch,
                       iunit (*dot)[N_UNITS]) {
    if (n_rows <= FEW_ROWS) {
        FOR_ROWS FOR_UNITS dot[m][u] = i_set1(start_of(&block->base, m));
        UNROLL for (int l = 0; l < 8; l++) FOR_UNITS {
            if (requests && UNIT_LANES * 4 * u % 64 == 0) request(fetch);
            signed8 w = c8_signed(at + LINE_BYTES * l + UNIT_LANES * 4 * u);
            FOR_ROWS dot[m][u] = add_signed(dot[m][u], w, i_codes(x + m * SD_BLOCK + 4 * l));
        }
        return;
    }
    short8 sum[MAX_ROWS_DOT][N_UNITS];
    FOR_ROWS FOR_UNITS sum[m][u] = s8_zero();
    _Pragma("GCC unroll 1") for (int l = 0; l < 8; l++, at += LINE_BYTES, x += 4) FOR_UNITS {
        if (requests && UNIT_LANES * 4 * u % 64 == 0) request(fetch);
        codes8 w = c8_load(at + UNIT_LANES * 4 * u);
        FOR_ROWS s8_add(&sum[m][u], w, i_codes(x + m * SD_BLOCK));
    }
    FOR_ROWS FOR_UNITS dot[m][u] = i_add(s8_sum(sum[m][u]), i_set1(block[m].start8));
}
#endif
