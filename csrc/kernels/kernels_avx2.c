/* AVX2 with FMA: the vector of 16 is two registers; 12 sums, two weights and a broadcast. */
#include <math.h>

#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#define ISA avx2
#define ISA_NAME "avx2"
#define MAX_ROWS 6
#define MAX_ROWS_WIDE 2

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
static inline vec v_pow2(vec n) { return (vec){pow2_8(n.a), pow2_8(n.b)}; }
static inline vec v_keep_from(vec x, float low, vec y) {
    __m256 l = _mm256_set1_ps(low);
    return (vec){_mm256_and_ps(_mm256_cmp_ps(x.a, l, _CMP_GE_OQ), y.a),
                 _mm256_and_ps(_mm256_cmp_ps(x.b, l, _CMP_GE_OQ), y.b)};
}

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
/* Halves of the doubles to move to the front, by the mask of four comparisons. */
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

#include "kernels_template.h"

const sd_kernels* sdk_table_avx2(void) { return &table_avx2; }
#else
const sd_kernels* sdk_table_avx2(void) { return NULL; }
#endif
