/* The kinds of numbers that tensors come in. */
#ifndef SD_NUMBER_H
#define SD_NUMBER_H

/* Numbers one by one, and rows of blocks as GGUF files have them (model/weights/blocks.h). */
typedef enum sd_number {
    SD_F32,
    SD_F16,
    SD_BF16,
    SD_Q8_0,
    SD_Q4_0,
    SD_Q4_1,
    SD_Q5_0,
    SD_Q5_1,
    SD_Q2_K,
    SD_Q3_K,
    SD_Q4_K,
    SD_Q5_K,
    SD_Q6_K,
    SD_IQ4_NL,
    SD_IQ4_XS,
    SD_MXFP4,
    SD_N_NUMBERS
} sd_number;

/* f(number, format, n_blocks) for each kind of blocks: the format of panels that has their values, and how
 * many times SD_BLOCK numbers a block has. */
#define SD_BLOCK_NUMBERS(f)                                                                           \
    f(SD_Q8_0, SD_FORMAT_INT8, 1) f(SD_Q4_0, SD_FORMAT_INT4, 1) f(SD_Q4_1, SD_FORMAT_Q4_1, 1)         \
        f(SD_Q5_0, SD_FORMAT_Q5_0, 1) f(SD_Q5_1, SD_FORMAT_Q5_1, 1) f(SD_Q2_K, SD_FORMAT_Q2_K, 8)     \
            f(SD_Q3_K, SD_FORMAT_Q3_K, 8) f(SD_Q4_K, SD_FORMAT_Q4_K, 8) f(SD_Q5_K, SD_FORMAT_Q5_K, 8) \
                f(SD_Q6_K, SD_FORMAT_Q6_K, 8) f(SD_IQ4_NL, SD_FORMAT_IQ4_NL, 1)                       \
                    f(SD_IQ4_XS, SD_FORMAT_IQ4_XS, 8) f(SD_MXFP4, SD_FORMAT_MXFP4, 1)

#endif
