/* A thread's AMX tiles, and products by the instruction TDPBF16PS, in the order of tiles. Only in
 * builds for x86-64, and only if the process may use tiles. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/* The rows of a tile and the bytes of each row. */
typedef struct sd_tile_shape {
    uint8_t rows;
    uint16_t row_bytes;
} sd_tile_shape;

/* Shape the first n tiles of the calling thread. Does nothing if they have these shapes, because it is
 * slow. */
void sdk_shape_tiles(const sd_tile_shape* shapes, int n);

/* `prepare` of sd_kernels (kernels.h) for chunks of pairs of bf16, regardless of thresholds. */
void sdk_prepare_pairs_avx512(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out);

/* `weigh_tiles` of sd_kernels, with such rows. */
void sdk_weigh_pairs_avx512(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                            float* lanes, void* out);

/* `add_tiles` of sd_kernels, with such rows. */
void sdk_add_tiles_amx(int n_rows, int n_panels, const void* x, const void* panels, int n_in, int add,
                       float* y, ptrdiff_t ldy, ptrdiff_t step);

/* `tiles` of sd_kernels, with such rows. */
void sdk_tiles_bf16_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
void sdk_tiles_int8_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
void sdk_tiles_int4_amx(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y,
                        ptrdiff_t ldy);
/* The same for the coded formats, in their order. */
extern const sd_tiles_kernel sdk_tiles_coded_amx[SD_N_CODED_FORMATS];

/* The shapes of the tiles of a thread, as the processor reads them. */
typedef struct sd_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} sd_tile_config;

/* Load or store the shapes of the calling thread's tiles. config: an sd_tile_config. */
#define SD_TILE_LOAD_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define SD_TILE_STORE_CONFIG(config) __asm__ volatile("sttilecfg %0" : "=m"(config))

#define SD_TILE_NAME_(tile) "%%tmm" #tile
#define SD_TILE_NAME(tile) SD_TILE_NAME_(tile)
/* Load or store the rows of a tile, `stride` bytes apart. */
#define SD_TILE_LOAD(tile, from, stride)                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), " SD_TILE_NAME(tile)::"r"((const void*)(from)), \
                     "r"((size_t)(stride))                                                 \
                     : "memory")
#define SD_TILE_STORE(tile, to, stride)                                                 \
    __asm__ volatile("tilestored " SD_TILE_NAME(tile) ", (%0,%1,1)" ::"r"((void*)(to)), \
                     "r"((size_t)(stride))                                              \
                     : "memory")
