/* Kernels on codes, in AVX-512 without dot product instructions, which are emulated with the same bits. */
#include "parts.h"

#if defined(__AVX512F__)
#define ISA avx512f
#define DOT_PRODUCTS 0
#include "avx512_template.h"

#include "dots_template.h"
#endif
