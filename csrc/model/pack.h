/* From a tensor as the caller has it to a packed matrix. */
#ifndef SD_PACK_H
#define SD_PACK_H

#include "matrix.h"

/* A tensor as the caller has it: element (r, k) at data + r · row_stride + k · col_stride bytes; rows of
 * blocks at data + r · row_stride. */
typedef struct sd_source {
    const void* data; /* borrowed for the call */
    sd_number number;
    ptrdiff_t row_stride, col_stride; /* bytes; of rows of blocks col_stride is of no meaning */
} sd_source;

/* Elements (row, col …) of a source as f32 [n], `out` borrowed. */
void sd_source_read(const sd_source* source, int row, int col, int n, float* out);

/* Pack n_rows of a source with n_threads reserved threads, rounding or quantising as the formats of the
 * matrix's panels say. Blocks are taken as they are where the format is their own, and rows have whole blocks
 * then. Fails on the first NaN or infinite value and on a value that the format cannot hold, naming `name`;
 * the matrix is then half-written. */
sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name, int n_threads);

#endif
