#include "quantise.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"
#include "half.h"
#include "interrupt.h"
#include "pool.h"

#define LANES 8 /* sums side by side, so that compilers take vectors */
#define MOST 32 /* inputs of a sub-block at most */

/* To nearest even, of |x| < 2²². */
static float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }

static float clamped(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

static float sum_of(const float lanes[LANES]) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

/* ------------------------------------------------------------- codes from 0 on, a scale and a minimum */

/* x ≈ scale · q − low, low at least 0. */
typedef struct affine {
    float scale, low;
} affine;

/* Weighted square error of codes 0 … most under a law, each code the nearest. */
static float affine_error(const float* x, const float* w, float most, affine law) {
    float inverse = law.scale > 0.0f ? 1.0f / law.scale : 0.0f, errors[LANES] = {0};
    for (int i = 0; i < MOST; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float q = clamped(rounded((x[i + j] + law.low) * inverse), 0.0f, most);
            float error = law.scale * q - law.low - x[i + j];
            errors[j] += w[i + j] * error * error;
        }
    return sum_of(errors);
}

/* The best law for the codes that a grid of steps per unit of x, from `low` on, gives. */
static affine affine_fit(const float* x, const float* w, float most, float low, float steps) {
    float sw[LANES] = {0}, sq[LANES] = {0}, sqq[LANES] = {0}, sx[LANES] = {0}, sxq[LANES] = {0};
    for (int i = 0; i < MOST; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j], weight = w[i + j];
            float q = clamped(rounded((v + low) * steps), 0.0f, most), wq = weight * q;
            sw[j] += weight, sq[j] += wq, sqq[j] += wq * q, sx[j] += weight * v, sxq[j] += wq * v;
        }
    float n = sum_of(sw), q = sum_of(sq), qq = sum_of(sqq), v = sum_of(sx), qv = sum_of(sxq);
    float determinant = n * qq - q * q;
    affine law = {0.0f, 0.0f};
    if (determinant > 0.0f) {
        law.scale = (n * qv - v * q) / determinant;
        law.low = (q * qv - v * qq) / determinant;
    }
    if (!(law.low > 0.0f)) law = (affine){qq > 0.0f ? qv / qq : 0.0f, 0.0f};
    return law;
}

