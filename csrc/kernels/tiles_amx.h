/* The tiles of a thread, and products by the instruction TDPBF16PS, in the order of tiles. Only in
 * builds for x86-64, and where the process may use tiles. */
#ifndef SD_TILES_AMX_H
#define SD_TILES_AMX_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/* The rows of a tile and the bytes of each; a tile without rows has none. */
typedef struct sd_tile_shape {
    uint8_t rows;
    uint16_t row_bytes;
} sd_tile_shape;

/* Shape the first n tiles of the calling thread, which is slow, unless they have these shapes. */
void sdk_shape_tiles(const sd_tile_shape* shapes, int n);

/* As prepare of sd_kernels (kernels.h): chunks of pairs of bf16, whatever thresholds say. */
void sdk_prepare_pairs_avx512(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out);

/* As weigh_tiles of sd_kernels: such rows. */
void sdk_weigh_pairs_avx512(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                            float* lanes, void* out);

/* As add_tiles of sd_kernels, of such rows. */
void sdk_add_tiles_amx(int n_rows, int n_panels, const void* x, const void* panels, int n_in, int add,
                       float* y, ptrdiff_t ldy, ptrdiff_t step);

/* As tiles of sd_kernels, of such rows. */
void sdk_tiles_bf16_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
void sdk_tiles_int8_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
void sdk_tiles_int4_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
/* Those of the formats of coded.h, in their order. */
extern const sd_tiles_kernel sdk_tiles_coded_amx[SD_N_CODED_FORMATS];

#endif
