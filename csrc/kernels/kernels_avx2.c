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

#include "kernels_template.h"

const sd_kernels* sdk_table_avx2(void) { return &table_avx2; }
#else
const sd_kernels* sdk_table_avx2(void) { return NULL; }
#endif
