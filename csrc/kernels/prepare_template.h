/* Rows as inputs of products: rounded or quantised, chunk by chunk as products_template.h wants them.
 *
 * Included by kernels_template.h behind products_template.h, over the same operations. */

static void NAME(prepare_f32)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    for (int i = 0; i < part.n_inputs; i += SD_BLOCK) {
        int n_here = part.n_inputs - i < SD_BLOCK ? part.n_inputs - i : SD_BLOCK;
        float* to = (float*)out + ((ptrdiff_t)(part.input + i) / SD_BLOCK * part.n_all + part.row) * SD_BLOCK;
        for (int m = 0; m < part.n_rows; m++, to += SD_BLOCK)
            FOR_EACH_16(n_here, j, some) v_store(to + j, LOAD(x + m * ldx + i, j, some));
    }
}

static void NAME(prepare_bf16)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    const int row = PAIR_FLOATS * SD_BLOCK / 2;
    for (int i = 0; i < part.n_inputs; i += SD_BLOCK) {
        int n_here = part.n_inputs - i < SD_BLOCK ? part.n_inputs - i : SD_BLOCK;
        float* to = (float*)out + ((ptrdiff_t)(part.input + i) / SD_BLOCK * part.n_all + part.row) * row;
        for (int m = 0; m < part.n_rows; m++, to += row)
            for (int j = 0; j < SD_BLOCK; j += SD_LANES) { /* a missing second of a pair must be 0 */
                int some = n_here - j < 0 ? 0 : n_here - j < SD_LANES ? n_here - j : SD_LANES;
                vec v = some == SD_LANES ? v_load(x + m * ldx + i + j) : load_some(x + m * ldx + i + j, some);
                v_store_bf16(to + PAIR_FLOATS * j / 2, v);
            }
    }
}

/* Per row and block of 32: the smallest power of two 2^e with absmax ≤ 127 · 2^e is the scale, codes
 * are x / 2^e to nearest even. A block below 2⁻¹⁰⁰ counts as zero. */
INLINE int block_exponent(float largest) {
    uint32_t bits = sd_bits_of_float(largest);
    int exponent = (int)(bits >> 23) - 127 - 6 + ((bits & 0x7fffff) > 0x7e0000); /* 127 = 1.984375 · 2⁶ */
    return exponent > 100 ? 100 : exponent; /* larger ones saturate: the sum must stay a float */
}

INLINE void prepare_int(int offset, sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    sd_row_block* blocks = sd_row_blocks(out, part.n_all, n_in);
    for (int i = 0; i < part.n_inputs; i += SD_BLOCK) {
        int n_here = part.n_inputs - i < SD_BLOCK ? part.n_inputs - i : SD_BLOCK;
        ptrdiff_t at = (ptrdiff_t)(part.input + i) / SD_BLOCK * part.n_all + part.row;
        for (int m = 0; m < part.n_rows; m++, at++) {
            const float* from = x + m * ldx + i;
            vec a, b = v_set1(0.0f);
            if (n_here == SD_BLOCK) {
                a = v_load(from), b = v_load(from + SD_LANES);
            } else {
                a = load_some(from, n_here < SD_LANES ? n_here : SD_LANES);
                if (n_here > SD_LANES) b = load_some(from + SD_LANES, n_here - SD_LANES);
            }
            float largest = v_largest_abs(v_max(v_abs(a), v_abs(b)));
            int is_zero = largest < 0x1p-100f, e = is_zero ? 0 : block_exponent(largest);
            vec factor = v_set1(is_zero ? 0.0f : sd_float_from_bits((uint32_t)(127 - e) << 23));
            int sum = v_store_int8((int8_t*)out + at * SD_BLOCK, v_mul(a, factor), v_mul(b, factor));
            uint32_t base = (uint32_t)(127 + 23 + e) << 23 | 0x400000;
            blocks[at] = (sd_row_block){(int32_t)base - offset * sum, sd_float_from_bits(base)};
        }
    }
}
static void NAME(prepare_int8)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    prepare_int(OFFSET8, part, x, ldx, n_in, out);
}
static void NAME(prepare_int4)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    prepare_int(OFFSET4, part, x, ldx, n_in, out);
}
