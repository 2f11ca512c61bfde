/* Conversion of GGUF blocks to panels and to floats.
 *
 * Included by loading_template.h. The blocks of n rows at the same position are transposed: word w of 4 bytes
 * of row j is words[n · w + j]. So rows are interleaved as in a panel, and a register holds several of them.
 * n is SD_PANEL, or 1: then the words are the block's bytes. */

#define BLOCKS_UNROLL _Pragma("GCC unroll 8") /* block numbers become constants in inlined code */

/* 32 numbers of each row: their codes as in a panel, one byte each, codes 4l … 4l + 3 of row j in
 * codes[n · l + j], and their scales and minima, in f16 or bytes. */
typedef struct block_lanes {
    uint32_t codes[SD_BLOCK / 4 * SD_PANEL];
    uint16_t d[SD_PANEL], dmin[SD_PANEL]; /* f16; scale and minimum themselves in formats without a header */
    uint8_t scales[2][SD_PANEL], minima[SD_PANEL]; /* of the sub-blocks, as in format.h */
} block_lanes;

/* The byte x in each byte of a word. */
#define BYTES(x) (0x01010101u * (x))

INLINE uint32_t byte_at(const uint32_t* words, const int n, const int at, const int j) {
    return words[n * (at / 4) + j] >> at % 4 * 8 & 255;
}
INLINE void halves_at(const uint32_t* words, const int n, const int at, uint16_t* to) {
    for (int j = 0; j < n; j++) to[j] = (uint16_t)(words[n * (at / 4) + j] >> at % 4 * 8);
}

/* Return `count` words at byte `at`: in place if aligned, else assembled in `buffer`. */
INLINE const uint32_t* words_at(const uint32_t* words, const int n, const int at, const int count,
                                uint32_t* buffer) {
    const int right = at % 4 * 8;
    words += n * (at / 4);
    if (right == 0) return words;
    for (int k = 0; k < n * count; k++) buffer[k] = words[k] >> right | words[n + k] << (32 - right);
    return buffer;
}

/* Read two codes from each of the 16 bytes at `at`, the low nibbles first. */
INLINE void halves_of(const uint32_t* words, const int n, const int at, block_lanes* to) {
    uint32_t buffer[4 * SD_PANEL];
    const uint32_t* q = words_at(words, n, at, 4, buffer);
    for (int k = 0; k < 4 * n; k++) {
        to->codes[k] = q[k] & BYTES(15);
        to->codes[4 * n + k] = q[k] >> 4 & BYTES(15);
    }
}

/* Read bits of codes from the 32 bytes at `at`: shift right by `right`, apply `mask`, shift left by `up`.
 * `first`: overwrite the codes, else combine by OR. */
INLINE void bits_of(const uint32_t* words, const int n, const int at, const int right, const uint32_t mask,
                    const int up, const int first, block_lanes* to) {
    const uint32_t* q = words + n * (at / 4);
    for (int k = 0; k < 8 * n; k++) {
        uint32_t bits = (q[k] >> right & BYTES(mask)) << up;
        to->codes[k] = first ? bits : to->codes[k] | bits;
    }
}

/* Set bit 4 of code i to bit i of the 4 bytes at `at`. */
INLINE void add_fifth_bits(const uint32_t* words, const int n, const int at, block_lanes* to) {
    uint32_t buffer[SD_PANEL];
    const uint32_t* bits = words_at(words, n, at, 1, buffer);
    BLOCKS_UNROLL for (int l = 0; l < 8; l++) for (int j = 0; j < n; j++) {
        uint32_t four = bits[j] >> 4 * l & 15;
        to->codes[n * l + j] |= ((four | four << 7 | four << 14 | four << 21) & BYTES(1)) << 4;
    }
}

