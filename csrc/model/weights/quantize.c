/* Rows as blocks of GGUF files: Q4_K, Q5_K, Q6_K, and Q8_0 and Q4_0 with the codes of int8 and int4. */
#include "pack.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"
#include "half.h"
#include "interrupt.h"
#include "pool.h"

#define MOST SD_BLOCK /* most inputs of a sub-block */
#define K_BLOCK 256

/* Round |x| < 2²² to nearest even. */
static float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }
static float clamped(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

/* Error weights of a block: large numbers count for more, scaled by the importance of their inputs. */
static void weigh(const float* x, const float* importance, float* w) {
    double squares = 0.0;
    for (int i = 0; i < K_BLOCK; i++) squares += (double)x[i] * (double)x[i];
    float mean = (float)(squares / K_BLOCK), size = sqrtf(mean);
    for (int i = 0; i < K_BLOCK; i++)
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
    enum { SUBS = K_BLOCK / MOST };
    float w[K_BLOCK], wanted[SUBS], wanted_lows[SUBS], largest_scale = 0.0f, largest_low = 0.0f;
    int most = (1 << bits) - 1, scales[SUBS], lows[SUBS];
    weigh(x, importance, w);
    for (int s = 0; s < SUBS; s++) {
        sd_kernels_get()->affine_code(x + MOST * s, w + MOST * s, (float)most, &wanted[s], &wanted_lows[s]);
        largest_scale = fmaxf(largest_scale, wanted[s]);
        largest_low = fmaxf(largest_low, wanted_lows[s]);
    }
    float d = sd_float_from_f16(put_half(out, largest_scale / 63.0f));
    float d_low = sd_float_from_f16(put_half(out + 2, largest_low / 63.0f));
    memset(out + 4, 0, sd_number_bytes(bits == 4 ? SD_Q4_K : SD_Q5_K) - 4);
    for (int s = 0; s < SUBS; s++) {
        scales[s] = nearest(wanted[s], d, 63);
        lows[s] = nearest(wanted_lows[s], d_low, 63);
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
static void put_centered(const float* x, const float* importance, unsigned char* out) {
    enum { SUB = 16, SUBS = K_BLOCK / SUB };
    float w[K_BLOCK], scales[SUBS], extreme = 0.0f;
    int codes[K_BLOCK];
    weigh(x, importance, w);
    for (int s = 0; s < SUBS; s++) {
        scales[s] = sd_kernels_get()->centered_code(x + SUB * s, w + SUB * s);
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

/* Quantize 32 inputs of up to 32 rows, `stride` numbers apart, with the packing kernels: a scale in f16, then
 * 32 signed codes or, in Q4_0, the two halves of the codes + 8 side by side. Blocks of the rows are row_bytes
 * apart. Returns the first row with a number that is too large, or −1. */
static int put_panel(sd_number type, const float* x, ptrdiff_t stride, int n_rows, unsigned char* out,
                     size_t row_bytes) {
    float columns[SD_BLOCK][SD_PANEL] = {{0}};
    uint8_t panel[SD_INT8_BLOCK_BYTES];
    const int is_int8 = type == SD_Q8_0;
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < SD_BLOCK; i++) columns[i][r] = x[r * stride + i];
    const float (*numbers)[SD_PANEL] = (const float (*)[SD_PANEL])columns;
    const sd_kernels* kernels = sd_kernels_get();
    int bad = is_int8 ? kernels->quantize_int8(numbers, panel) : kernels->quantize_int4(numbers, panel);
    if (bad >= 0) return bad;
    const uint8_t* scales = panel + (is_int8 ? SD_BLOCK * SD_PANEL : SD_BLOCK * SD_PANEL / 2);
    for (int r = 0; r < n_rows; r++, out += row_bytes) {
        memcpy(out, scales + 2 * r, 2);
        uint8_t codes[SD_BLOCK];
        for (int i = 0; i < SD_BLOCK; i++)
            codes[i] = is_int8 ? panel[i / 4 * 4 * SD_PANEL + 4 * r + i % 4] ^ 0x80
                               : panel[i / 8 * 4 * SD_PANEL + 4 * r + i % 4] >> (i % 8 / 4 * 4) & 15;
        for (int i = 0; i < SD_BLOCK; i++) {
            if (is_int8)
                out[2 + i] = codes[i];
            else if (i < SD_BLOCK / 2)
                out[2 + i] = (unsigned char)(codes[i] | codes[i + SD_BLOCK / 2] << 4);
        }
    }
    return -1;
}

typedef struct job {
    sd_number type;
    const float *x, *importance; /* borrowed */
    int n_rows, n_in;
    unsigned char* out; /* borrowed */
    int first;          /* panel of rows */
    atomic_int bad_row; /* row + 1 with a number that is too large; 0: none */
} job;

static size_t bytes_of_row(const job* j) {
    return (size_t)(j->n_in / sd_number_block(j->type)) * sd_number_bytes(j->type);
}

static void put_row(const job* j, int r) {
    const float* x = j->x + (ptrdiff_t)r * j->n_in;
    unsigned char* out = j->out + (size_t)r * bytes_of_row(j);
    for (int k = 0; k < j->n_in; k += K_BLOCK, out += sd_number_bytes(j->type)) {
        const float* importance = j->importance ? j->importance + k : NULL;
        if (j->type == SD_Q6_K)
            put_centered(x + k, importance, out);
        else
            put_affine(x + k, importance, j->type == SD_Q4_K ? 4 : 5, out);
    }
}

static void put_panels(void* argument, int thread, int first, int end) {
    (void)thread;
    job* j = argument;
    for (int p = j->first + first; p < j->first + end; p++) {
        int r = p * SD_PANEL, n_rows = j->n_rows - r < SD_PANEL ? j->n_rows - r : SD_PANEL;
        if (sd_number_block(j->type) == K_BLOCK) {
            for (int i = 0; i < n_rows; i++) put_row(j, r + i);
            continue;
        }
        unsigned char* out = j->out + (size_t)r * bytes_of_row(j);
        for (int k = 0; k < j->n_in; k += SD_BLOCK, out += sd_number_bytes(j->type)) {
            const float* x = j->x + (ptrdiff_t)r * j->n_in + k;
            int bad = put_panel(j->type, x, j->n_in, n_rows, out, bytes_of_row(j));
            if (bad >= 0) atomic_store(&j->bad_row, r + bad + 1);
        }
    }
}

int sd_can_quantize(sd_number type) {
    return type == SD_Q8_0 || type == SD_Q4_0 || type == SD_Q4_K || type == SD_Q5_K || type == SD_Q6_K;
}

sd_status sd_quantize(sd_number type, const float* x, int n_rows, int n_in, const float* importance,
                      unsigned char* out, int n_threads) {
    enum { PIECE = 1 << 18 }; /* weights between two checks for an interruption */
    job j = {.type = type, .x = x, .importance = importance, .n_rows = n_rows, .n_in = n_in, .out = out};
    atomic_init(&j.bad_row, 0);
    int n_panels = sd_matrix_panels(n_rows), piece = PIECE / SD_PANEL / n_in + n_threads;
    for (; j.first < n_panels; j.first += piece) {
        SD_TRY(sd_interrupted());
        sd_team team = sd_team_open(n_threads);
        sd_team_run(&team, n_panels - j.first < piece ? n_panels - j.first : piece, 1, put_panels, &j);
        sd_team_close(&team);
    }
    int bad = atomic_load(&j.bad_row);
    if (bad == 0) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "row %d has a value too large for %s", bad - 1, sd_number_names[type]);
}
