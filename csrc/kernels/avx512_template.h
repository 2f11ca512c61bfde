/* Vector operations in AVX-512: the vector of 16 is one register. A block of rows has 24 sums, two weights
 * and an embedded broadcast.
 *
 * With DOT_PRODUCTS 1 it uses AVX512_VNNI, with BF16_PAIRS 1 AVX512_BF16: not every processor with AVX-512
 * has them. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "avx512_quantize.h"
#include "half.h"
#include "kernels.h"

#define UNPACK sdk_unpack_avx512
#define MAX_ROWS 12
#define MAX_ROWS_WIDE 12

typedef __m512 vec;
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_set1(f) _mm512_set1_ps(f)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_abs(a) _mm512_abs_ps(a)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* Compare the bits, which are ordered like the numbers, so that NaN gives the same as in sd_max_of_16. */
#define v_largest_abs(a) sd_float_from_bits((uint32_t)_mm512_reduce_max_epi32(_mm512_castps_si512(a)))
#define v_largest(a) _mm512_reduce_max_ps(a)
#define v_times_pow2(a, n) _mm512_scalef_ps(a, n)
static inline vec v_keep_from(vec x, float low, vec y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_GE_OQ), y);
}
/* Store 32 codes, rounded to nearest even and clamped to ± 127, and the sums of both halves. */
static inline void v_store_int8(int8_t* to, vec a, vec b, int sums[2]) {
    __m128i i = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)),
            j = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(b));
    i = _mm_max_epi8(i, _mm_set1_epi8(-127)), j = _mm_max_epi8(j, _mm_set1_epi8(-127));
    _mm_storeu_si128((void*)to, i);
    _mm_storeu_si128((void*)(to + 16), j);
    const __m128i sign = _mm_set1_epi8((char)0x80), zero = _mm_setzero_si128();
    __m128i p = _mm_sad_epu8(_mm_xor_si128(i, sign), zero), q = _mm_sad_epu8(_mm_xor_si128(j, sign), zero);
    __m128i both = _mm_add_epi64(_mm_unpacklo_epi64(p, q), _mm_unpackhi_epi64(p, q));
    sums[0] = _mm_cvtsi128_si32(both) - 16 * 128;
    sums[1] = _mm_extract_epi32(both, 2) - 16 * 128;
}

/* ---- bf16 */
#define v_wide_int8(p) u_signed_bytes(p)
/* Run `statement` with the flags that flush subnormal operands and results, as VDPBF16PS does. */
#define FLUSHED(statement)              \
    do {                                \
        unsigned before = _mm_getcsr(); \
        _mm_setcsr(before | 0x8040);    \
        statement;                      \
        _mm_setcsr(before);             \
    } while (0)
#define FLUSHES_ALL 1
#define v_fma_flush v_fma
static inline vec v_even_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
static inline vec v_odd_bf16(const uint16_t* p) {
    __m512i high = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
}
#if BF16_PAIRS
/* In assembly, because GCC 12 copies and spills around the intrinsic and does not broadcast inside
 * the instruction. */
#define v_pair(sum, w, p) \
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const int*)(const void*)(p)))
static inline void v_to_bf16(uint16_t* to, vec v) {
    _mm256_storeu_si256((void*)to, (__m256i)_mm512_cvtneps_pbh(v));
}
#define v_store_pairs(to, v) v_to_bf16((uint16_t*)(void*)(to), v)
static inline void v_store_bf16(float* to, vec v) {
    __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v));
    v_store(to, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}
#else
static inline void v_store_bf16(float* to, vec v) {
    __m512i bits = _mm512_castps_si512(v), exponent = _mm512_set1_epi32(0x7f800000);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 normal = _mm512_test_epi32_mask(bits, exponent);
    rounded = _mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000));
    __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32((int)0x80000000));
    v_store(to, _mm512_castsi512_ps(_mm512_mask_mov_epi32(sign, normal, rounded)));
}
static inline void v_to_bf16(uint16_t* to, vec v) {
    float rounded[16];
    v_store_bf16(rounded, v);
    __m512i bits = _mm512_srli_epi32(_mm512_loadu_si512(rounded), 16);
    _mm256_storeu_si256((void*)to, _mm512_cvtepi32_epi16(bits));
}
#endif

