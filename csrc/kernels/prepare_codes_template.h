/* Quantization of rows for products with codes, in the chunks of products_template.h.
 *
 * Included by dots_template.h. */

/* The exponent e of the scale of a block of 32 in a row: 2^e is the smallest power of two with absmax ≤
 * 127 · 2^e. Codes are x / 2^e, rounded to nearest even. A block below 2⁻¹⁰⁰ counts as zero. */
INLINE int block_exponent(float largest) {
    uint32_t bits = sd_bits_of_float(largest);
    int exponent = (int)(bits >> 23) - 127 - 6 + ((bits & 0x7fffff) > 0x7e0000); /* 127 = 1.984375 · 2⁶ */
    return exponent > 100 ? 100 : exponent; /* larger values saturate: the sum must stay finite */
}

/* Load n numbers, up to 32, and zeros after them. */
INLINE void load_block(const float* x, int n, vec* a, vec* b) {
    *b = v_set1(0.0f);
    if (n == SD_BLOCK) {
        *a = v_load(x), *b = v_load(x + SD_LANES);
    } else {
        *a = load_some(x, n < SD_LANES ? n : SD_LANES);
        if (n > SD_LANES) *b = load_some(x + SD_LANES, n - SD_LANES);
    }
}

/* Quantize one block of n numbers, up to 32. with_halves, here and below, is constant where this is inlined;
 * if it is 0, `halves` is not written. */
INLINE void quantize(const int with_halves, const float* x, int n, int8_t* codes, sd_row_block* block,
                     sd_row_halves* halves) {
    vec a, b;
    load_block(x, n, &a, &b);
    float largest = v_largest_abs(v_max(v_abs(a), v_abs(b)));
    int is_zero = largest < 0x1p-100f, e = is_zero ? 0 : block_exponent(largest);
    vec factor = v_set1(is_zero ? 0.0f : sd_float_from_bits((uint32_t)(127 - e) << 23));
    int sums[2];
    v_store_int8(codes, v_mul(a, factor), v_mul(b, factor), sums);
    int32_t base = (int32_t)((uint32_t)(127 + 23 + e) << 23 | 0x400000), sum = sums[0] + sums[1];
    float scale = sd_float_from_bits((uint32_t)(127 + e) << 23);
    *block = (sd_row_block){base - OFFSET8 * sum, base - OFFSET4 * sum, sd_float_from_bits((uint32_t)base),
                            (float)sum * scale};
    if (with_halves)
        *halves = (sd_row_halves){{base - 32 * sums[0], base - 32 * sums[1]},
                                  {(float)sums[0] * scale, (float)sums[1] * scale}};
}

/* Quantize whole blocks from[0 … n − 1], n ≥ 1, to blocks to[0 … n − 1]. Both arrays have space for a
 * whole last group, which is padded with the last block. */
INLINE void quantize_all(const int with_halves, int n, const float** from, ptrdiff_t* to, int8_t* codes,
                         sd_row_block* blocks, sd_row_halves* halves) {
    int i = 0;
#ifdef SD_BLOCKS_AT_ONCE
    enum { GROUP = 16, FEW = 3 }; /* a few blocks are faster one by one */
    sd_scales_16 scales[SD_BLOCKS_AT_ONCE / GROUP];
    int n_groups = (n + GROUP - 1 - FEW) / GROUP;
    for (int j = n; j < n_groups * GROUP; j++) from[j] = from[n - 1], to[j] = to[n - 1];
    for (int g = 0; g < n_groups; g++) scales[g] = sd_find_scales_16(from + g * GROUP);
    for (int g = 0; g < n_groups; g++, i += GROUP)
        sd_quantize_16(with_halves, OFFSET8, from + i, &scales[g], to + i, codes, blocks, halves);
#endif
    for (; i < n; i++)
        quantize(with_halves, from[i], SD_BLOCK, codes + to[i] * SD_BLOCK, blocks + to[i], halves + to[i]);
}

/* Quantize row by row, so that numbers are read in the order of memory. */
INLINE void prepare_quantized(const int with_halves, sd_part part, const float* x, ptrdiff_t ldx, int n_in,
                              void* out) {
#ifdef SD_BLOCKS_AT_ONCE
    enum { AT_ONCE = SD_BLOCKS_AT_ONCE };
#else
    enum { AT_ONCE = 1 };
#endif
    int n_whole = part.n_inputs / SD_BLOCK, rest = part.n_inputs % SD_BLOCK;
    ptrdiff_t at = (ptrdiff_t)part.input / SD_BLOCK * part.n_all + part.row, n_all = part.n_all;
    int8_t* codes = (int8_t*)out + at * SD_BLOCK;
    sd_row_block* blocks = sd_row_blocks(out, part.n_all, n_in) + at;
    sd_row_halves* halves = sd_row_halves_of(out, part.n_all, n_in) + at;
    const float* from[AT_ONCE];
    ptrdiff_t to[AT_ONCE];
    for (int left = part.n_rows * n_whole, m = 0, i = 0, n; left > 0; left -= n) {
        n = left < AT_ONCE ? left : AT_ONCE;
        for (int j = 0; j < n; j++) {
            from[j] = x + m * ldx + i * SD_BLOCK, to[j] = i * n_all + m;
            if (++i == n_whole) i = 0, m++;
        }
        quantize_all(with_halves, n, from, to, codes, blocks, halves);
    }
    for (int m = 0; rest > 0 && m < part.n_rows; m++)
        quantize(with_halves, x + m * ldx + (ptrdiff_t)n_whole * SD_BLOCK, rest,
                 codes + (n_whole * n_all + m) * SD_BLOCK, blocks + n_whole * n_all + m,
                 halves + n_whole * n_all + m);
}

static void NAME(prepare_codes)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    prepare_quantized(0, part, x, ldx, n_in, out);
}

static void NAME(prepare_halves)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    prepare_quantized(1, part, x, ldx, n_in, out);
}

static uint16_t NAME(to_int8)(int n, const float* x, int8_t* codes) {
    uint32_t found = 0; /* the sign bit is set by an exponent of all ones */
    for (int i = 0; i < n; i++) found |= (sd_bits_of_float(x[i]) & 0x7fffffffu) + 0x00800000u;
    vec a, b;
    load_block(x, n, &a, &b);
    uint16_t infinite = 0x7c00,
             scale = found >> 31 ? infinite
                                 : sd_f16_from_float(v_largest_abs(v_max(v_abs(a), v_abs(b))) / 127.0f);
    memset(codes, 0, SD_BLOCK);
    if (scale == 0 || scale == infinite) return scale;
    vec inverse = v_set1(1.0f / sd_float_from_f16(scale));
    int sums[2];
    v_store_int8(codes, v_mul(a, inverse), v_mul(b, inverse), sums);
    return scale;
}
