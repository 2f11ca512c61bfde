/* Vector operations in AVX2 with FMA: the vector of 16 is two registers. A block of rows has 12 sums, two
 * weights and a broadcast in registers.
 *
 * Included by files for AVX2 and, with AVX_VNNI 1, for AVX-VNNI. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "half.h"
#include "kernels.h"

#define UNPACK sdk_unpack_avx2
#define MAX_ROWS 6
#define MAX_ROWS_WIDE 2
#define FEW_REGISTERS 1

typedef struct vec {
    __m256 a, b;
} vec;
#define BOTH(f, x, y) ((vec){f((x).a, (y).a), f((x).b, (y).b)})
#define v_load(p) ((vec){_mm256_loadu_ps(p), _mm256_loadu_ps((p) + 8)})
static inline void v_store(float* p, vec v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
static inline vec v_set1(float f) {
    __m256 v = _mm256_set1_ps(f);
    return (vec){v, v};
}
static inline vec v_add(vec x, vec y) { return BOTH(_mm256_add_ps, x, y); }
static inline vec v_sub(vec x, vec y) { return BOTH(_mm256_sub_ps, x, y); }
static inline vec v_mul(vec x, vec y) { return BOTH(_mm256_mul_ps, x, y); }
static inline vec v_div(vec x, vec y) { return BOTH(_mm256_div_ps, x, y); }
static inline vec v_max(vec x, vec y) { return BOTH(_mm256_max_ps, x, y); }
static inline vec v_min(vec x, vec y) { return BOTH(_mm256_min_ps, x, y); }
static inline vec v_fma(vec x, vec y, vec z) {
    return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline vec v_round(vec x) {
    return (vec){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline __m256 pow2_8(__m256 n) {
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
static inline vec v_times_pow2(vec x, vec n) { return v_mul(x, ((vec){pow2_8(n.a), pow2_8(n.b)})); }
static inline vec v_keep_from(vec x, float low, vec y) {
    __m256 l = _mm256_set1_ps(low);
    return (vec){_mm256_and_ps(_mm256_cmp_ps(x.a, l, _CMP_GE_OQ), y.a),
                 _mm256_and_ps(_mm256_cmp_ps(x.b, l, _CMP_GE_OQ), y.b)};
}

static inline vec v_abs(vec x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static inline float v_largest_abs(vec x) {
    __m256 half = _mm256_max_ps(x.a, x.b);
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}
static inline float v_largest(vec x) { return v_largest_abs(x); }
/* Store 32 codes, rounded to nearest even and clamped to ± 127, and the sums of both halves. */
static inline void v_store_int8(int8_t* to, vec x, vec y, int sums[2]) {
    __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    __m256i c = _mm256_cvtps_epi32(y.a), d = _mm256_cvtps_epi32(y.b);
    /* packing works within 128-bit lanes: restore the order of the groups of four */
    __m256i codes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    codes = _mm256_max_epi8(codes, _mm256_set1_epi8(-127));
    _mm256_storeu_si256((void*)to, codes);
    __m256i above =
        _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80)), _mm256_setzero_si256());
    __m256i both = _mm256_add_epi64(above, _mm256_unpackhi_epi64(above, above));
    sums[0] = _mm256_cvtsi256_si32(both) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 16 * 128;
}

