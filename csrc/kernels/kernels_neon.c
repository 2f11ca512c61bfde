/* NEON (AArch64): the vector of 16 is four registers. Tested under qemu-user (.ci/aarch64), not on
 * hardware. */
#include <math.h>

#include "parts.h"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>

#include "plain_template.h"

#define ISA neon
#define UNPACK sdk_unpack_neon
#define MAX_ROWS 6
#define MAX_ROWS_WIDE 2

typedef struct vec {
    float32x4_t q[4];
} vec;
#define EACH(expression)                               \
    vec r;                                             \
    for (int i = 0; i < 4; i++) r.q[i] = (expression); \
    return r
static inline vec v_load(const float* p) { EACH(vld1q_f32(p + 4 * i)); }
static inline void v_store(float* p, vec v) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, v.q[i]);
}
static inline vec v_set1(float f) { EACH(vdupq_n_f32(f)); }
static inline vec v_add(vec x, vec y) { EACH(vaddq_f32(x.q[i], y.q[i])); }
static inline vec v_sub(vec x, vec y) { EACH(vsubq_f32(x.q[i], y.q[i])); }
static inline vec v_mul(vec x, vec y) { EACH(vmulq_f32(x.q[i], y.q[i])); }
static inline vec v_div(vec x, vec y) { EACH(vdivq_f32(x.q[i], y.q[i])); }
static inline vec v_max(vec x, vec y) { EACH(vbslq_f32(vcgtq_f32(x.q[i], y.q[i]), x.q[i], y.q[i])); }
static inline vec v_min(vec x, vec y) { EACH(vbslq_f32(vcltq_f32(x.q[i], y.q[i]), x.q[i], y.q[i])); }
static inline vec v_abs(vec x) { EACH(vabsq_f32(x.q[i])); }
static inline vec v_fma(vec x, vec y, vec z) { EACH(vfmaq_f32(z.q[i], x.q[i], y.q[i])); }
static inline vec v_round(vec x) { EACH(vrndnq_f32(x.q[i])); }
static inline vec v_pow2(vec n) {
    EACH(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.q[i]), vdupq_n_s32(127)), 23)));
}
static inline vec v_times_pow2(vec x, vec n) { return v_mul(x, v_pow2(n)); }
static inline vec v_keep_from(vec x, float low, vec y) {
    EACH(
        vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x.q[i], vdupq_n_f32(low)), vreinterpretq_u32_f32(y.q[i]))));
}

static inline int v_any_from(vec x, float low) {
    uint32x4_t any = vcgeq_f32(x.q[0], vdupq_n_f32(low));
    for (int i = 1; i < 4; i++) any = vorrq_u32(any, vcgeq_f32(x.q[i], vdupq_n_f32(low)));
    return vmaxvq_u32(any) != 0;
}

typedef struct dvec {
    float64x2_t q[4];
} dvec;
#define D_EACH(expression)                             \
    dvec r;                                            \
    for (int i = 0; i < 4; i++) r.q[i] = (expression); \
    return r
static inline dvec d_load(const double* p) { D_EACH(vld1q_f64(p + 2 * i)); }
static inline void d_store(double* p, dvec v) {
    for (int i = 0; i < 4; i++) vst1q_f64(p + 2 * i, v.q[i]);
}
static inline dvec d_set1(double f) { D_EACH(vdupq_n_f64(f)); }
static inline dvec d_add(dvec x, dvec y) { D_EACH(vaddq_f64(x.q[i], y.q[i])); }
static inline dvec d_sub(dvec x, dvec y) { D_EACH(vsubq_f64(x.q[i], y.q[i])); }
static inline dvec d_mul(dvec x, dvec y) { D_EACH(vmulq_f64(x.q[i], y.q[i])); }
static inline dvec d_min(dvec x, dvec y) { D_EACH(vbslq_f64(vcltq_f64(x.q[i], y.q[i]), x.q[i], y.q[i])); }
static inline dvec d_max(dvec x, dvec y) { D_EACH(vbslq_f64(vcgtq_f64(x.q[i], y.q[i]), x.q[i], y.q[i])); }
static inline float64x2_t widen_2(float32x4_t v, int high) {
    return high ? vcvt_high_f64_f32(v) : vcvt_f64_f32(vget_low_f32(v));
}
static inline dvec d_low(vec v) { D_EACH(widen_2(v.q[i / 2], i % 2)); }
static inline dvec d_high(vec v) { D_EACH(widen_2(v.q[2 + i / 2], i % 2)); }
static inline dvec d_keep_from(dvec x, double low, dvec y) {
    D_EACH(
        vreinterpretq_f64_u64(vandq_u64(vcgeq_f64(x.q[i], vdupq_n_f64(low)), vreinterpretq_u64_f64(y.q[i]))));
}
static inline int d_compress(double* out, dvec x, double low, double high) {
    double all[8];
    d_store(all, x);
    int n = 0;
    for (int i = 0; i < 8; i++)
        if (all[i] >= low && all[i] < high) out[n++] = all[i];
    return n;
}

#include "plain_vector_template.h"

#include "floats_template.h"

#include "dots_template.h"

#include "loading_template.h"
#endif
