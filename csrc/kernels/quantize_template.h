/* Quantization of weights to blocks of int8 and int4: 32 inputs of 32 outputs, several outputs at once.
 *
 * Included by loading_template.h. Uses the compiler's vector types, as wide as a register of the set.
 * Every operation is exact or correctly rounded, so all sets give the same bits. A comparison gives lanes
 * of all ones or zeros. */

#if defined(__AVX512F__)
#define Q_LANES 16
#elif defined(__AVX2__)
#define Q_LANES 8
#else
#define Q_LANES 4
#endif

typedef float q_floats __attribute__((vector_size(4 * Q_LANES)));
typedef int32_t q_words __attribute__((vector_size(4 * Q_LANES)));
typedef int16_t q_halves __attribute__((vector_size(4 * Q_LANES)));
typedef uint16_t q_scales __attribute__((vector_size(2 * Q_LANES)));

INLINE q_words q_load(const float* from) {
    q_words words;
    memcpy(&words, from, sizeof words);
    return words;
}

/* The number of largest magnitude of each output (the first of equal ones), and its magnitude, as bits. As
 * integers they compare like magnitudes, and NaN is the largest. */
typedef struct q_extremes {
    q_words magnitude, number;
} q_extremes;

INLINE q_extremes q_extremes_of(const float (*columns)[SD_PANEL], int at) {
    q_extremes found = {q_load(&columns[0][at]) & 0x7fffffff, q_load(&columns[0][at])};
    for (int i = 1; i < SD_BLOCK; i++) {
        q_words number = q_load(&columns[i][at]), magnitude = number & 0x7fffffff;
        q_words larger = magnitude > found.magnitude;
        found.magnitude = (magnitude & larger) | (found.magnitude & ~larger);
        found.number = (number & larger) | (found.number & ~larger);
    }
    return found;
}

/* Store the outputs' scales, number / divisor as f16 (sd_f16_from_float), and return 1 / scale, 0 for
 * scale 0. `wild` is not 0 in lanes whose scale is infinite. */
INLINE q_floats q_put_scales(q_words numbers, float divisor, uint8_t* scales, int32_t* wild) {
    q_words wanted = (q_words)((q_floats)numbers / divisor);
    q_words magnitude = wanted & 0x7fffffff, sign = wanted & ~0x7fffffff;
    q_words infinite = magnitude >= 0x477ff000, subnormal = magnitude < 0x38800000;
    q_words small = (q_words)((q_floats)magnitude + 0.5f) - 0x3f000000;
    q_words rounded = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    q_words half = (small & subnormal) | (rounded & ~subnormal);
    q_floats scale = (q_floats)((q_words)((q_floats)(half << 13) * 0x1p112f) | sign);
    q_floats inverses = (q_floats)((q_words)(1.0f / scale) & (half != 0));
    q_scales made = __builtin_convertvector(half | (sign >> 16 & 0xffff), q_scales);
    memcpy(scales, &made, sizeof made);
    memcpy(wild, &infinite, sizeof infinite);
    return inverses;
}

/* The outputs' codes of inputs `low` and `high`, in the low and high half of each word: number · inverse,
 * rounded to nearest even and clamped. Adding 1.5 · 2²³ leaves the code in the low bits. This works
 * because no number exceeds 1.5 times the value of its largest code, unless the scale is 0. */
INLINE q_halves q_codes_of(const float* low, const float* high, q_floats inverses, const int lowest,
                           const int highest) {
    const float shift = 12582912.0f;
    q_words a = (q_words)((q_floats)q_load(low) * inverses + shift);
    q_words b = (q_words)((q_floats)q_load(high) * inverses + shift);
    q_halves codes = (q_halves)((a & 0xffff) | b << 16);
    const q_halves least = (q_halves){0} + (int16_t)lowest, most = (q_halves){0} + (int16_t)highest;
    q_halves below = codes<least, above = codes> most;
    return (least & below) | (most & above) | (codes & ~(below | above));
}

/* The first lane whose scale is infinite, or −1. */
INLINE int q_first_wild(const int32_t wild[SD_PANEL]) {
    int32_t any = 0;
    for (int j = 0; j < SD_PANEL; j++) any |= wild[j];
    for (int j = 0; any && j < SD_PANEL; j++)
        if (wild[j]) return j;
    return -1;
}

static int NAME(quantize_int8)(const float (*columns)[SD_PANEL], uint8_t* block) {
    int32_t wild[SD_PANEL];
    for (int at = 0; at < SD_PANEL; at += Q_LANES) {
        q_floats inverses = q_put_scales(q_extremes_of(columns, at).magnitude, 127.0f,
                                         block + SD_BLOCK * SD_PANEL + 2 * at, wild + at);
        for (int i = 0; i < SD_BLOCK; i += 4) {
            q_halves even = q_codes_of(&columns[i][at], &columns[i + 2][at], inverses, -127, 127) + 128;
            q_halves odd = q_codes_of(&columns[i + 1][at], &columns[i + 3][at], inverses, -127, 127) + 128;
            q_halves word = even | odd << 8;
            memcpy(block + i * SD_PANEL + 4 * at, &word, sizeof word);
        }
    }
    return q_first_wild(wild);
}

static int NAME(quantize_int4)(const float (*columns)[SD_PANEL], uint8_t* block) {
    int32_t wild[SD_PANEL];
    for (int at = 0; at < SD_PANEL; at += Q_LANES) {
        /* the element of largest magnitude, with its sign, gets the code of largest magnitude, −8 */
        q_floats inverses = q_put_scales(q_extremes_of(columns, at).number, -8.0f,
                                         block + SD_BLOCK * SD_PANEL / 2 + 2 * at, wild + at);
        for (int s = 0; s < 4; s++) {
            q_halves word = {0};
            UNROLL for (int l = 0; l < 4; l++) { /* inputs l and l + 2 of the low, then the high nibbles */
                int i = 8 * s + (l & 1) + 2 * (l & 2), left = 8 * (l & 1) + 2 * (l & 2);
                word |= (q_codes_of(&columns[i][at], &columns[i + 2][at], inverses, -8, 7) + 8) << left;
            }
            memcpy(block + 4 * SD_PANEL * s + 4 * at, &word, sizeof word);
        }
    }
    return q_first_wild(wild);
}
