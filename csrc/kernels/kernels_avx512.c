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

#include "kernels_template.h"

const sd_kernels* sdk_table_avx512(void) { return &table_avx512; }
#else
const sd_kernels* sdk_table_avx512(void) { return NULL; }
#endif
