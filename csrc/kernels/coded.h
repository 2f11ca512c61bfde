/* Number formats that GGUF files have, in packed panels: codes with scales, and in some formats minima.
 *
 * A block of 32 inputs has one or two sub-blocks, of 32 or 16 inputs each, with a scale and a minimum each:
 * the value of a code is (code − offset) · scale + minimum. Scale and minimum are exact in f32, and so is the
 * product; sd_coded_of (format.h) says what is so in each format. Eight blocks may lie behind a header,
 * with the numbers that they share:
 *
 *   header   [32] d in f16; in formats with minima [32] dmin in f16
 *   block    planes of codes, then the bytes of scales and minima of the 32 outputs
 *
 * Line l of the codes of a block is [32][4]: of 32 outputs the inputs 4l … 4l + 3. Planes have bits of codes:
 *
 *   nibbles  [4][32][4]: lines 2s in the low halves, lines 2s + 1 in the high halves of the bytes
 *   pairs    [2][32][4]: line 4t + u in bits 2u and 2u + 1 of byte t
 *   bits     [32][4]: line l in bit l
 *
 *   format  header  planes from the lowest bits on   scales and minima
 *   q4_1            nibbles                          scale, minimum in f16
 *   q5_0            nibbles, bits                    scale in f16
 *   q5_1            nibbles, bits                    scale, minimum in f16
 *   q2_k    yes     pairs                            [2] bytes: scale / d low, −minimum / dmin high
 *   q3_k    yes     pairs, bits                      [2] signed bytes: scale / d
 *   q4_k    yes     nibbles                          byte: scale / d; byte: −minimum / dmin
 *   q5_k    yes     nibbles, bits                    byte: scale / d; byte: −minimum / dmin
 *   q6_k    yes     nibbles, pairs                   [2] signed bytes: scale / d
 *   iq4_nl          nibbles, places in a table       scale in f16
 *   iq4_xs  yes     nibbles, places in a table       signed byte: scale / d
 *   mxfp4           nibbles, places in a table       byte: the scale is 2^(byte − 128) */
#ifndef SD_CODED_H
#define SD_CODED_H

#include <stdint.h>

#include "format.h"
#include "half.h"

#define SD_NIBBLES (SD_BLOCK * SD_PANEL / 2)
#define SD_PAIRS (SD_BLOCK * SD_PANEL / 4)
#define SD_BITS (SD_BLOCK * SD_PANEL / 8)

/* Blocks that are unpacked together: those of a header. */
#define SD_PART_BLOCKS 8

/* Blocks of a panel with codes of a byte each, in the order of int8: what products read. */
typedef struct sd_unpacked {
    uint8_t codes[SD_PART_BLOCKS][SD_BLOCK / 4][SD_PANEL][4]; /* (value − minimum) / scale + offset */
    float scale[SD_PART_BLOCKS][2][SD_PANEL], minimum[SD_PART_BLOCKS][2][SD_PANEL]; /* of the sub-blocks */
} sd_unpacked;

/* The values [16] of the codes of tables. */
static inline const int8_t* sd_values_iq4(void) {
    static const int8_t values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return values;
}
static inline const int8_t* sd_values_mxfp4(void) {
    static const int8_t values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return values;
}

/* 2^(exponent − 128). */
static inline float sd_scale_of_mxfp4(uint8_t exponent) {
    return sd_float_from_bits(exponent < 2 ? 0x200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

#endif