/* Read scale and minimum of sub-block b of 8, 6 bits each, from the 12 bytes after d and dmin. */
INLINE void read_k4_scales(const uint32_t* words, const int n, const int b, block_lanes* to) {
    const int s = 4;
    for (int j = 0; j < n; j++) {
        if (b < 4) {
            to->scales[0][j] = byte_at(words, n, s + b, j) & 63;
            to->minima[j] = byte_at(words, n, s + b + 4, j) & 63;
        } else {
            uint32_t low = byte_at(words, n, s + b + 4, j);
            to->scales[0][j] = (uint8_t)((low & 15) | byte_at(words, n, s + b - 4, j) >> 6 << 4);
            to->minima[j] = (uint8_t)(low >> 4 | byte_at(words, n, s + b, j) >> 6 << 4);
        }
    }
}

/* Read the scales of sub-blocks 2b and 2b + 1 of 16, 6 bits each, from the 12 bytes at 96. */
INLINE void read_k3_scales(const uint32_t* words, const int n, const int b, block_lanes* to) {
    const int s = 96;
    for (int h = 0, i = 2 * b; h < 2; h++, i++) {
        for (int j = 0; j < n; j++) {
            uint32_t low = i < 8 ? byte_at(words, n, s + i, j) & 15 : byte_at(words, n, s + i - 8, j) >> 4;
            uint32_t high = byte_at(words, n, s + 8 + i % 4, j) >> (2 * (i / 4)) & 3;
            to->scales[h][j] = (uint8_t)((low | high << 4) - 32);
        }
    }
}

INLINE void read_scale_bytes(const uint32_t* words, const int n, const int at, block_lanes* to) {
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < n; j++) to->scales[h][j] = (uint8_t)byte_at(words, n, at + h, j);
}

/* Read a block of 32 numbers; number, n and i, here and below, are constant where this is inlined. */
INLINE void read_block_lanes(const sd_number number, const int n, const uint32_t* words, block_lanes* to) {
    switch (number) {
    case SD_Q8_0: {
        uint32_t buffer[8 * SD_PANEL];
        const uint32_t* q = words_at(words, n, 2, 8, buffer);
        halves_at(words, n, 0, to->d);
        for (int k = 0; k < 8 * n; k++) to->codes[k] = q[k] ^ BYTES(0x80);
        break;
    }
    case SD_Q4_0:
    case SD_IQ4_NL:
        halves_at(words, n, 0, to->d);
        halves_of(words, n, 2, to);
        break;
    case SD_Q4_1:
        halves_at(words, n, 0, to->d), halves_at(words, n, 2, to->dmin);
        halves_of(words, n, 4, to);
        break;
    case SD_Q5_0:
        halves_at(words, n, 0, to->d);
        halves_of(words, n, 6, to), add_fifth_bits(words, n, 2, to);
        break;
    case SD_Q5_1:
        halves_at(words, n, 0, to->d), halves_at(words, n, 2, to->dmin);
        halves_of(words, n, 8, to), add_fifth_bits(words, n, 4, to);
        break;
    case SD_MXFP4:
        for (int j = 0; j < n; j++) to->scales[0][j] = (uint8_t)byte_at(words, n, 0, j);
        halves_of(words, n, 1, to);
        break;
    default: break;
    }
}

