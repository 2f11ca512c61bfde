/* Sources of tensors, in memory or in a file, and the matrices, tables and vectors they fill. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "format.h"
#include "matrix.h"
#include "status.h"

/* Rows of a file: row r is at start + order[r] · (bytes of a row). */
typedef struct sd_file_rows {
    int descriptor; /* open for reading, borrowed */
    int64_t start;
    const int64_t* order; /* [n_rows] rows of the file, borrowed; NULL: r itself */
} sd_file_rows;

/* Element (r, k) is at data + r · row_stride + k · col_stride bytes, a row of blocks at data + r ·
 * row_stride. */
typedef struct sd_source {
    const void* data; /* borrowed for the call; NULL: the rows are in the file */
    sd_number number;
    ptrdiff_t row_stride, col_stride; /* bytes; rows of blocks have no col_stride */
    sd_file_rows file;                /* rows of row_stride bytes with contiguous elements */
} sd_source;

/* Read elements (row, col …) of a source in memory into out [n] f32, borrowed. */
void sd_source_read(const sd_source* source, int row, int col, int n, float* out);

/* Give rows first … first + n as a source in memory: where they are, or read into scratch [n, row_stride],
 * borrowed. Threads may call it at the same time. Returns 0, or an error for sd_source_fail. */
int sd_source_rows(const sd_source* source, int first, int n, void* scratch, sd_source* rows);

/* Bytes of scratch for n rows. */
size_t sd_source_scratch(const sd_source* source, int n);

/* Fail with an error of sd_source_rows. */
sd_status sd_source_fail(const char* name, int error);

/* Fail because a number that was refused has changed when read again. */
sd_status sd_source_changed(const char* name);

/* Pack n_rows of a source with n_threads reserved threads, rounding or quantizing to the formats of the
 * matrix's panels. Blocks in a panel's own format are packed as they are; their rows have whole blocks. Fails
 * on the first NaN or infinite value and on a value that the format cannot hold, naming `name`; the matrix is
 * then half-written. */
sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name, int n_threads);

/* A table read row by row: embeddings. Row-major: f32, bf16, or a file's blocks as they are. */
typedef struct sd_table {
    int n_rows, n_cols;
    sd_number number; /* not SD_F16 */
    char* data;       /* [n_rows, n_cols], owned by the model's arena */
} sd_table;

/* Take memory for an empty table from the arena (which may be counting). */
sd_table sd_table_take(sd_arena* arena, sd_number number, int n_rows, int n_cols);

/* Copy a source of the table's shape, rounding to its number type; a table of blocks takes only blocks of
 * that type. Fails on a NaN or infinite value. */
sd_status sd_table_fill(sd_table* table, const sd_source* source, const char* name, int n_threads);

/* Bytes of its data. */
size_t sd_table_bytes(const sd_table* table);

/* Copy row r to out [n_cols] f32, borrowed. */
void sd_table_row(const sd_table* table, int r, float* out);

/* Destination of a tensor given by name. Those of the three pointers are set where its numbers go;
 * borrowed. */
typedef struct sd_destination {
    const char* name;   /* borrowed */
    int n_rows, n_cols; /* n_cols 0: a vector [n_rows] */
    float* vector;
    sd_table* table;
    sd_matrix* matrix;
    sd_rows rows; /* of the matrix, or entries of the vector */
} sd_destination;

/* Fill the destination, packed with n_threads threads or copied. The shape must match, and every value must
 * be finite. */
sd_status sd_destination_fill(const sd_destination* to, const sd_source* source, int n_rows, int n_cols,
                              int n_threads);

/* Fail because a tensor is given twice, or missing. */
sd_status sd_destination_fail_twice(const sd_destination* to);
sd_status sd_destination_fail_missing(const sd_destination* to);

/* Quantize rows to the blocks of GGUF files, as ggml defines them.
 *
 * Q8_0 and Q4_0 get the codes and scales of packing to int8 and int4. In Q4_K, Q5_K and Q6_K each sub-block
 * of 32 or 16 inputs gets the scale, and in Q4_K and Q5_K the minimum, with the least weighted square error
 * of several trials; these are rounded to what a block can hold, and the codes to nearest. Bits depend
 * neither on the number of threads nor on the processor. */

/* Can rows be quantized to this type? */
int sd_can_quantize(sd_number type);

/* x [n_rows, n_in] f32, finite, n_in a multiple of the type's block; importance [n_in] ≥ 0, for types with
 * blocks of 256: weights of the inputs' errors, or NULL: all equal; out [n_rows] rows of blocks; all
 * borrowed. n_threads: reserved threads. Fails on a number that is too large for Q8_0 or Q4_0. */
sd_status sd_quantize(sd_number type, const float* x, int n_rows, int n_in, const float* importance,
                      unsigned char* out, int n_threads);
