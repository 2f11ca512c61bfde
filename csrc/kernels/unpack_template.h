/* Unpacking of panel blocks in the coded formats to one-byte codes, with scales and minima in f32.
 *
 * Included by loading_template.h. The compiler vectorizes the loops over bytes. */

INLINE void take_nibbles(const uint8_t* plane, uint8_t* to) {
    for (int s = 0; s < 4; s++, plane += LINE_BYTES, to += 2 * LINE_BYTES)
        for (int i = 0; i < LINE_BYTES; i++) {
            to[i] = plane[i] & 15;
            to[LINE_BYTES + i] = plane[i] >> 4;
        }
}

/* Put two bits of each code at bit `up`; `first`: overwrite the code instead of adding to it. */
INLINE void take_pairs(const int first, const int up, const uint8_t* plane, uint8_t* to) {
    for (int t = 0; t < 2; t++, plane += LINE_BYTES)
        UNROLL for (int u = 0; u < 4; u++, to += LINE_BYTES) for (int i = 0; i < LINE_BYTES; i++) {
            uint8_t bits = (uint8_t)((plane[i] >> 2 * u & 3) << up);
            to[i] = first ? bits : (uint8_t)(to[i] | bits);
        }
}

INLINE void take_bits(const int up, const uint8_t* plane, uint8_t* to) {
    UNROLL for (int l = 0; l < 8; l++, to += LINE_BYTES) for (int i = 0; i < LINE_BYTES; i++) to[i] |=
        (uint8_t)((plane[i] >> l & 1) << up);
}

INLINE void raise_codes(const int by, uint8_t* codes) {
    for (int i = 0; i < SD_BLOCK * SD_PANEL; i++) codes[i] = (uint8_t)(codes[i] + by);
}

/* Replace codes 0 … 15 by the values of a table + 128. */
INLINE void look_up(const int8_t* values, uint8_t* codes) {
#ifdef __AVX2__
    const __m256i table = _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void*)values)),
                                           _mm256_set1_epi8((char)0x80));
    for (int i = 0; i < SD_BLOCK * SD_PANEL; i += 32) {
        __m256i found = _mm256_shuffle_epi8(table, _mm256_loadu_si256((const void*)(codes + i)));
        _mm256_storeu_si256((void*)(codes + i), found);
    }
#else
    for (int i = 0; i < SD_BLOCK * SD_PANEL; i++) codes[i] = (uint8_t)(values[codes[i]] + 128);
#endif
}

/* Unpack the codes of a block; returns their end. */
INLINE const uint8_t* unpack_codes(const sd_format format, const uint8_t* at, uint8_t* to) {
    const sd_coded coded = sd_coded_of(format);
    if (coded.low_bits == 2)
        take_pairs(1, 0, at, to);
    else
        take_nibbles(at, to);
    at += coded.low_bits * SD_BITS;
    if (coded.high_bits == 1) take_bits(coded.low_bits, at, to);
    if (coded.high_bits == 2) take_pairs(0, coded.low_bits, at, to);
    at += coded.high_bits * SD_BITS;
    if (format == SD_FORMAT_Q3_K) raise_codes(32 - 4, to);
    if (format == SD_FORMAT_Q5_0) raise_codes(128 - 16, to);
    if (format == SD_FORMAT_IQ4_NL || format == SD_FORMAT_IQ4_XS) look_up(sd_values_iq4(), to);
    if (format == SD_FORMAT_MXFP4) look_up(sd_values_mxfp4(), to);
    return at;
}

/* Widen 32 f16 numbers. */
INLINE void widen_halves(const uint8_t* at, float* to) {
    for (int j = 0; j < SD_PANEL; j += UNIT_LANES)
        u_store(to + j, u_half((const uint16_t*)(const void*)at + j));
}

/* Compute the scales and minima of a block from their bytes and the header's d and dmin [32]. */
INLINE void unpack_scales(const sd_format format, const uint8_t* at, const float* d, const float* dmin,
                          float (*scale)[SD_PANEL], float (*minimum)[SD_PANEL]) {
    const sd_coded coded = sd_coded_of(format);
    if (sd_coded_header_bytes(format) == 0) {
        if (format == SD_FORMAT_MXFP4)
            for (int j = 0; j < SD_PANEL; j++) scale[0][j] = sd_scale_of_mxfp4(at[j]);
        else
            widen_halves(at, scale[0]);
        if (coded.has_minimum) widen_halves(at + 2 * SD_PANEL, minimum[0]);
        return;
    }
    UNROLL for (int h = 0; h < coded.n_halves; h++, at += SD_PANEL) {
        if (format == SD_FORMAT_Q2_K) {
            for (int j = 0; j < SD_PANEL; j++) {
                scale[h][j] = d[j] * (float)(at[j] & 15);
                minimum[h][j] = -(dmin[j] * (float)(at[j] >> 4));
            }
            continue;
        }
        for (int j = 0; j < SD_PANEL; j++)
            scale[h][j] = d[j] * (coded.signed_scales ? (float)(int8_t)at[j] : (float)at[j]);
        if (coded.has_minimum)
            for (int j = 0; j < SD_PANEL; j++) minimum[h][j] = -(dmin[j] * (float)at[SD_PANEL + j]);
    }
}

INLINE void unpack(const sd_format format, const uint8_t* at, int n_blocks, sd_unpacked* to) {
    float d[SD_PANEL] = {0}, dmin[SD_PANEL] = {0};
    const size_t header = sd_coded_header_bytes(format);
    if (header > 0) widen_halves(at, d);
    if (header > 2 * SD_PANEL) widen_halves(at + 2 * SD_PANEL, dmin);
    at += header;
    for (int b = 0; b < n_blocks; b++, at += sd_coded_block_bytes(format)) {
        const uint8_t* scales = unpack_codes(format, at, &to->codes[b][0][0][0]);
        unpack_scales(format, scales, d, dmin, to->scale[b], to->minimum[b]);
    }
}

#define DEFINE_UNPACK(name, format)                                                    \
    static void NAME(unpack_##name)(const void* part, int n_blocks, sd_unpacked* to) { \
        unpack(format, part, n_blocks, to);                                            \
    }
SD_CODED_FORMATS(DEFINE_UNPACK)
#define UNPACK_ENTRY(name, format) [format] = NAME(unpack_##name),
const sd_unpack_kernel NAME(sdk_unpack)[SD_N_FORMATS] = {SD_CODED_FORMATS(UNPACK_ENTRY)};
