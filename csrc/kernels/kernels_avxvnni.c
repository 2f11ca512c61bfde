/* AVX2 with the dot product instruction of AVX-VNNI. */
#if defined(__AVXVNNI__)
#define ISA avxvnni
#define ISA_NAME "avxvnni"
#define AVX_VNNI 1
#include "avx2_template.h"

#include "kernels_template.h"

const sd_kernels* sdk_table_avxvnni(void) { return &table_avxvnni; }
#else
#include "kernels.h"
const sd_kernels* sdk_table_avxvnni(void) { return NULL; }
#endif