/* ---- bf16: pairs are emulated */
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
/* Keeps the sum in its register; otherwise the compiler needs more registers than there are. */
static inline __m256 fma_in_place(__m256 x, __m256 y, __m256 sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
    return sum;
}
#define v_fma_flush_in_place v_fma_flush_in_place
static inline vec v_fma_flush_in_place(vec x, vec y, vec z) {
    return (vec){fma_in_place(x.a, y.a, z.a), fma_in_place(x.b, y.b, z.b)};
}
#define v_wide_int8(p) ((vec){u_signed_bytes(p), u_signed_bytes((p) + 8)})
static inline __m256 even_8(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const void*)p), 16));
}
static inline __m256 odd_8(const uint16_t* p) {
    __m256i high = _mm256_set1_epi32((int)0xffff0000);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const void*)p), high));
}
static inline vec v_even_bf16(const uint16_t* p) { return (vec){even_8(p), even_8(p + 16)}; }
static inline vec v_odd_bf16(const uint16_t* p) { return (vec){odd_8(p), odd_8(p + 16)}; }
static inline __m256 round_8(__m256 v) {
    __m256i bits = _mm256_castps_si256(v), exponent = _mm256_set1_epi32(0x7f800000);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    rounded = _mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000));
    __m256i subnormal = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), _mm256_setzero_si256());
    __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32((int)0x80000000));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(rounded, sign, subnormal));
}
static inline void v_store_bf16(float* to, vec v) { v_store(to, (vec){round_8(v.a), round_8(v.b)}); }
static inline void v_to_bf16(uint16_t* to, vec v) {
    __m256i a = _mm256_srli_epi32(_mm256_castps_si256(round_8(v.a)), 16);
    __m256i b = _mm256_srli_epi32(_mm256_castps_si256(round_8(v.b)), 16);
    _mm256_storeu_si256((void*)to, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}

/* ---- int8 and int4 */
typedef __m256 unit;
typedef __m256i iunit;
#define UNIT_LANES 8
#define MAX_ROWS_DOT 6
#define MAX_ROWS_DOT_WIDE 1
#define u_zero() _mm256_setzero_ps()
#define u_load(p) _mm256_loadu_ps(p)
#define u_store(p, v) _mm256_storeu_ps(p, v)
#define u_set1(f) _mm256_set1_ps(f)
#define u_sub(a, b) _mm256_sub_ps(a, b)
#define u_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define u_fnma(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define u_mul(a, b) _mm256_mul_ps(a, b)
#define u_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const void*)(p)))
#define u_bytes(p) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void*)(p))))
#define u_signed_bytes(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void*)(p))))
#define i_set1(i) _mm256_set1_epi32(i)
#define u_of_bits(i) _mm256_castsi256_ps(i)
#define OFFSET4 8
typedef __m256i codes4;
static inline __m256i c4_low(const uint8_t* p) {
    return _mm256_and_si256(_mm256_loadu_si256((const void*)p), _mm256_set1_epi8(15));
}
static inline __m256i c4_high(const uint8_t* p) {
    __m256i codes = _mm256_srli_epi16(_mm256_loadu_si256((const void*)p), 4);
    return _mm256_and_si256(codes, _mm256_set1_epi8(15));
}
#define c4_load(p) _mm256_loadu_si256((const void*)(p))
static inline __attribute__((always_inline)) codes4 c4_with(codes4 codes, const uint8_t* p, const int left,
                                                            const int mask) {
    __m256i plane = _mm256_loadu_si256((const void*)p);
    plane = left < 0 ? _mm256_srli_epi16(plane, -left) : _mm256_slli_epi16(plane, left);
    return _mm256_or_si256(codes, _mm256_and_si256(plane, _mm256_set1_epi8((char)mask)));
}
static inline __m256i four_codes(const int8_t* p) {
    int x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}
#if AVX_VNNI
#define OFFSET8 128 /* the instruction needs one unsigned operand */
typedef __m256i codes8;
#define c8_load(p) _mm256_loadu_si256((const void*)(p))
#define FEW_ROWS 1
#define UNITS_AT_ONCE4(n_rows) ((n_rows) <= 1 ? 4 : (n_rows) <= 4 ? 2 : 1)
#define UNITS_AT_ONCE8(n_rows) UNITS_AT_ONCE4(n_rows)
static inline __m256i dot_codes(__m256i sum, __m256i w, const int8_t* p) {
    sum = _mm256_dpbusd_avx_epi32(sum, w, four_codes(p));
    __asm__("" : "+x"(sum)); /* or the compiler copies sums */
    return sum;
}
#define dot8(sum, w, p) ((sum) = dot_codes(sum, w, p))
#define dot4 dot8
#else
/* VPMADDUBSW adds two products in 16 bits, which hold the sums of eight lines of 4-bit codes. So one-byte
 * codes (value + 128) are split into two 4-bit codes, 16 · high + low. For few rows splitting costs too
 * much: they use |w| and the sign of w instead. */
#define SHORT_SUMS 1
#define FEW_ROWS 3
#define OFFSET8 128
#define UNITS_AT_ONCE4(n_rows) ((n_rows) <= 3 ? 4 : 2)
#define UNITS_AT_ONCE8(n_rows) ((n_rows) <= 1 ? 4 : 1)
typedef __m256i ivec, short4;
typedef struct codes8 {
    __m256i high, low;
} codes8, short8;
typedef struct signed8 {
    __m256i magnitude, sign;
} signed8;
#define i_codes(p) four_codes(p)
#define i_add(a, b) _mm256_add_epi32(a, b)
static inline codes8 c8_load(const uint8_t* p) { return (codes8){c4_high(p), c4_low(p)}; }
static inline signed8 c8_signed(const uint8_t* p) {
    __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const void*)p), _mm256_set1_epi8((char)0x80));
    return (signed8){_mm256_abs_epi8(w), w};
}
static inline __m256i add_signed(__m256i sum, signed8 w, __m256i x) {
    __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.sign));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#define s4_zero() _mm256_setzero_si256()
