/* A checksum of bytes against damage, at the speed of memory; no protection against forgery. */
#ifndef SD_CHECKSUM_H
#define SD_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Stretches have a multiple of so many bytes. */
#define SD_CHECKSUM_PIECE ((size_t)1 << 20)

/* Of each stretch of `size` bytes at `data`, borrowed, with n_threads reserved threads, whose number makes no
 * difference: stretches have `stretch` bytes each, the last one may be shorter, and there is at least one.
 * `sums`: a number for each, borrowed. Fails where the caller wants to stop (interrupt.h). */
sd_status sd_checksums(const void* data, size_t size, size_t stretch, int n_threads, uint64_t* sums);

#endif