/* Read the i-th 32 numbers of a block of 256. */
INLINE void read_part_lanes(const sd_number number, const int n, const uint32_t* words, const int i,
                            block_lanes* to) {
    switch (number) {
    case SD_Q2_K:
        halves_at(words, n, 80, to->d), halves_at(words, n, 82, to->dmin);
        read_scale_bytes(words, n, 2 * i, to);
        bits_of(words, n, 16 + i / 4 * 32, i % 4 * 2, 3, 0, 1, to);
        break;
    case SD_Q3_K:
        halves_at(words, n, 108, to->d);
        read_k3_scales(words, n, i, to);
        bits_of(words, n, 32 + i / 4 * 32, i % 4 * 2, 3, 0, 1, to);
        bits_of(words, n, 0, i, 1, 2, 0, to);
        break;
    case SD_Q4_K:
    case SD_Q5_K:
        halves_at(words, n, 0, to->d), halves_at(words, n, 2, to->dmin);
        read_k4_scales(words, n, i, to);
        bits_of(words, n, (number == SD_Q4_K ? 16 : 48) + i / 2 * 32, i % 2 * 4, 15, 0, 1, to);
        if (number == SD_Q5_K) bits_of(words, n, 16, i, 1, 4, 0, to);
        break;
    case SD_Q6_K:
        halves_at(words, n, 208, to->d);
        read_scale_bytes(words, n, 192 + 2 * i, to);
        bits_of(words, n, i / 4 * 64 + i % 2 * 32, i % 4 / 2 * 4, 15, 0, 1, to);
        bits_of(words, n, 128 + i / 4 * 32, i % 4 * 2, 3, 4, 0, to);
        break;
    case SD_IQ4_XS:
        halves_at(words, n, 0, to->d);
        for (int j = 0; j < n; j++) {
            uint32_t low = byte_at(words, n, 4 + i / 2, j) >> (i % 2 * 4) & 15;
            uint32_t high = words[j] >> 16 >> (2 * i) & 3;
            to->scales[0][j] = (uint8_t)((low | high << 4) - 32);
        }
        halves_of(words, n, 8 + 16 * i, to);
        break;
    default: break;
    }
}

/* Read the i-th 32 numbers of blocks of either size. */
INLINE void read_lanes(const sd_number number, const int n, const uint32_t* words, const int i,
                       block_lanes* to) {
    for (int j = 0; j < n; j++) to->d[j] = to->dmin[j] = 0;
    read_block_lanes(number, n, words, to);
    read_part_lanes(number, n, words, i, to);
}

/* ------------------------------------------------------------------------------------- values of one row */

