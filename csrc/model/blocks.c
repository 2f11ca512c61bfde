#include "blocks.h"

#include <math.h>
#include <string.h>

#include "coded.h"
#include "half.h"

const char* const sd_number_names[SD_N_NUMBERS] = {"f32",  "f16",    "bf16",   "q8_0", "q4_0", "q4_1",
                                                   "q5_0", "q5_1",   "q2_k",   "q3_k", "q4_k", "q5_k",
                                                   "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};

static const struct {
    int n;
    size_t bytes;
    sd_format format;
} blocks[SD_N_NUMBERS] = {
    [SD_F32] = {1, 4, SD_FORMAT_F32},           [SD_F16] = {1, 2, SD_FORMAT_F32},
    [SD_BF16] = {1, 2, SD_FORMAT_BF16},         [SD_Q8_0] = {32, 34, SD_FORMAT_INT8},
    [SD_Q4_0] = {32, 18, SD_FORMAT_INT4},       [SD_Q4_1] = {32, 20, SD_FORMAT_Q4_1},
    [SD_Q5_0] = {32, 22, SD_FORMAT_Q5_0},       [SD_Q5_1] = {32, 24, SD_FORMAT_Q5_1},
    [SD_Q2_K] = {256, 84, SD_FORMAT_Q2_K},      [SD_Q3_K] = {256, 110, SD_FORMAT_Q3_K},
    [SD_Q4_K] = {256, 144, SD_FORMAT_Q4_K},     [SD_Q5_K] = {256, 176, SD_FORMAT_Q5_K},
    [SD_Q6_K] = {256, 210, SD_FORMAT_Q6_K},     [SD_IQ4_NL] = {32, 18, SD_FORMAT_IQ4_NL},
    [SD_IQ4_XS] = {256, 136, SD_FORMAT_IQ4_XS}, [SD_MXFP4] = {32, 17, SD_FORMAT_MXFP4},
};

int sd_number_block(sd_number number) { return blocks[number].n; }
size_t sd_number_bytes(sd_number number) { return blocks[number].bytes; }
sd_format sd_block_format(sd_number number) { return blocks[number].format; }

/* 32 numbers: their codes as a panel holds them, and what makes numbers of them, in f16 or in bytes. */
typedef struct block {
    uint8_t codes[SD_BLOCK];
    uint16_t d, dmin;             /* f16; of formats without a header scale and minimum themselves */
    uint8_t scales[2], minima[2]; /* of the sub-blocks, as coded.h has them */
} block;

static uint16_t f16_at(const uint8_t* p) { return (uint16_t)(p[0] | p[1] << 8); }

/* Two codes from each of 16 bytes, the low halves first. */
static void halves_of(const uint8_t* q, uint8_t* codes) {
    for (int i = 0; i < 16; i++) {
        codes[i] = q[i] & 15;
        codes[16 + i] = q[i] >> 4;
    }
}

/* Codes of one half of 32 bytes. */
static void half_of(const uint8_t* q, int high, uint8_t* codes) {
    for (int i = 0; i < SD_BLOCK; i++) codes[i] = high ? q[i] >> 4 : q[i] & 15;
}

/* One or two bits of each of n bytes are added to codes, at bit `up`. */
static void add_bits(const uint8_t* from, int n, int shift, int mask, int up, uint8_t* codes) {
    for (int i = 0; i < n; i++) codes[i] |= (uint8_t)((from[i] >> shift & mask) << up);
}

/* Bit i of 4 bytes is added to code i, at bit 4. */
static void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
    for (int i = 0; i < SD_BLOCK; i++) codes[i] |= (uint8_t)((bits[i / 8] >> i % 8 & 1) << 4);
}

/* Scale and minimum of sub-block b of 8, of 6 bits each in 12 bytes. */
static void read_k4_scales(const uint8_t* s, int b, block* to) {
    if (b < 4) {
        to->scales[0] = s[b] & 63;
        to->minima[0] = s[b + 4] & 63;
    } else {
        to->scales[0] = (uint8_t)((s[b + 4] & 15) | s[b - 4] >> 6 << 4);
        to->minima[0] = (uint8_t)(s[b + 4] >> 4 | s[b] >> 6 << 4);
    }
}

/* Scale of sub-block i of 16, of 6 bits in 12 bytes. */
static uint8_t k3_scale(const uint8_t* s, int i) {
    int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4, high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
    return (uint8_t)((low | high << 4) - 32);
}

