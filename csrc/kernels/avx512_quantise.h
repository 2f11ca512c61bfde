/* 16 blocks of numbers quantised at once: the largest magnitude and the sum of the codes of each are found by
 * halving registers pair by pair, and the scales of all are one register. */
#ifndef SD_AVX512_QUANTISE_H
#define SD_AVX512_QUANTISE_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SD_BLOCKS_AT_ONCE 16

/* The larger of numbers that are not negative, by their bits: NaN is the largest, in either place. */
static inline __m512 sd_larger(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* Lane 4 q + l of what a tree of shuffles leaves is of register 8 (q % 2) + 4 (q / 2) + {0, 2, 1, 3}[l]. */
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

static inline __m512i sd_shuffled(__m512i a, __m512i b, int upper) {
    __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_castps_si512(upper ? _mm512_shuffle_ps(x, y, 0xee) : _mm512_shuffle_ps(x, y, 0x44));
}

/* Sums of the halves of 8 registers: lane i is of half i % 2 of register i / 2. */
static inline __m512i sd_sums_of_halves(__m512i* v) {
    for (int i = 0; i < 4; i++)
        v[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(v[i], v[i + 4], 0x88),
                                _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        v[i] = _mm512_add_epi32(sd_shuffled(v[i], v[i + 2], 0), sd_shuffled(v[i], v[i + 2], 1));
    __m512 x = _mm512_castsi512_ps(v[0]), y = _mm512_castsi512_ps(v[1]);
    __m512i all = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
    /* lane 4 q + l is of half q % 2 of register 4 (q / 2) + {0, 2, 1, 3}[l] */
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15),
                                    all);
}

/* 32 numbers times a factor as 32 bytes in the halves of two registers of words; rounded to nearest even. */
static inline __m512i sd_words_of(const float* x, __m512 factor) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factor)));
}

/* 16 blocks of 32 numbers at from[0 … 15], borrowed: their codes [16][32], and as sd_row_block
 * has them, [16] each, where sums start and what is to be taken off. offset: of the codes
 * that they are multiplied with. */
static inline void sd_quantise_16(int offset, const float* const* from, int8_t* codes, int32_t* starts,
                                  float* bases) {
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
    float factors[16];
    _mm512_storeu_si512(factors, _mm512_mask_mov_epi32(factor, zero, _mm512_setzero_si512()));

    __m512i sums[8];
    for (int i = 0; i < 16; i += 2) {
        __m512i one = sd_words_of(from[i], _mm512_set1_ps(factors[i]));
        __m512i two = sd_words_of(from[i + 1], _mm512_set1_ps(factors[i + 1]));
        /* packing works in quarters of a register: put the groups of four in order again */
        __m512i both =
            _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                     _mm512_packs_epi16(one, two));
        both = _mm512_max_epi8(both, _mm512_set1_epi8(-127));
        _mm512_storeu_si512(codes + (ptrdiff_t)i * 32, both);
        sums[i / 2] =
            _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), both), _mm512_set1_epi16(1));
    }
    __m512i base = _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 + 23)), 23);
    base = _mm512_or_si512(base, _mm512_set1_epi32(0x400000));
    __m512i less = _mm512_mullo_epi32(sd_sums_of_halves(sums), _mm512_set1_epi32(offset));
    _mm512_storeu_si512(bases, base);
    _mm512_storeu_si512(starts, _mm512_sub_epi32(base, less));
}

#endif
