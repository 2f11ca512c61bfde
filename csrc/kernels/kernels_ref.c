/* The scalar reference: the same template over an array of 16 floats, in plain C.
 *
 * fmaf is correctly rounded wherever it comes from, so this is slow and right on any machine. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "plain_template.h"

#define ISA ref
#define ISA_NAME "ref"
#define MAX_ROWS 6
#define MAX_ROWS_WIDE 6
#define UNROLL /* the vectors are arrays: there are no registers to fill */

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
/* as the x86 instructions: the second operand wins when either is NaN */
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
static inline vec v_pow2(vec n) { EACH(pow2_1(n.f[i])); }
static inline vec v_keep_from(vec x, float low, vec y) { EACH(x.f[i] >= low ? y.f[i] : 0.0f); }

#include "plain_vector_template.h"

#include "kernels_template.h"

const sd_kernels* sdk_table_ref(void) { return &table_ref; }