static affine best_affine(const float* x, const float* w, float most) {
    enum { TRIALS = 24 };
    float least = 0.0f, largest = x[0];
    for (int i = 0; i < MOST; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    float range = largest - least;
    if (!(range > 0.0f)) return (affine){0.0f, -least};
    affine best = {range / most, -least};
    float error = affine_error(x, w, most, best);
    for (int i = 0; i < TRIALS; i++) {
        float steps = (most - 1.2f + 0.1f * (float)i) / range;
        affine law = affine_fit(x, w, most, -least, steps);
        if (!(law.scale > 0.0f)) continue;
        float found = affine_error(x, w, most, law);
        if (found < error) error = found, best = law;
    }
    return best;
}

/* ---------------------------------------------------------------------- codes around 0, a scale */

/* The scale, of either sign, of the least error of codes −most … most − 1; n inputs. */
static float best_scale(const float* x, const float* w, int n, float most) {
    float extreme = 0.0f;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (fabsf(extreme) < 1e-30f) return 0.0f;
    float scale = 0.0f, gain = 0.0f;
    for (int trial = -9; trial <= 9; trial++) {
        float steps = -(most + 0.1f * (float)trial) / extreme, xq[LANES] = {0}, qq[LANES] = {0};
        for (int i = 0; i < n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float q = clamped(rounded(x[i + j] * steps), -most, most - 1.0f), wq = w[i + j] * q;
                xq[j] += wq * x[i + j], qq[j] += wq * q;
            }
        float a = sum_of(xq), b = sum_of(qq);
        if (b > 0.0f && a * a > gain * b) gain = a * a / b, scale = a / b;
    }
    return scale;
}

/* ------------------------------------------------------------------------------------------- blocks */

/* Weights of errors in a block: large numbers count for more, by the importance of their inputs. */
static void weigh(const float* x, const float* importance, float* w) {
    double squares = 0.0;
    for (int i = 0; i < SD_K_BLOCK; i++) squares += (double)x[i] * (double)x[i];
    float mean = (float)(squares / SD_K_BLOCK), size = sqrtf(mean);
    for (int i = 0; i < SD_K_BLOCK; i++)
        w[i] = importance ? importance[i] * sqrtf(mean + x[i] * x[i]) : size + fabsf(x[i]);
}

static uint16_t put_half(unsigned char* at, float value) {
    uint16_t half = sd_f16_from_float(value);
    memcpy(at, &half, sizeof half);
    return half;
}

static int nearest(float value, float step, int most) {
    if (!(step > 0.0f)) return 0;
    return (int)clamped(rounded(value / step), 0.0f, (float)most);
}

/* d, minimum's d, 12 bytes of scales and minima of 6 bits; then, in Q5_K, high bits; then codes of 4 bits. */
static void put_affine(const float* x, const float* importance, int bits, unsigned char* out) {
    enum { SUBS = SD_K_BLOCK / MOST };
    float w[SD_K_BLOCK], largest_scale = 0.0f, largest_low = 0.0f;
    int most = (1 << bits) - 1, scales[SUBS], lows[SUBS];
    affine laws[SUBS];
    weigh(x, importance, w);
    for (int s = 0; s < SUBS; s++) {
        laws[s] = best_affine(x + MOST * s, w + MOST * s, (float)most);
        largest_scale = fmaxf(largest_scale, laws[s].scale);
        largest_low = fmaxf(largest_low, laws[s].low);
    }
    float d = sd_float_from_f16(put_half(out, largest_scale / 63.0f));
    float d_low = sd_float_from_f16(put_half(out + 2, largest_low / 63.0f));
    memset(out + 4, 0, sd_number_bytes(bits == 4 ? SD_Q4_K : SD_Q5_K) - 4);
    for (int s = 0; s < SUBS; s++) {
        scales[s] = nearest(laws[s].scale, d, 63);
        lows[s] = nearest(laws[s].low, d_low, 63);
    }
    unsigned char *packed = out + 4, *high = out + 16, *low = bits == 4 ? high : high + MOST;
    for (int s = 0; s < SUBS; s++) {
        if (s < 4) {
            packed[s] |= (unsigned char)scales[s];
            packed[s + 4] |= (unsigned char)lows[s];
        } else {
            packed[s + 4] |= (unsigned char)((scales[s] & 15) | (lows[s] & 15) << 4);
            packed[s - 4] |= (unsigned char)(scales[s] >> 4 << 6);
            packed[s] |= (unsigned char)(lows[s] >> 4 << 6);
        }
        float scale = d * (float)scales[s], minimum = d_low * (float)lows[s];
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        for (int i = 0; i < MOST; i++) {
            int q = (int)clamped(rounded((x[MOST * s + i] + minimum) * inverse), 0.0f, (float)most);
            low[MOST * (s / 2) + i] |= (unsigned char)((q & 15) << (s % 2 * 4));
            if (bits == 5) high[i] |= (unsigned char)((q >> 4) << s);
        }
    }
}

/* Codes' low 4 bits, their high 2 bits, 16 scales of 8 bits with sign, d. */
static void put_centred(const float* x, const float* importance, unsigned char* out) {
    enum { SUB = 16, SUBS = SD_K_BLOCK / SUB };
    float w[SD_K_BLOCK], scales[SUBS], extreme = 0.0f;
    int codes[SD_K_BLOCK];
    weigh(x, importance, w);
    for (int s = 0; s < SUBS; s++) {
        scales[s] = best_scale(x + SUB * s, w + SUB * s, SUB, 32.0f);
        if (fabsf(scales[s]) > fabsf(extreme)) extreme = scales[s];
    }
    memset(out, 0, sd_number_bytes(SD_Q6_K));
    float d = sd_float_from_f16(put_half(out + 208, extreme / -128.0f));
    for (int s = 0; s < SUBS; s++) {
        int scale = d == 0.0f ? 0 : (int)clamped(rounded(scales[s] / d), -128.0f, 127.0f);
        out[192 + s] = (unsigned char)(int8_t)scale;
        float step = d * (float)scale, inverse = step == 0.0f ? 0.0f : 1.0f / step;
        for (int i = SUB * s; i < SUB * (s + 1); i++)
            codes[i] = (int)clamped(rounded(x[i] * inverse), -32.0f, 31.0f) + 32;
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) {
            const int* q = codes + 128 * half + i;
            unsigned char *low = out + 64 * half + i, *high = out + 128 + 32 * half + i;
            low[0] = (unsigned char)((q[0] & 15) | (q[64] & 15) << 4);
            low[32] = (unsigned char)((q[32] & 15) | (q[96] & 15) << 4);
            *high = (unsigned char)(q[0] >> 4 | q[32] >> 4 << 2 | q[64] >> 4 << 4 | q[96] >> 4 << 6);
        }
}

typedef struct job {
    sd_number type;
    const float *x, *importance; /* borrowed */
    int n_in;
    unsigned char* out; /* borrowed */
    int first;          /* row */
} job;

static void put_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const job* j = argument;
    for (int r = j->first + first; r < j->first + end; r++) {
        const float* x = j->x + (ptrdiff_t)r * j->n_in;
        unsigned char* out =
            j->out + (ptrdiff_t)r * (j->n_in / SD_K_BLOCK) * (ptrdiff_t)sd_number_bytes(j->type);
        for (int k = 0; k < j->n_in; k += SD_K_BLOCK, out += sd_number_bytes(j->type)) {
            const float* importance = j->importance ? j->importance + k : NULL;
            if (j->type == SD_Q6_K)
                put_centred(x + k, importance, out);
            else
                put_affine(x + k, importance, j->type == SD_Q4_K ? 4 : 5, out);
        }
    }
}

sd_status sd_quantise(sd_number type, const float* x, int n_rows, int n_in, const float* importance,
                      unsigned char* out, int n_threads) {
    enum { PIECE = 1 << 18 }; /* weights between two looks for an interruption */
    job j = {type, x, importance, n_in, out, 0};
    int piece = PIECE / n_in + n_threads;
    for (; j.first < n_rows; j.first += piece) {
        sd_status status = sd_interrupted();
        if (status != SD_OK) return status;
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, n_rows - j.first < piece ? n_rows - j.first : piece, 1, put_rows, &j);
        sd_team_close(&team);
    }
    return SD_OK;
}
