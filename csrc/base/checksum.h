/* A checksum of bytes against damage, at the speed of memory; no protection against forgery. */
#ifndef SD_CHECKSUM_H
#define SD_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of `size` bytes at `data`, borrowed, with n_threads reserved threads, whose number makes no difference.
 * Pages of a mapped file are mapped many at once. */
uint64_t sd_checksum(const void* data, size_t size, int n_threads);

#endif
