/* Quantization of 16 blocks of numbers at once: the largest magnitudes of all are found by halving pairs of
 * registers, and their scales are one register. */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

/* Four groups, so that the latency of finding the scales of one is hidden by the others. */
#define SD_BLOCKS_AT_ONCE 64

/* The larger of two nonnegative numbers, by their bits: NaN is the largest, as either operand. */
static inline __m512 sd_larger(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* After a tree of shuffles, lane 4 q + l belongs to register 8 (q % 2) + 4 (q / 2) + {0, 2, 1, 3}[l]. */
static inline __m512 sd_max_of_16(__m512* v) {
    for (int i = 0; i < 8; i++)
        v[i] =
            sd_larger(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    for (int i = 0; i < 4; i++)
        v[i] =
            sd_larger(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        v[i] = sd_larger(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xee));
    __m512 all = sd_larger(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15),
                                 all);
}

/* 32 numbers times a factor, rounded to nearest even, as 16-bit words of one register. */
static inline __m512i sd_words_of(const float* x, __m512 factor) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factor)));
}

/* Sums of the quarters of 4 registers: lane 4 i + q is the sum of quarter q of register i. */
static inline __m512i sd_sums_of_quarters(const __m512i* v) {
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    all);
}

/* Store the quarters of a register to entries[to[0 … 3]], 16 bytes each. */
static inline void sd_store_quarters(__m512i v, void* entries, const ptrdiff_t* to) {
    __m128i* at = entries;
    _mm_storeu_si128(at + to[0], _mm512_castsi512_si128(v));
    _mm_storeu_si128(at + to[1], _mm512_extracti32x4_epi32(v, 1));
    _mm_storeu_si128(at + to[2], _mm512_extracti32x4_epi32(v, 2));
    _mm_storeu_si128(at + to[3], _mm512_extracti32x4_epi32(v, 3));
}

/* Store blocks[to[0 … 15]], given each member for the 16 blocks. */
static inline void sd_store_blocks(__m512i start8, __m512i start4, __m512i base, __m512i sum,
                                   sd_row_block* blocks, const ptrdiff_t* to) {
    __m512i a = _mm512_unpacklo_epi32(start8, start4), b = _mm512_unpackhi_epi32(start8, start4);
    __m512i c = _mm512_unpacklo_epi32(base, sum), d = _mm512_unpackhi_epi32(base, sum);
    /* quarter q of row i belongs to block 4 q + i: transpose the quarters */
    __m512i row0 = _mm512_unpacklo_epi64(a, c), row1 = _mm512_unpackhi_epi64(a, c);
    __m512i row2 = _mm512_unpacklo_epi64(b, d), row3 = _mm512_unpackhi_epi64(b, d);
    __m512i low01 = _mm512_shuffle_i32x4(row0, row1, 0x44), high01 = _mm512_shuffle_i32x4(row0, row1, 0xee);
    __m512i low23 = _mm512_shuffle_i32x4(row2, row3, 0x44), high23 = _mm512_shuffle_i32x4(row2, row3, 0xee);
    sd_store_quarters(_mm512_shuffle_i32x4(low01, low23, 0x88), blocks, to);
    sd_store_quarters(_mm512_shuffle_i32x4(low01, low23, 0xdd), blocks, to + 4);
    sd_store_quarters(_mm512_shuffle_i32x4(high01, high23, 0x88), blocks, to + 8);
    sd_store_quarters(_mm512_shuffle_i32x4(high01, high23, 0xdd), blocks, to + 12);
}

/* Store halves[to[0 … 7]], given the sums of their codes, two per block. */
static inline void sd_store_halves(__m512i sums, __m512i base, __m512 scale, sd_row_halves* halves,
                                   const ptrdiff_t* to) {
    __m512i start = _mm512_sub_epi32(base, _mm512_slli_epi32(sums, 5));
    __m512i sum = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale));
    __m512i even = _mm512_unpacklo_epi64(start, sum), odd = _mm512_unpackhi_epi64(start, sum);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    sd_store_quarters(_mm512_permutex2var_epi64(even, first, odd), halves, to);
    sd_store_quarters(_mm512_permutex2var_epi64(even, second, odd), halves, to + 4);
}

