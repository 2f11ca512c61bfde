/* Instructions of AMX that touch memory. The intrinsics of GCC 12 do not tell the compiler what is read and
 * written, so that it may drop a store to what a tile loads.
 *
 * `tile` is a number, or a macro of one: it becomes part of a register's name. */
#ifndef SD_TILE_MEMORY_H
#define SD_TILE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* The shapes of the tiles of a thread, as the processor reads them. */
typedef struct sd_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} sd_tile_config;

/* Shape the tiles of the calling thread; tell how they are shaped. config: an sd_tile_config. */
#define SD_TILE_LOAD_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define SD_TILE_STORE_CONFIG(config) __asm__ volatile("sttilecfg %0" : "=m"(config))

#define SD_TILE_NAME_(tile) "%%tmm" #tile
#define SD_TILE_NAME(tile) SD_TILE_NAME_(tile)
/* Rows of a tile from or to memory, `stride` bytes apart. */
#define SD_TILE_LOAD(tile, from, stride)                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), " SD_TILE_NAME(tile)::"r"((const void*)(from)), \
                     "r"((size_t)(stride))                                                 \
                     : "memory")
#define SD_TILE_STORE(tile, to, stride)                                                 \
    __asm__ volatile("tilestored " SD_TILE_NAME(tile) ", (%0,%1,1)" ::"r"((void*)(to)), \
                     "r"((size_t)(stride))                                              \
                     : "memory")

#endif