#define s8_zero() ((short8){s4_zero(), s4_zero()})
static inline void s4_add(short4* sum, __m256i w, __m256i x) {
    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, x));
    __asm__("" : "+x"(*sum)); /* keeps the compiler from reordering, which needs more registers */
}
static inline void s8_add(short8* sum, codes8 w, __m256i x) {
    s4_add(&sum->high, w.high, x);
    s4_add(&sum->low, w.low, x);
}
/* Pairs of sums times a factor, which is reloaded because the registers are full. */
static const int16_t factors[2][16] __attribute__((aligned(32))) = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16},
};
static inline __m256i times_factor(__m256i sum, const int is_high) {
    const int16_t* factor = factors[is_high];
    __asm__("" : "+r"(factor));
    return _mm256_madd_epi16(sum, _mm256_load_si256((const void*)factor));
}
static inline __m256i s4_sum(short4 sum) { return times_factor(sum, 0); }
static inline __m256i s8_sum(short8 sum) {
    return _mm256_add_epi32(times_factor(sum.high, 1), times_factor(sum.low, 0));
}
#endif

/* ---- doubles */
static inline int v_any_from(vec x, float low) {
    __m256 l = _mm256_set1_ps(low);
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(x.a, l, _CMP_GE_OQ), _mm256_cmp_ps(x.b, l, _CMP_GE_OQ))) != 0;
}