/* ---- int8 and int4 */
typedef __m512 unit;
typedef __m512i iunit;
#define UNIT_LANES 16
#define MAX_ROWS_DOT 9
#define u_zero() _mm512_setzero_ps()
#define u_load(p) _mm512_loadu_ps(p)
#define u_store(p, v) _mm512_storeu_ps(p, v)
#define u_set1(f) _mm512_set1_ps(f)
#define u_sub(a, b) _mm512_sub_ps(a, b)
#define u_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define u_fnma(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define u_mul(a, b) _mm512_mul_ps(a, b)
#define u_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const void*)(p)))
#define u_bytes(p) _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void*)(p))))
#define u_signed_bytes(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void*)(p))))
#define i_set1(i) _mm512_set1_epi32(i)
#define u_of_bits(i) _mm512_castsi512_ps(i)
#define OFFSET4 8
typedef __m512i codes4;
#define c4_load(p) _mm512_loadu_si512(p)
#define c4_low(p) _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15))
#define c4_high(p) _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15))
static inline __attribute__((always_inline)) codes4 c4_with(codes4 codes, const uint8_t* p, const int left,
                                                            const int mask) {
    __m512i plane = _mm512_loadu_si512(p);
    if (left < 0) plane = _mm512_srli_epi16(plane, (unsigned)-left);
    if (left > 0) plane = _mm512_slli_epi16(plane, (unsigned)left);
    return _mm512_ternarylogic_epi32(codes, plane, _mm512_set1_epi8((char)mask), 0xf8);
}
#if DOT_PRODUCTS
#define MAX_ROWS_DOT_WIDE 7
#define OFFSET8 128 /* the instruction needs one unsigned operand */
typedef __m512i codes8;
#define c8_load(p) _mm512_loadu_si512(p)
#define dot8(sum, w, p) \
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const int*)(const void*)(p)))
#define dot4 dot8
#else
#define MAX_ROWS_DOT_WIDE 6
#define FEW_ROWS 1
#define OFFSET8 0
/* |w| and the mask of negative w: with these, pairs of products fit in 16 bits. */
typedef struct codes8 {
    __m512i magnitude;
    __mmask64 negative;
} codes8;
static inline codes8 c8_load(const uint8_t* p) {
    __m512i w = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80));
    return (codes8){_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
}
static inline __m512i four_codes(const int8_t* p) {
    int x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}
static inline __m512i add_products(__m512i sum, __m512i w, __m512i x) {
    __m512i pairs = _mm512_maddubs_epi16(w, x);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    __asm__("" : "+v"(sum)); /* or the compiler adds in another order, which takes more registers */
    return sum;
}
static inline __m512i times_codes8(__m512i sum, codes8 w, const int8_t* p) {
    __m512i x = four_codes(p);
    return add_products(sum, w.magnitude, _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x));
}
#define dot8(sum, w, p) ((sum) = times_codes8(sum, w, p))
#define dot4(sum, w, p) ((sum) = add_products(sum, w, four_codes(p)))
#endif

/* ---- doubles */
static inline int v_any_from(vec x, float low) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_GE_OQ) != 0;
}

typedef __m512d dvec;
#define d_load(p) _mm512_loadu_pd(p)
#define d_store(p, v) _mm512_storeu_pd(p, v)
#define d_set1(f) _mm512_set1_pd(f)
#define d_add(a, b) _mm512_add_pd(a, b)
#define d_sub(a, b) _mm512_sub_pd(a, b)
#define d_mul(a, b) _mm512_mul_pd(a, b)
#define d_min(a, b) _mm512_min_pd(a, b)
#define d_max(a, b) _mm512_max_pd(a, b)
#define d_low(v) _mm512_cvtps_pd(_mm512_castps512_ps256(v))
#define d_high(v) _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))
static inline dvec d_keep_from(dvec x, double low, dvec y) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, _mm512_set1_pd(low), _CMP_GE_OQ), y);
}
/* compress in a register: the compressing store is microcoded on some processors */
static inline int d_compress(double* out, dvec x, double low, double high) {
    __mmask8 some = _mm512_cmp_pd_mask(x, _mm512_set1_pd(low), _CMP_GE_OQ) &
                    _mm512_cmp_pd_mask(x, _mm512_set1_pd(high), _CMP_LT_OQ);
    _mm512_storeu_pd(out, _mm512_maskz_compress_pd(some, x));
    return __builtin_popcount(some);
}

#define d_any_below(x, y) (_mm512_cmp_pd_mask(x, y, _CMP_LT_OQ) != 0)

typedef __m512i wvec;
#define w_set1(n) _mm512_set1_epi64((long long)(n))
#define w_count(from) _mm512_add_epi64(w_set1(from), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0))
#define w_mul_low(x, y) _mm512_mul_epu32(x, y)
#define w_high(x) _mm512_srli_epi64(x, 32)
#define w_xor(x, y) _mm512_xor_si512(x, y)
#define w_and(x, y) _mm512_and_si512(x, y)
/* build the bits of 2^52 + x, then subtract 2^52 */
static inline dvec w_to_double(wvec x) {
    wvec bits = _mm512_or_si512(w_and(x, w_set1(0xffffffff)), w_set1(0x4330000000000000));
    return _mm512_sub_pd(_mm512_castsi512_pd(bits), _mm512_set1_pd(0x1p52));
}
