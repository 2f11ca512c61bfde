/* Kernels on floats and for loading, in AVX2 with FMA and F16C. */
#include "parts.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define ISA avx2
#define AVX_VNNI 0
#include "avx2_template.h"

#include "floats_template.h"

#include "loading_template.h"
#endif