/* The value of a panel's code, without the offset. */
INLINE int value_of(const sd_number number, uint8_t code) {
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

/* Return scale and minimum of half h. */
INLINE void scales_of(const sd_number number, const block_lanes* b, const int h, float* scale,
                      float* minimum) {
    float d = sd_float_from_f16(b->d[0]), dmin = sd_float_from_f16(b->dmin[0]);
    *scale = d, *minimum = 0.0f;
    switch (number) {
    case SD_Q4_1:
    case SD_Q5_1: *minimum = dmin; break;
    case SD_Q2_K:
        *scale = d * (float)(b->scales[h][0] & 15), *minimum = -(dmin * (float)(b->scales[h][0] >> 4));
        break;
    case SD_Q4_K:
    case SD_Q5_K: *scale = d * (float)b->scales[0][0], *minimum = -(dmin * (float)b->minima[0]); break;
    case SD_Q3_K:
    case SD_Q6_K: *scale = d * (float)(int8_t)b->scales[h][0]; break;
    case SD_IQ4_XS: *scale = d * (float)(int8_t)b->scales[0][0]; break;
    case SD_MXFP4: *scale = sd_scale_of_mxfp4(b->scales[0][0]); break;
    default: break;
    }
}

INLINE void values_of(const sd_number number, const uint32_t* words, const int i, float* out) {
    block_lanes b;
    uint8_t codes[SD_BLOCK];
    read_lanes(number, 1, words, i, &b);
    memcpy(codes, b.codes, sizeof codes);
    for (int h = 0; h < 2; h++) {
        float scale, minimum;
        scales_of(number, &b, h, &scale, &minimum);
        for (int k = 16 * h; k < 16 * h + 16; k++)
            out[k] = (float)value_of(number, codes[k]) * scale + minimum; /* the product is exact */
    }
}

/* ------------------------------------------------------------------------------------------- to panels */

/* Write `width` bits of each code, starting at bit `shift`, to a plane with 8 / width lines per byte;
 * code k is in line k / 4. Returns the end of the plane. */
INLINE uint8_t* put_plane(const block_lanes* from, const int shift, const int width, uint8_t* plane) {
    const int lines = 8 / width;
    for (int t = 0; t < width; t++) {
        uint32_t line[SD_PANEL] = {0};
        BLOCKS_UNROLL for (int u = 0; u < lines; u++) for (int j = 0; j < SD_PANEL; j++) line[j] |=
            (from->codes[SD_PANEL * (lines * t + u) + j] >> shift & BYTES((1u << width) - 1)) << u * width;
        memcpy(plane, line, sizeof line);
        plane += sizeof line;
    }
    return plane;
}

/* Write a block of int8, int4 or a coded format, without its header. */
INLINE void put_block(const sd_format format, const block_lanes* from, uint8_t* to) {
    const sd_coded coded = sd_coded_of(format);
    if (format == SD_FORMAT_INT8) {
        memcpy(to, from->codes, SD_BLOCK * SD_PANEL);
        memcpy(to + SD_BLOCK * SD_PANEL, from->d, sizeof from->d);
        return;
    }
    const int is_int4 = format == SD_FORMAT_INT4, low = is_int4 ? 4 : coded.low_bits;
    to = put_plane(from, 0, low, to);
    if (coded.high_bits > 0) to = put_plane(from, low, coded.high_bits, to);
    if (is_int4 || coded.scale_bytes == 2) {
        memcpy(to, from->d, sizeof from->d);
        if (coded.has_minimum) memcpy(to + sizeof from->d, from->dmin, sizeof from->dmin);
        return;
    }
    memcpy(to, from->scales[0], SD_PANEL);
    if (coded.n_halves == 2) memcpy(to + SD_PANEL, from->scales[1], SD_PANEL);
    if (coded.n_halves == 1 && coded.has_minimum) memcpy(to + SD_PANEL, from->minima, SD_PANEL);
}

/* Whether a number of some row may not be finite. */
INLINE int may_be_wild(const sd_number number, const block_lanes* from) {
    uint32_t wild = 0;
    for (int j = 0; j < SD_PANEL; j++) {
        wild |= (from->d[j] & 0x7c00) == 0x7c00;
        wild |= (from->dmin[j] & 0x7c00) == 0x7c00;
        if (number == SD_MXFP4) wild |= from->scales[0][j] > 240;
    }
    return wild != 0;
}

/* Pack the transposed blocks of 32 rows into the part of a panel that begins with them. */
INLINE int put_lanes(const sd_number number, const sd_format format, const int n_blocks,
                     const uint32_t* words, uint8_t* part) {
    const size_t header = sd_coded_header_bytes(format);
    const size_t bytes = format == SD_FORMAT_INT8   ? SD_INT8_BLOCK_BYTES
                         : format == SD_FORMAT_INT4 ? SD_INT4_BLOCK_BYTES
                                                    : sd_coded_block_bytes(format);
    block_lanes from;
    int wild = 0;
    BLOCKS_UNROLL for (int i = 0; i < n_blocks; i++) {
        read_lanes(number, SD_PANEL, words, i, &from);
        wild |= may_be_wild(number, &from);
        if (i == 0 && header > 0) {
            memcpy(part, from.d, sizeof from.d);
            if (header > sizeof from.d) memcpy(part + sizeof from.d, from.dmin, sizeof from.dmin);
        }
        put_block(format, &from, part + header + (size_t)i * bytes);
    }
    return wild;
}

/* ------------------------------------------------------------------------- a function for each type */

#define DEFINE_PUT(number, format, n_blocks)                              \
    static int NAME(put_##number)(const uint32_t* words, uint8_t* part) { \
        return put_lanes(number, format, n_blocks, words, part);          \
    }
#define DEFINE_READ(number, format, n_blocks)                                                          \
    static void NAME(read_##number)(const uint32_t* words, int i, float* out) {                        \
        BLOCKS_UNROLL for (int b = 0; b < n_blocks; b++) if (b == i) values_of(number, words, b, out); \
    }
SD_BLOCK_NUMBERS(DEFINE_PUT)
#if READ_BLOCKS
SD_BLOCK_NUMBERS(DEFINE_READ)
#endif
