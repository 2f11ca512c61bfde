/* From a tensor as the caller has it to a packed matrix. */
#ifndef SD_PACK_H
#define SD_PACK_H

#include "matrix.h"
#include "source.h"

/* Pack n_rows of a source with n_threads reserved threads, rounding or quantising as the formats of the
 * matrix's panels say. Blocks are taken as they are where the format is their own, and rows have whole blocks
 * then. Fails on the first NaN or infinite value and on a value that the format cannot hold, naming `name`;
 * the matrix is then half-written. */
sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name, int n_threads);

#endif
