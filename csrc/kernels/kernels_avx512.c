/* AVX-512 with the dot product instructions of AVX512_BF16 and AVX512_VNNI. */
#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define ISA avx512
#define ISA_NAME "avx512"
#define DOT_PRODUCTS 1
#include "avx512_template.h"

#include "kernels_template.h"
#include "tiles_amx.h"

void sdk_prepare_pairs_avx512(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out) {
    (void)n_in;
    prepare_rounded(1, 0, part, x, ldx, out);
}

void sdk_weigh_pairs_avx512(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                            float* lanes, void* out) {
    weigh_rows_tiles(1, n_rows, n_chunks, x, largest, factor, lanes, out);
}

const sd_kernels* sdk_table_avx512(void) { return &table_avx512; }
#else
#include "kernels.h"
const sd_kernels* sdk_table_avx512(void) { return NULL; }
#endif
