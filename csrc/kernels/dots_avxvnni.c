/* Kernels on codes, in AVX2 with the dot product instruction of AVX-VNNI. */
#include "parts.h"

#if defined(__AVXVNNI__)
#define ISA avxvnni
#define AVX_VNNI 1
#include "avx2_template.h"

#include "dots_template.h"
#endif
