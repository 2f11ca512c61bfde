/* The parts of a table of kernels (dispatch.c): each sets its kernels and their thresholds.
 *
 * A part runs only on processors with its instruction set. Sets that differ in one part share the others:
 * AVX-VNNI and AVX2 differ in dots only, AVX-512 with and without dot product instructions in dots and
 * pairs. */
#pragma once

#include "kernels.h"

typedef void (*sd_kernels_part)(sd_kernels* table);

/* Kernels on floats (floats_template.h). */
void sdk_floats_ref(sd_kernels* table);
void sdk_floats_neon(sd_kernels* table);
void sdk_floats_avx2(sd_kernels* table);
void sdk_floats_avx512(sd_kernels* table);
/* Kernels on codes (dots_template.h). */
void sdk_dots_ref(sd_kernels* table);
void sdk_dots_neon(sd_kernels* table);
void sdk_dots_avx2(sd_kernels* table);
void sdk_dots_avxvnni(sd_kernels* table);
void sdk_dots_avx512f(sd_kernels* table);
void sdk_dots_avx512(sd_kernels* table);
/* Kernels for loading (loading_template.h). */
void sdk_loading_ref(sd_kernels* table);
void sdk_loading_neon(sd_kernels* table);
void sdk_loading_avx2(sd_kernels* table);
void sdk_loading_avx512(sd_kernels* table);
/* bf16 products by floats (float_products_template.h), part of floats. */
#define SD_BF16_BY_FLOATS(isa)                                                                            \
    void sdk_panel_bf16_##isa(int n_rows, const void* x, const void* panel, int n_in, int near, float* y, \
                              ptrdiff_t ldy);
SD_BF16_BY_FLOATS(ref)
SD_BF16_BY_FLOATS(neon)
SD_BF16_BY_FLOATS(avx2)
SD_BF16_BY_FLOATS(avx512)
/* bf16 kernels with AVX512_BF16 instructions; set after the floats of AVX-512. */
void sdk_pairs_avx512(sd_kernels* table);
/* Kernels with AMX tiles; set after all parts of "avx512". */
void sdk_tiles_amx(sd_kernels* table);

/* The field `unpack` of each table (kernels.h). */
extern const sd_unpack_kernel sdk_unpack_ref[SD_N_FORMATS], sdk_unpack_neon[SD_N_FORMATS];
extern const sd_unpack_kernel sdk_unpack_avx2[SD_N_FORMATS], sdk_unpack_avx512[SD_N_FORMATS];
