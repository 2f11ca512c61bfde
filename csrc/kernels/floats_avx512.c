/* Kernels on floats and for loading, in AVX-512 without the instructions of AVX512_BF16 and AVX512_VNNI. */
#include "parts.h"

#if defined(__AVX512F__)
#define ISA avx512
#define DOT_PRODUCTS 0
#define READ_BLOCKS 0
#include "avx512_template.h"

#include "floats_template.h"

#include "loading_template.h"
#endif
