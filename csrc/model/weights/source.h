/* A tensor as the caller has it: in memory, or rows that are still in a file. */
#ifndef SD_SOURCE_H
#define SD_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "number.h"
#include "status.h"

/* Where rows are in a file: row r at start + order[r] · (bytes of a row). */
typedef struct sd_file_rows {
    int descriptor; /* open for reading, borrowed */
    int64_t start;
    const int64_t* order; /* [n_rows] rows of the file, borrowed; NULL: r itself */
} sd_file_rows;

/* Element (r, k) lies at data + r · row_stride + k · col_stride bytes, a row of blocks
 * at data + r · row_stride. */
typedef struct sd_source {
    const void* data; /* borrowed for the call; NULL: the rows are in the file */
    sd_number number;
    ptrdiff_t row_stride, col_stride; /* bytes; of rows of blocks col_stride is of no meaning */
    sd_file_rows file;                /* rows of row_stride bytes, whose elements lie side by side */
} sd_source;

/* Elements (row, col …) of a source in memory as f32 [n], `out` borrowed. */
void sd_source_read(const sd_source* source, int row, int col, int n, float* out);

/* Rows first … first + n as a source in memory: where they are, or read into scratch [n, row_stride],
 * borrowed. Threads may call it at the same time. Returns 0, or what sd_source_fail makes a message of. */
int sd_source_rows(const sd_source* source, int first, int n, void* scratch, sd_source* rows);

/* Bytes of the scratch of so many rows. */
size_t sd_source_scratch(const sd_source* source, int n);

/* Fail with what sd_source_rows returned. */
sd_status sd_source_fail(const char* name, int error);

/* Fail where a number that could not be taken is another one when it is read again. */
sd_status sd_source_changed(const char* name);

#endif
