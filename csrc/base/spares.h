/* Blocks of pages that were freed and wait to be used again: each call makes caches and scratch of the same
 * sizes, and pages that are new cost more than to write zeros over old ones (benchmarks/SPEED.md). What waits
 * is bounded, and goes back to the system when a model is freed or memory is short. */
#ifndef SD_SPARES_H
#define SD_SPARES_H

#include <stddef.h>

/* How large the block for `bytes` is: a size that many share. 0: blocks for so few or so many bytes
 * are not kept, or none are on this system. */
size_t sd_spares_size(size_t bytes);

/* A block of `size` bytes, a size of sd_spares_size, owned by the caller: one that was kept, with what it
 * held, then *used is 1, or a new one of zeros. NULL: there is no memory. */
void* sd_spares_take(size_t size, int* used);

/* Keep a block of sd_spares_take, owned by the spares from the call on, or return it to the system. */
void sd_spares_give(void* block, size_t size);

/* Return what waits to the system. The number of blocks. */
int sd_spares_drop(void);

/* Testing: bytes that wait. */
size_t sd_spares_bytes(void);

#endif
