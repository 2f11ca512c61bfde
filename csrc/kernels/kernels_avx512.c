/* AVX-512: one register is the vector of 16; 24 sums, two weights and an embedded broadcast. */
#include <math.h>

#include "kernels.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#define ISA avx512
#define ISA_NAME "avx512"
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
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_round(a) _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
static inline vec v_pow2(vec n) {
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
}
static inline vec v_keep_from(vec x, float low, vec y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_GE_OQ), y);
}

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
/* compressed in a register: the compressing store is microcode on some processors */
static inline int d_compress(double* out, dvec x, double low, double high) {
    __mmask8 some = _mm512_cmp_pd_mask(x, _mm512_set1_pd(low), _CMP_GE_OQ) &
                    _mm512_cmp_pd_mask(x, _mm512_set1_pd(high), _CMP_LT_OQ);
    _mm512_storeu_pd(out, _mm512_maskz_compress_pd(some, x));
    return __builtin_popcount(some);
}

#include "kernels_template.h"

const sd_kernels* sdk_table_avx512(void) { return &table_avx512; }
#else
const sd_kernels* sdk_table_avx512(void) { return NULL; }
#endif
