/* Names and loads that all kernel templates use.
 *
 * Kernels are written once, over a vector of 16 floats, and compiled once per instruction set, in three
 * parts: floats_template.h, dots_template.h and loading_template.h (parts.h). The including file defines
 *   ISA                     suffix of the names
 *   UNPACK                  the array sdk_unpack_ISA (parts.h)
 *   vec                     16 floats; v_load, v_store, v_set1, v_add, v_sub, v_mul, v_div, v_max,
 *                           v_min, v_fma(a, b, c) = a·b + c, v_round (nearest, ties to even),
 *                           v_times_pow2(a, n) (a · 2^n, a and n normal, n integral in [−126, 127]),
 *                           v_keep_from(x, low, y) = y where x ≥ low, else +0
 *                           v_abs, v_largest_abs (of a vector of absolute values), v_largest, v_store_int8;
 *                           v_store_bf16 (rounds to bf16, stores floats), v_to_bf16 (stores bf16)
 *   MAX_ROWS                rows of a panel block, 2, 6 or 12: its sums must fit the registers
 *   MAX_ROWS_WIDE           most rows for which all 32 outputs are computed at once; above, 16 at a time
 *   and what products_template.h and lines_template.h list
 * Each operation is correctly rounded, so equal sources give equal bits on every set. */
#pragma once

#ifdef __FAST_MATH__
#error "kernels need IEEE arithmetic: build without -ffast-math"
#endif

#include <string.h>

#include "format.h"
#include "kernels.h"
#include "parts.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(base) JOIN(base, ISA)
#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Bytes of a line of codes (format.h). */
enum { LINE_BYTES = 4 * SD_PANEL };

/* ------------------------------------------------------------------ loads of n < 16 elements */

INLINE vec load_some(const float* x, int n) {
    float buffer[SD_LANES] = {0};
    memcpy(buffer, x, (size_t)n * sizeof *x);
    return v_load(buffer);
}

INLINE void store_some(float* y, vec v, int n) {
    float buffer[SD_LANES];
    v_store(buffer, v);
    memcpy(y, buffer, (size_t)n * sizeof *y);
}

/* for (i = 0, 16, … < n), with n_here = min(16, n − i) */
#define FOR_EACH_16(n, i, n_here)                                      \
    for (int i = 0, n_here = (n) < SD_LANES ? (n) : SD_LANES; i < (n); \
         i += SD_LANES, n_here = (n) - i < SD_LANES ? (n) - i : SD_LANES)
#define LOAD(x, i, n_here) (n_here == SD_LANES ? v_load((x) + (i)) : load_some((x) + (i), n_here))
#define STORE(y, i, n_here, v)                \
    do {                                      \
        if (n_here == SD_LANES)               \
            v_store((y) + (i), v);            \
        else                                  \
            store_some((y) + (i), v, n_here); \
    } while (0)

INLINE float tree_sum(vec v) {
    float lanes[SD_LANES];
    v_store(lanes, v);
    return sdk_tree_sum(lanes);
}