/* Block of 32 numbers `i` of the 8, or of the only one, of a block of the file. */
static block read_block(sd_number number, const uint8_t* p, int i) {
    block b = {0};
    switch (number) {
    case SD_Q8_0:
        b.d = f16_at(p);
        for (int k = 0; k < SD_BLOCK; k++) b.codes[k] = (uint8_t)(p[2 + k] ^ 0x80);
        break;
    case SD_Q4_0:
    case SD_IQ4_NL: b.d = f16_at(p), halves_of(p + 2, b.codes); break;
    case SD_Q4_1: b.d = f16_at(p), b.dmin = f16_at(p + 2), halves_of(p + 4, b.codes); break;
    case SD_Q5_0: b.d = f16_at(p), halves_of(p + 6, b.codes), add_fifth_bits(p + 2, b.codes); break;
    case SD_Q5_1:
        b.d = f16_at(p), b.dmin = f16_at(p + 2);
        halves_of(p + 8, b.codes), add_fifth_bits(p + 4, b.codes);
        break;
    case SD_Q2_K:
        memcpy(b.scales, p + 2 * i, 2);
        add_bits(p + 16 + i / 4 * 32, SD_BLOCK, i % 4 * 2, 3, 0, b.codes);
        b.d = f16_at(p + 80), b.dmin = f16_at(p + 82);
        break;
    case SD_Q3_K:
        add_bits(p + 32 + i / 4 * 32, SD_BLOCK, i % 4 * 2, 3, 0, b.codes);
        add_bits(p, SD_BLOCK, i, 1, 2, b.codes);
        for (int h = 0; h < 2; h++) b.scales[h] = k3_scale(p + 96, 2 * i + h);
        b.d = f16_at(p + 108);
        break;
    case SD_Q4_K:
        b.d = f16_at(p), b.dmin = f16_at(p + 2);
        read_k4_scales(p + 4, i, &b), half_of(p + 16 + i / 2 * 32, i % 2, b.codes);
        break;
    case SD_Q5_K:
        b.d = f16_at(p), b.dmin = f16_at(p + 2);
        read_k4_scales(p + 4, i, &b), half_of(p + 48 + i / 2 * 32, i % 2, b.codes);
        add_bits(p + 16, SD_BLOCK, i, 1, 4, b.codes);
        break;
    case SD_Q6_K:
        half_of(p + i / 4 * 64 + i % 2 * 32, i % 4 / 2, b.codes);
        add_bits(p + 128 + i / 4 * 32, SD_BLOCK, i % 4 * 2, 3, 4, b.codes);
        memcpy(b.scales, p + 192 + 2 * i, 2);
        b.d = f16_at(p + 208);
        break;
    case SD_IQ4_XS: {
        int low = p[4 + i / 2] >> (i % 2 * 4) & 15, high = f16_at(p + 2) >> (2 * i) & 3;
        b.d = f16_at(p), b.scales[0] = (uint8_t)((low | high << 4) - 32);
        halves_of(p + 8 + 16 * i, b.codes);
        break;
    }
    case SD_MXFP4: b.scales[0] = p[0], halves_of(p + 1, b.codes); break;
    default: break;
    }
    return b;
}

static const uint8_t* block_of(sd_number number, const uint8_t* row, int b, int* i) {
    int per_block = blocks[number].n / SD_BLOCK;
    *i = b % per_block;
    return row + (size_t)(b / per_block) * blocks[number].bytes;
}

/* The value of a code, as a panel holds it, less the offset. */
static int value_of(sd_number number, uint8_t code) {
    switch (number) {
    case SD_Q8_0: return code - 128;
    case SD_Q4_0: return code - 8;
    case SD_Q5_0: return code - 16;
    case SD_Q3_K: return code - 4;
    case SD_Q6_K: return code - 32;
    case SD_IQ4_NL:
    case SD_IQ4_XS: return sd_values_iq4()[code];
    case SD_MXFP4: return sd_values_mxfp4()[code];
    default: return code;
    }
}

static void values_of(sd_number number, const block* b, float* out) {
    float d = sd_float_from_f16(b->d), dmin = sd_float_from_f16(b->dmin);
    for (int k = 0; k < SD_BLOCK; k++) {
        int h = k / 16;
        float scale = d, minimum = 0.0f;
        switch (number) {
        case SD_Q4_1:
        case SD_Q5_1: minimum = dmin; break;
        case SD_Q2_K:
            scale = d * (float)(b->scales[h] & 15), minimum = -(dmin * (float)(b->scales[h] >> 4));
            break;
        case SD_Q4_K:
        case SD_Q5_K: scale = d * (float)b->scales[0], minimum = -(dmin * (float)b->minima[0]); break;
        case SD_Q3_K:
        case SD_Q6_K: scale = d * (float)(int8_t)b->scales[h]; break;
        case SD_IQ4_XS: scale = d * (float)(int8_t)b->scales[0]; break;
        case SD_MXFP4: scale = sd_scale_of_mxfp4(b->scales[0]); break;
        default: break;
        }
        out[k] = (float)value_of(number, b->codes[k]) * scale + minimum; /* the product is exact */
    }
}

