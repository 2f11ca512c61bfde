/* Operations in plain C, for the reference and NEON: bf16 and dot products of codes. */
#pragma once

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "half.h"

/* ---- bf16: pairs are emulated, subnormals flushed as VDPBF16PS does */
#define FLUSHED(statement) statement
#define FLUSHES_ALL 0
static inline float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x; }
/* Flush r = fma(x, y, z) of bf16 factors. The instructions round to 24 bits before they test for a subnormal
 * result. So a sum below 2^-126 - 2^-151 is flushed even if r, rounded to a multiple of 2^-149, is 2^-126.
 * The product is exact in double, and so is a sum near that bound. */
static inline float flushed_sum(float r, float x, float y, float z) {
    return fabs((double)x * y + z) < 0x1.ffffffp-127 ? copysignf(0.0f, r) : r;
}
static inline float wide_flushed(uint16_t x) { return flushed(sd_float_from_bf16(x)); }
static inline float rounded_bf16(float x) { return sd_float_from_bf16(sd_bf16_from_float(flushed(x))); }

/* ---- int8 and int4 */
#define UNIT_LANES 16
#ifndef MAX_ROWS_DOT
#define MAX_ROWS_DOT 6
#endif
#define MAX_ROWS_DOT_WIDE MAX_ROWS_DOT
#define OFFSET8 128
#define OFFSET4 8
typedef struct unit {
    float f[UNIT_LANES];
} unit;
typedef struct iunit {
    int32_t i[UNIT_LANES];
} iunit;
typedef struct codes8 {
    uint8_t c[UNIT_LANES * 4];
} codes8, codes4;
#define EACH_LANE(type, field, expression)                          \
    type r;                                                         \
    for (int l = 0; l < UNIT_LANES; l++) r.field[l] = (expression); \
    return r
static inline unit u_set1(float f) { EACH_LANE(unit, f, f); }
static inline unit u_zero(void) { return u_set1(0.0f); }
static inline unit u_load(const float* p) { EACH_LANE(unit, f, p[l]); }
static inline void u_store(float* p, unit u) { memcpy(p, u.f, sizeof u.f); }
static inline unit u_sub(unit a, unit b) { EACH_LANE(unit, f, a.f[l] - b.f[l]); }
static inline unit u_fma(unit a, unit b, unit c) { EACH_LANE(unit, f, fmaf(a.f[l], b.f[l], c.f[l])); }
static inline unit u_fnma(unit a, unit b, unit c) { EACH_LANE(unit, f, fmaf(-a.f[l], b.f[l], c.f[l])); }
static inline unit u_mul(unit a, unit b) { EACH_LANE(unit, f, a.f[l] * b.f[l]); }
static inline unit u_bytes(const uint8_t* p) { EACH_LANE(unit, f, (float)p[l]); }
static inline unit u_signed_bytes(const uint8_t* p) { EACH_LANE(unit, f, (float)(int8_t)p[l]); }
static inline unit u_half(const uint16_t* p) { EACH_LANE(unit, f, sd_float_from_f16(p[l])); }
static inline iunit i_set1(int32_t i) { EACH_LANE(iunit, i, i); }
static inline unit u_of_bits(iunit i) { EACH_LANE(unit, f, sd_float_from_bits((uint32_t)i.i[l])); }
static inline codes8 c8_load(const uint8_t* p) {
    codes8 r;
    memcpy(r.c, p, sizeof r.c);
    return r;
}
#define c4_load c8_load
static inline codes4 c4_low(const uint8_t* p) {
    codes4 r;
    for (int b = 0; b < UNIT_LANES * 4; b++) r.c[b] = p[b] & 15;
    return r;
}
static inline codes4 c4_high(const uint8_t* p) {
    codes4 r;
    for (int b = 0; b < UNIT_LANES * 4; b++) r.c[b] = p[b] >> 4;
    return r;
}
static inline codes4 c4_with(codes4 codes, const uint8_t* p, int left, int mask) {
    for (int b = 0; b < UNIT_LANES * 4; b++)
        codes.c[b] |= (uint8_t)((left < 0 ? p[b] >> -left : p[b] << left) & mask);
    return codes;
}
static inline iunit add_dot(iunit sum, codes8 w, const int8_t* x) {
    for (int l = 0; l < UNIT_LANES; l++)
        for (int b = 0; b < 4; b++) sum.i[l] += w.c[4 * l + b] * x[b];
    return sum;
}
#define dot8(sum, w, p) ((sum) = add_dot(sum, w, p))
#define dot4 dot8

/* Store 32 codes, rounded to nearest even and clamped to ± 127, and the sums of both halves. */
static inline void store_codes(int8_t* to, const float* x, int sums[2]) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 32; i++) {
        float r = rintf(x[i]);
        to[i] = (int8_t)(r < -127.0f ? -127.0f : r > 127.0f ? 127.0f : r);
        sums[i / 16] += to[i];
    }
}
