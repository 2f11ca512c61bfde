/* The parts of which tables of kernels are made (dispatch.c): each sets its kernels of a table, and its thresholds.
 *
 * A part is called only where the processor has its instruction set. Sets that differ in one part alone share the
 * others: AVX-VNNI those of AVX2, and AVX-512 with and without dot product instructions all but the dots. */
#pragma once

#include "kernels.h"

typedef void sd_kernels_part(sd_kernels* table);

/* Kernels of floats (floats_template.h), of codes (dots_template.h), and those of loading (loading_template.h). */
sd_kernels_part sdk_floats_ref, sdk_floats_neon, sdk_floats_avx2, sdk_floats_avx512;
sd_kernels_part sdk_dots_ref, sdk_dots_neon, sdk_dots_avx2, sdk_dots_avxvnni, sdk_dots_avx512f,
    sdk_dots_avx512;
sd_kernels_part sdk_loading_ref, sdk_loading_neon, sdk_loading_avx2, sdk_loading_avx512;

/* Kernels of bf16 with the instructions of AVX512_BF16; set after the floats of AVX-512. */
sd_kernels_part sdk_pairs_avx512;
/* Kernels with tiles of AMX; set after all parts of "avx512". */
sd_kernels_part sdk_tiles_amx;

/* The field `unpack` of the tables (kernels.h). */
extern const sd_unpack_kernel sdk_unpack_ref[SD_N_FORMATS], sdk_unpack_neon[SD_N_FORMATS];
extern const sd_unpack_kernel sdk_unpack_avx2[SD_N_FORMATS], sdk_unpack_avx512[SD_N_FORMATS];