void sd_blocks_read(sd_number number, const uint8_t* row, int first, int n, float* out) {
    float values[SD_BLOCK];
    for (int k = first, n_here; k < first + n; k += n_here, out += n_here) {
        int i, at = k % SD_BLOCK;
        const uint8_t* p = block_of(number, row, k / SD_BLOCK, &i);
        const block b = read_block(number, p, i);
        n_here = SD_BLOCK - at < first + n - k ? SD_BLOCK - at : first + n - k;
        values_of(number, &b, values);
        memcpy(out, values + at, (size_t)n_here * sizeof *out);
    }
}

int sd_block_is_finite(sd_number number, const uint8_t* row, int b) {
    float values[SD_BLOCK];
    sd_blocks_read(number, row, b * SD_BLOCK, SD_BLOCK, values);
    for (int k = 0; k < SD_BLOCK; k++)
        if (!isfinite(values[k])) return 0;
    return 1;
}

/* ------------------------------------------------------------------------------------------- to panels */

/* Bits of codes to a plane, where code k is in line k / 4: `width` bits from bit `shift` on, 8 / width lines
 * to a byte. */
static void put_plane(const uint8_t* codes, int shift, int width, uint8_t* plane, int lane) {
    int lines = 8 / width;
    for (int k = 0; k < SD_BLOCK; k++) {
        int line = k / 4, bits = codes[k] >> shift & ((1 << width) - 1);
        plane[line / lines * 4 * SD_PANEL + 4 * lane + k % 4] |= (uint8_t)(bits << line % lines * width);
    }
}

static void put_halves(uint16_t value, uint8_t* at, int lane) { memcpy(at + 2 * lane, &value, sizeof value); }

/* Blocks of int8 and int4. */
static void put_own(sd_number number, const block* from, uint8_t* to, int lane) {
    if (number == SD_Q8_0) {
        for (int k = 0; k < SD_BLOCK; k++) to[k / 4 * 4 * SD_PANEL + 4 * lane + k % 4] = from->codes[k];
        put_halves(from->d, to + SD_BLOCK * SD_PANEL, lane);
    } else {
        put_plane(from->codes, 0, 4, to, lane);
        put_halves(from->d, to + SD_NIBBLES, lane);
    }
}

static void put_coded(sd_format format, const block* from, uint8_t* to, int lane) {
    const sd_coded coded = sd_coded_of(format);
    int pairs = format == SD_FORMAT_Q2_K || format == SD_FORMAT_Q3_K;
    put_plane(from->codes, 0, pairs ? 2 : 4, to, lane);
    to += pairs ? SD_PAIRS : SD_NIBBLES;
    size_t bytes = sd_coded_code_bytes(format) - (size_t)(pairs ? SD_PAIRS : SD_NIBBLES);
    if (bytes > 0) put_plane(from->codes, pairs ? 2 : 4, bytes == SD_PAIRS ? 2 : 1, to, lane);
    to += bytes;
    if (sd_coded_scale_width(format) == 2) {
        put_halves(from->d, to, lane);
        if (coded.has_minimum) put_halves(from->dmin, to + 2 * SD_PANEL, lane);
        return;
    }
    to[lane] = from->scales[0];
    if (coded.n_halves == 2) to[SD_PANEL + lane] = from->scales[1];
    if (coded.n_halves == 1 && coded.has_minimum) to[SD_PANEL + lane] = from->minima[0];
}

void sd_block_put(sd_number number, const uint8_t* row, int b, char* panel, int lane) {
    int i;
    const uint8_t* p = block_of(number, row, b, &i);
    const block from = read_block(number, p, i);
    const sd_format format = sd_block_format(number);
    if (format < SD_N_OWN_FORMATS) {
        put_own(number, &from, (uint8_t*)panel + sd_panel_bytes(format, (size_t)b * SD_BLOCK), lane);
        return;
    }
    size_t header = sd_coded_header_bytes(format), in_part = (size_t)b % SD_PART_BLOCKS;
    uint8_t* part = (uint8_t*)panel + sd_panel_bytes(format, ((size_t)b - in_part) * SD_BLOCK);
    if (header > 0 && in_part == 0) {
        put_halves(from.d, part, lane);
        if (header > 2 * SD_PANEL) put_halves(from.dmin, part + 2 * SD_PANEL, lane);
    }
    put_coded(format, &from, part + header + in_part * sd_coded_block_bytes(format), lane);
}
