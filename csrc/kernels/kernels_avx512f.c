/* AVX-512 without dot product instructions: they are emulated, with the same bits. */
#if defined(__AVX512F__)
#define ISA avx512f
#define ISA_NAME "avx512f"
#define DOT_PRODUCTS 0
#include "avx512_template.h"

#include "kernels_template.h"

const sd_kernels* sdk_table_avx512f(void) { return &table_avx512f; }
#else
#include "kernels.h"
const sd_kernels* sdk_table_avx512f(void) { return NULL; }
#endif
