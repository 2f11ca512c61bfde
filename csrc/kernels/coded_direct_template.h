/* Products of quantized rows with panels whose codes are unpacked in registers: q4_k, q5_k, q6_k of format.h.
 *
 * Included by coded_template.h. These formats have nibbles and a header with d and, in those with minima,
 * dmin. */

/* The layout of a format's codes, and the bits of one code. */
INLINE line_layout lines_of(const sd_format format) {
    return format == SD_FORMAT_Q5_K   ? LINES_NIBBLES_BITS
           : format == SD_FORMAT_Q6_K ? LINES_NIBBLES_PAIRS
                                      : LINES_NIBBLES;
}
INLINE int code_bits_of(const sd_format format) {
    return sd_coded_of(format).low_bits + sd_coded_of(format).high_bits;
}

/* y (+)= n_rows rows times a part of a panel that begins with a header, in the order of coded_block.
 * n_rows and format are constant where this is inlined; x, block, halves: those of the first row in the
 * first block. */
INLINE void direct_coded_block(const int n_rows, const sd_format format, const int8_t* x,
                               const sd_row_block* block, const sd_row_halves* halves, ptrdiff_t n_all,
                               const uint8_t* panel, int n_k, ahead* fetch, int add, float* y,
                               ptrdiff_t ldy) {
    const sd_coded coded = sd_coded_of(format);
    const int at_once = UNITS_AT_ONCE4(n_rows), n_lines = 8 / coded.n_halves;
    const int header = (int)sd_coded_header_bytes(format), code_bytes = (int)sd_coded_code_bytes(format);
    unit sum[MAX_ROWS_DOT][N_UNITS];
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) sum[m][u] =
        add ? u_load(y + m * ldy + UNIT_LANES * u) : u_zero();
    while (n_k > 0) {
        _Alignas(64) float d[SD_PANEL], dmin[SD_PANEL];
        UNROLL for (int u = 0; u < N_UNITS; u++) {
            const uint16_t* of_unit = (const uint16_t*)(const void*)panel + UNIT_LANES * u;
            u_store(d + UNIT_LANES * u, u_half(of_unit));
            if (coded.has_minimum) u_store(dmin + UNIT_LANES * u, u_half(of_unit + SD_PANEL));
        }
        UNROLL for (int i = 0; i < header; i += 64) request(fetch);
        panel += header;
        int n_here = n_k < SD_PART_BLOCKS * SD_BLOCK ? n_k : SD_PART_BLOCKS * SD_BLOCK;
        n_k -= n_here;
        for (; n_here > 0; n_here -= SD_BLOCK) {
            UNROLL for (int first = 0; first < N_UNITS; first += at_once)
                UNROLL for (int h = 0; h < coded.n_halves; h++) {
                if (n_rows > FEW_ROWS) IN_MEMORY(sum);
                __asm__("" : "+r"(block)); /* as in int_block */
                iunit dot[MAX_ROWS_DOT][N_UNITS];
                sum_lines4(n_rows, first, at_once, lines_of(format), code_bits_of(format), panel, h * n_lines,
                           n_lines, x, coded_starts(coded, block, halves, h), fetch, dot);
                FOR_UNITS {
                    const uint8_t* bytes = panel + code_bytes + UNIT_LANES * u;
                    unit scale = u_load(d + UNIT_LANES * u);
                    scale = u_mul(
                        scale, coded.signed_scales ? u_signed_bytes(bytes + SD_PANEL * h) : u_bytes(bytes));
                    FOR_ROWS {
                        unit scaled = u_sub(u_of_bits(dot[m][u]), u_set1(block[m].base));
                        sum[m][u] = u_fma(scaled, scale, sum[m][u]);
                    }
                    if (!coded.has_minimum) continue;
                    unit less = u_mul(u_load(dmin + UNIT_LANES * u), u_bytes(bytes + SD_PANEL));
                    FOR_ROWS sum[m][u] = u_fnma(u_set1(block[m].sum), less, sum[m][u]);
                }
            }
            request(fetch);
            panel += code_bytes + 2 * SD_PANEL;
            x += n_all * SD_BLOCK;
            block += n_all;
            halves += n_all;
        }
    }
    FOR_ROWS UNROLL for (int u = 0; u < N_UNITS; u++) u_store(y + m * ldy + UNIT_LANES * u, sum[m][u]);
}

#define DEFINE_DIRECT_BLOCK(rows, format)                                                                  \
    static void direct_##format##_##rows(const block_args* a, int first) {                                 \
        ptrdiff_t row = (ptrdiff_t)a->k / SD_BLOCK * a->n_all + first;                                     \
        const int8_t* x = (const int8_t*)a->x + row * SD_BLOCK;                                            \
        void* prepared = (void*)(uintptr_t)a->x;                                                           \
        const sd_row_block* block = sd_row_blocks(prepared, a->n_all, a->n_in) + row;                      \
        const sd_row_halves* halves = sd_row_halves_of(prepared, a->n_all, a->n_in) + row;                 \
        ahead fetch = a->fetch;                                                                            \
        direct_coded_block(rows, SD_FORMAT_##format, x, block, halves, a->n_all, (const uint8_t*)a->panel, \
                           a->n_k, &fetch, a->add, a->y + first * a->ldy, a->ldy);                         \
    }

/* The products of a format, one part of a panel at a time; a part is whole groups of blocks that share a
 * header. */
#define DEFINE_DIRECT_PANEL(name, format, chunk)                                                     \
    ROWS_UP_TO(MAX_ROWS_DOT, DEFINE_DIRECT_BLOCK, format)                                            \
    static const block_fn name##_blocks[] = FUNCTIONS(MAX_ROWS_DOT, direct_##format);                \
    static const block_set name##_set = {name##_blocks, MAX_ROWS_DOT,       MAX_ROWS_DOT,            \
                                         chunk,         SD_FORMAT_##format, 1};                      \
    static void NAME(panel_##name)(int n_rows, const void* x, const void* panel, int n_in, int near, \
                                   float* y, ptrdiff_t ldy) {                                        \
        const size_t group = sd_panel_bytes(SD_FORMAT_##format, SD_PART_BLOCKS * SD_BLOCK);          \
        multiply(&name##_set, n_rows, x, panel, n_in, group / SD_PART_BLOCKS, near, 0, y, ldy);      \
    }
DEFINE_DIRECT_PANEL(q4_k, Q4_K, 1024)
DEFINE_DIRECT_PANEL(q5_k, Q5_K, 768)
DEFINE_DIRECT_PANEL(q6_k, Q6_K, 512)