typedef struct dvec {
    __m256d a, b;
} dvec;
#define D_BOTH(f, x, y) ((dvec){f((x).a, (y).a), f((x).b, (y).b)})
#define d_load(p) ((dvec){_mm256_loadu_pd(p), _mm256_loadu_pd((p) + 4)})
static inline void d_store(double* p, dvec v) {
    _mm256_storeu_pd(p, v.a);
    _mm256_storeu_pd(p + 4, v.b);
}
static inline dvec d_set1(double f) {
    __m256d v = _mm256_set1_pd(f);
    return (dvec){v, v};
}
static inline dvec d_add(dvec x, dvec y) { return D_BOTH(_mm256_add_pd, x, y); }
static inline dvec d_sub(dvec x, dvec y) { return D_BOTH(_mm256_sub_pd, x, y); }
static inline dvec d_mul(dvec x, dvec y) { return D_BOTH(_mm256_mul_pd, x, y); }
static inline dvec d_min(dvec x, dvec y) { return D_BOTH(_mm256_min_pd, x, y); }
static inline dvec d_max(dvec x, dvec y) { return D_BOTH(_mm256_max_pd, x, y); }
static inline dvec widen_8(__m256 v) {
    return (dvec){_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
}
static inline dvec d_low(vec v) { return widen_8(v.a); }
static inline dvec d_high(vec v) { return widen_8(v.b); }
static inline dvec d_keep_from(dvec x, double low, dvec y) {
    __m256d l = _mm256_set1_pd(low);
    return (dvec){_mm256_and_pd(_mm256_cmp_pd(x.a, l, _CMP_GE_OQ), y.a),
                  _mm256_and_pd(_mm256_cmp_pd(x.b, l, _CMP_GE_OQ), y.b)};
}
/* The 32-bit halves of the doubles to move to the front, by the mask of four comparisons. */
static const int32_t fronts[16][8] = {
    {0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0}, {2, 3, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 0, 0, 0, 0},
    {4, 5, 0, 0, 0, 0, 0, 0}, {0, 1, 4, 5, 0, 0, 0, 0}, {2, 3, 4, 5, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5, 0, 0},
    {6, 7, 0, 0, 0, 0, 0, 0}, {0, 1, 6, 7, 0, 0, 0, 0}, {2, 3, 6, 7, 0, 0, 0, 0}, {0, 1, 2, 3, 6, 7, 0, 0},
    {4, 5, 6, 7, 0, 0, 0, 0}, {0, 1, 4, 5, 6, 7, 0, 0}, {2, 3, 4, 5, 6, 7, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7},
};
static inline int compress_4(double* out, __m256d x, double low, double high) {
    int some = _mm256_movemask_pd(_mm256_and_pd(_mm256_cmp_pd(x, _mm256_set1_pd(low), _CMP_GE_OQ),
                                                _mm256_cmp_pd(x, _mm256_set1_pd(high), _CMP_LT_OQ)));
    __m256i front = _mm256_loadu_si256((const __m256i*)fronts[some]);
    _mm256_storeu_pd(out, _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(x), front)));
    return __builtin_popcount((unsigned)some);
}
static inline int d_compress(double* out, dvec x, double low, double high) {
    int n = compress_4(out, x.a, low, high);
    return n + compress_4(out + n, x.b, low, high);
}

static inline int d_any_below(dvec x, dvec y) {
    __m256d below = _mm256_or_pd(_mm256_cmp_pd(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_pd(x.b, y.b, _CMP_LT_OQ));
    return _mm256_movemask_pd(below) != 0;
}

typedef struct wvec {
    __m256i a, b;
} wvec;
#define W_BOTH(f, x, y) ((wvec){f((x).a, (y).a), f((x).b, (y).b)})
static inline wvec w_set1(uint64_t n) {
    __m256i v = _mm256_set1_epi64x((long long)n);
    return (wvec){v, v};
}
static inline wvec w_count(uint64_t from) {
    wvec v = w_set1(from), more = {_mm256_set_epi64x(3, 2, 1, 0), _mm256_set_epi64x(7, 6, 5, 4)};
    return W_BOTH(_mm256_add_epi64, v, more);
}
static inline wvec w_mul_low(wvec x, wvec y) { return W_BOTH(_mm256_mul_epu32, x, y); }
static inline wvec w_high(wvec x) { return (wvec){_mm256_srli_epi64(x.a, 32), _mm256_srli_epi64(x.b, 32)}; }
static inline wvec w_xor(wvec x, wvec y) { return W_BOTH(_mm256_xor_si256, x, y); }
static inline wvec w_and(wvec x, wvec y) { return W_BOTH(_mm256_and_si256, x, y); }
/* build the bits of 2^52 + x, then subtract 2^52 */
static inline dvec w_to_double(wvec x) {
    wvec low = w_and(x, w_set1(0xffffffff)), exponent = w_set1(0x4330000000000000);
    wvec bits = W_BOTH(_mm256_or_si256, low, exponent);
    dvec wide = {_mm256_castsi256_pd(bits.a), _mm256_castsi256_pd(bits.b)};
    return d_sub(wide, d_set1(0x1p52));
}
