/* Rounding of rows and scores to bf16, stored as floats or as pairs in 32-bit words.
 *
 * Included by floats_template.h and by pairs_avx512.c, which has instructions that round and defines
 * v_store_pairs(p, v): store 16 floats as 8 pairs. */
#pragma once

#ifndef v_store_pairs
#define v_store_pairs v_store_bf16
#endif

/* Swap the two floats of each pair. */
INLINE void swap_pairs(float* x) {
    uint64_t pairs[SD_BLOCK / 2];
    memcpy(pairs, x, sizeof pairs);
    for (int i = 0; i < SD_BLOCK / 2; i++) pairs[i] = pairs[i] << 32 | pairs[i] >> 32;
    memcpy(x, pairs, sizeof pairs);
}

/* Round rows to bf16. `pairs`: store bf16, else floats; `swap`: swap the two numbers of each pair. Both are
 * constant where this is inlined. */
INLINE void prepare_rounded(const int pairs, const int swap, sd_part part, const float* x, ptrdiff_t ldx,
                            void* out) {
    const int row = pairs ? SD_BLOCK / 2 : SD_BLOCK;
    for (int i = 0; i < part.n_inputs; i += SD_BLOCK) {
        int n_here = part.n_inputs - i < SD_BLOCK ? part.n_inputs - i : SD_BLOCK;
        float* to = (float*)out + ((ptrdiff_t)(part.input + i) / SD_BLOCK * part.n_all + part.row) * row;
        for (int m = 0; m < part.n_rows; m++, to += row) {
            for (int j = 0; j < SD_BLOCK; j += SD_LANES) { /* missing inputs must be 0 */
                int some = n_here - j < 0 ? 0 : n_here - j < SD_LANES ? n_here - j : SD_LANES;
                vec v = LOAD(x + m * ldx + i, j, some);
                if (pairs)
                    v_store_pairs(to + j / 2, v);
                else
                    v_store_bf16(to + j, v);
            }
            if (swap) swap_pairs(to);
        }
    }
}

/* 2^t for t ≤ 0, 0 below −125: t = n + r, |r| ≤ 1/2; a polynomial of degree 3 in r (error below 1.1e-4 of the
 * result, 0 at r = 0), times 2^n. */
#define LOWEST_POWER -125.0f
INLINE vec v_coarse_power(vec t) {
    vec c = v_max(t, v_set1(LOWEST_POWER));
    vec n = v_round(c), r = v_sub(c, n);
    vec p = v_fma(v_set1(0.05500832f), r, v_set1(0.24221115f));
    p = v_fma(p, r, v_set1(0.69328302f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_keep_from(t, LOWEST_POWER, v_times_pow2(p, n));
}

#define LOG2_E 1.44269504f

/* weigh_tiles (kernels.h). `pairs`, constant where this is inlined: prepare pairs of bf16, else floats. */
INLINE void weigh_rows_tiles(const int pairs, int n_rows, int n_chunks, const float* x, const float* largest,
                             float factor, float* lanes, float* out) {
    const int row = pairs ? SD_BLOCK / 2 : SD_BLOCK;
    vec scale = v_set1(factor * LOG2_E);
    for (int m = 0; m < n_rows; m++) {
        const float* from = x + m * SD_PANEL;
        float* to = out + m * row;
        vec shift = v_set1(largest[m]), sum = v_load(lanes + m * SD_LANES);
        for (int c = 0; c < n_chunks; c++, from += n_rows * SD_PANEL, to += n_rows * row) {
            vec a = v_coarse_power(v_mul(v_sub(v_load(from), shift), scale));
            vec b = v_coarse_power(v_mul(v_sub(v_load(from + SD_LANES), shift), scale));
            sum = v_add(v_add(sum, a), b);
            if (pairs) {
                v_store_pairs(to, a);
                v_store_pairs(to + SD_LANES / 2, b);
            } else {
                v_store_bf16(to, a);
                v_store_bf16(to + SD_LANES, b);
            }
        }
        v_store(lanes + m * SD_LANES, sum);
    }
}

static void NAME(prepare_tiles)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    prepare_rounded(0, 0, part, x, ldx, out);
}

static void NAME(weigh_tiles)(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                              float* lanes, void* out) {
    weigh_rows_tiles(0, n_rows, n_chunks, x, largest, factor, lanes, out);
}

static void NAME(to_bf16)(int n, const float* x, uint16_t* y) {
    int i = 0;
    for (; i + SD_LANES <= n; i += SD_LANES) v_to_bf16(y + i, v_load(x + i));
    uint16_t rest[SD_LANES];
    if (i < n) v_to_bf16(rest, load_some(x + i, n - i));
    for (int j = i; j < n; j++) y[j] = rest[j - i];
}