/* Scales 2^e of 16 blocks: e, and the factors 2^-e, which are 0 for blocks that count as zero. */
typedef struct sd_scales_16 {
    __m512i exponent;
    float factors[16];
} sd_scales_16;

/* Find the scales of 16 blocks of 32 numbers at from[0 … 15], borrowed. */
static inline sd_scales_16 sd_find_scales_16(const float* const* from) {
    __m512 largest[16];
    for (int i = 0; i < 16; i++)
        largest[i] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(from[i])),
                                   _mm512_abs_ps(_mm512_loadu_ps(from[i] + 16)));
    __m512 most = sd_max_of_16(largest);
    __mmask16 zero = _mm512_cmp_ps_mask(most, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    __m512i bits = _mm512_castps_si512(most), mantissa = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff));
    __m512i exponent = _mm512_sub_epi32(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(127 + 6));
    __mmask16 above = _mm512_cmpgt_epi32_mask(mantissa, _mm512_set1_epi32(0x7e0000));
    exponent = _mm512_mask_add_epi32(exponent, above, exponent, _mm512_set1_epi32(1));
    exponent = _mm512_min_epi32(exponent, _mm512_set1_epi32(100));
    exponent = _mm512_mask_mov_epi32(exponent, zero, _mm512_setzero_si512());
    __m512i factor = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(127), exponent), 23);
    sd_scales_16 scales = {.exponent = exponent};
    _mm512_storeu_si512(scales.factors, _mm512_mask_mov_epi32(factor, zero, _mm512_setzero_si512()));
    return scales;
}

/* Quantize these blocks with the scales found to blocks to[0 … 15]: for each, 32 codes, an entry of `blocks`
 * and, if with_halves, one of `halves`. offset8: OFFSET8 of the table (format.h). */
static inline __attribute__((always_inline)) void sd_quantize_16(
    const int with_halves, int offset8, const float* const* from, const sd_scales_16* scales,
    const ptrdiff_t* to, int8_t* codes, sd_row_block* blocks, sd_row_halves* halves) {
    const __m512i exponent = scales->exponent;
    __m512i fours[8]; /* sums of four codes each: a quarter of a register is half a block */
    for (int i = 0; i < 16; i += 2) {
        __m512i one = sd_words_of(from[i], _mm512_set1_ps(scales->factors[i]));
        __m512i two = sd_words_of(from[i + 1], _mm512_set1_ps(scales->factors[i + 1]));
        /* packing works within 128-bit lanes: restore the order of the groups of four */
        __m512i both =
            _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                     _mm512_packs_epi16(one, two));
        both = _mm512_max_epi8(both, _mm512_set1_epi8(-127));
        _mm256_storeu_si256((void*)(codes + to[i] * 32), _mm512_castsi512_si256(both));
        _mm256_storeu_si256((void*)(codes + to[i + 1] * 32), _mm512_extracti64x4_epi64(both, 1));
        fours[i / 2] =
            _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), both), _mm512_set1_epi16(1));
    }
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    __m512i low = sd_sums_of_quarters(fours), high = sd_sums_of_quarters(fours + 4);
    __m512i sum =
        _mm512_add_epi32(_mm512_permutex2var_epi32(low, evens, high),
                         _mm512_permutex2var_epi32(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high));
    __m512i base = _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 + 23)), 23);
    base = _mm512_or_si512(base, _mm512_set1_epi32(0x400000));
    __m512i scale = _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23);
    __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_castsi512_ps(scale));
    sd_store_blocks(_mm512_sub_epi32(base, _mm512_mullo_epi32(sum, _mm512_set1_epi32(offset8))),
                    _mm512_sub_epi32(base, _mm512_slli_epi32(sum, 3)), base, _mm512_castps_si512(scaled),
                    blocks, to);
    if (!with_halves) return;
    sd_store_halves(low, _mm512_permutexvar_epi32(twice, base),
                    _mm512_castsi512_ps(_mm512_permutexvar_epi32(twice, scale)), halves, to);
    sd_store_halves(high, _mm512_permutexvar_epi32(upper, base),
                    _mm512_castsi512_ps(_mm512_permutexvar_epi32(upper, scale)), halves, to + 8);
}
