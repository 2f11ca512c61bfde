/* Conversions between f32 and 16-bit floating point numbers, in plain C. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float sd_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sd_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sd_float_from_bf16(uint16_t half) { return sd_float_from_bits((uint32_t)half << 16); }

/* Round to nearest, ties to even; `value` is not NaN. */
static inline uint16_t sd_bf16_from_float(float value) {
    uint32_t bits = sd_bits_of_float(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Convert exactly. Branches only on rare values, so that loops over it vectorize. */
static inline float sd_float_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    /* Rebias the exponent by a multiplication, which is also right for subnormal halves. */
    float value = sd_float_from_bits(magnitude << 13) * 0x1p112f;
    uint32_t bits = sd_bits_of_float(value);
    if (magnitude >= 0x7c00) bits |= 0x7f800000u; /* infinities and NaN */
    return sd_float_from_bits(bits | sign);
}

/* Round to nearest, ties to even; infinity above 65519; `value` is not NaN. */
static inline uint16_t sd_f16_from_float(float value) {
    uint32_t bits = sd_bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) { /* subnormal: adding 1/2 rounds to multiples of 2⁻²⁴ */
        float sum = sd_float_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (sd_bits_of_float(sum) - 0x3f000000u));
    }
    magnitude += 0xc8000fffu + (magnitude >> 13 & 1); /* exponent − 112, then round */
    return (uint16_t)(sign | magnitude >> 13);
}
