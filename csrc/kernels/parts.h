/* The parts of a table of kernels (dispatch.c): each sets its kernels and their thresholds.
 *
 * A part runs only where the processor has its instruction set. Sets that differ in one part share
 * the others: AVX-VNNI those of AVX2; AVX-512 with and without dot product instructions all but dots
 * and pairs. */
#pragma once

#include "kernels.h"

typedef void (*sd_kernels_part)(sd_kernels* table);

/* Kernels of floats (floats_template.h). */
void sdk_floats_ref(sd_kernels* table);
void sdk_floats_neon(sd_kernels* table);
void sdk_floats_avx2(sd_kernels* table);
void sdk_floats_avx512(sd_kernels* table);
/* Kernels of codes (dots_template.h). */
void sdk_dots_ref(sd_kernels* table);
void sdk_dots_neon(sd_kernels* table);
void sdk_dots_avx2(sd_kernels* table);
void sdk_dots_avxvnni(sd_kernels* table);
void sdk_dots_avx512f(sd_kernels* table);
void sdk_dots_avx512(sd_kernels* table);
/* Kernels of loading (loading_template.h). */
void sdk_loading_ref(sd_kernels* table);
void sdk_loading_neon(sd_kernels* table);
void sdk_loading_avx2(sd_kernels* table);
void sdk_loading_avx512(sd_kernels* table);
/* Products of bf16 by floats (float_products_template.h): what the part floats sets. */
#define SD_BF16_BY_FLOATS(isa)                                                                            \
    void sdk_panel_bf16_##isa(int n_rows, const void* x, const void* panel, int n_in, int near, float* y, \
                              ptrdiff_t ldy);
SD_BF16_BY_FLOATS(ref)
SD_BF16_BY_FLOATS(neon)
SD_BF16_BY_FLOATS(avx2)
SD_BF16_BY_FLOATS(avx512)
/* Kernels of bf16 with the instructions of AVX512_BF16; set after the floats of AVX-512. */
void sdk_pairs_avx512(sd_kernels* table);
/* Kernels with tiles of AMX; set after all parts of "avx512". */
void sdk_tiles_amx(sd_kernels* table);

/* The field `unpack` of the tables (kernels.h). */
extern const sd_unpack_kernel sdk_unpack_ref[SD_N_FORMATS], sdk_unpack_neon[SD_N_FORMATS];
extern const sd_unpack_kernel sdk_unpack_avx2[SD_N_FORMATS], sdk_unpack_avx512[SD_N_FORMATS];
