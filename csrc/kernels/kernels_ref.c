/* The scalar reference: the same template over an array of 16 floats, in plain C.
 *
 * fmaf is correctly rounded in every C library, so this is slow but correct on any machine. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "parts.h"
#define ISA ref
#define UNPACK sdk_unpack_ref
#define MAX_ROWS 2 /* vectors are arrays, so registers set no limit */
#define MAX_ROWS_WIDE 2
#define MAX_ROWS_DOT 2
#define UNROLL
#define INLINE static inline /* inlining them everywhere would take a third of the build */

#include "plain_template.h"

typedef struct vec {
    float f[SD_LANES];
} vec;
#define EACH(expression)                                      \
    vec r;                                                    \
    for (int i = 0; i < SD_LANES; i++) r.f[i] = (expression); \
    return r
static inline vec v_load(const float* p) { EACH(p[i]); }
static inline void v_store(float* p, vec v) { memcpy(p, v.f, sizeof v.f); }
static inline vec v_set1(float f) { EACH(f); }
static inline vec v_add(vec x, vec y) { EACH(x.f[i] + y.f[i]); }
static inline vec v_sub(vec x, vec y) { EACH(x.f[i] - y.f[i]); }
static inline vec v_mul(vec x, vec y) { EACH(x.f[i] * y.f[i]); }
static inline vec v_div(vec x, vec y) { EACH(x.f[i] / y.f[i]); }
/* like the x86 instructions: returns the second operand if either is NaN */
static inline vec v_max(vec x, vec y) { EACH(x.f[i] > y.f[i] ? x.f[i] : y.f[i]); }
static inline vec v_min(vec x, vec y) { EACH(x.f[i] < y.f[i] ? x.f[i] : y.f[i]); }
static inline vec v_abs(vec x) { EACH(fabsf(x.f[i])); }
static inline vec v_fma(vec x, vec y, vec z) { EACH(fmaf(x.f[i], y.f[i], z.f[i])); }
static inline vec v_round(vec x) { EACH(rintf(x.f[i])); }
static inline float pow2_1(float n) {
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline vec v_times_pow2(vec x, vec n) { EACH(x.f[i] * pow2_1(n.f[i])); }
static inline vec v_keep_from(vec x, float low, vec y) { EACH(x.f[i] >= low ? y.f[i] : 0.0f); }

static inline int v_any_from(vec x, float low) {
    int any = 0;
    for (int i = 0; i < SD_LANES; i++) any |= x.f[i] >= low;
    return any;
}

typedef struct dvec {
    double f[8];
} dvec;
#define D_EACH(expression)                             \
    dvec r;                                            \
    for (int i = 0; i < 8; i++) r.f[i] = (expression); \
    return r
static inline dvec d_load(const double* p) { D_EACH(p[i]); }
static inline void d_store(double* p, dvec v) { memcpy(p, v.f, sizeof v.f); }
static inline dvec d_set1(double f) { D_EACH(f); }
static inline dvec d_add(dvec x, dvec y) { D_EACH(x.f[i] + y.f[i]); }
static inline dvec d_sub(dvec x, dvec y) { D_EACH(x.f[i] - y.f[i]); }
static inline dvec d_mul(dvec x, dvec y) { D_EACH(x.f[i] * y.f[i]); }
static inline dvec d_min(dvec x, dvec y) { D_EACH(x.f[i] < y.f[i] ? x.f[i] : y.f[i]); }
static inline dvec d_max(dvec x, dvec y) { D_EACH(x.f[i] > y.f[i] ? x.f[i] : y.f[i]); }
static inline dvec d_low(vec v) { D_EACH(v.f[i]); }
static inline dvec d_high(vec v) { D_EACH(v.f[i + 8]); }
static inline dvec d_keep_from(dvec x, double low, dvec y) { D_EACH(x.f[i] >= low ? y.f[i] : 0.0); }
static inline int d_compress(double* out, dvec x, double low, double high) {
    int n = 0;
    for (int i = 0; i < 8; i++)
        if (x.f[i] >= low && x.f[i] < high) out[n++] = x.f[i];
    return n;
}

#include "plain_vector_template.h"

#include "floats_template.h"

#include "dots_template.h"

#include "loading_template.h"
