/* Kernels on codes, in AVX-512 with the dot product instruction of AVX512_VNNI. */
#include "parts.h"

#if defined(__AVX512VNNI__)
#define ISA avx512
#define DOT_PRODUCTS 1
#include "avx512_template.h"

#include "dots_template.h"
#endif
