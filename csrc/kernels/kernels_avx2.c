/* AVX2 with FMA and F16C. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define ISA avx2
#define ISA_NAME "avx2"
#define AVX_VNNI 0
#include "avx2_template.h"

#include "kernels_template.h"

const sd_kernels* sdk_table_avx2(void) { return &table_avx2; }
#else
#include "kernels.h"
const sd_kernels* sdk_table_avx2(void) { return NULL; }
#endif
