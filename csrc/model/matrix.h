/* A packed weight matrix: panels of SD_PANEL outputs interleaved along the inputs.
 *
 * Element (row r, column k) lies at panels[(r / 32) · 32 · n_in + k · 32 + r % 32]. Rows past
 * n_out in the last panel are zero. */
#ifndef SD_MATRIX_H
#define SD_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#include "memory.h"
#include "pool.h"

typedef struct sd_matrix {
    int n_out, n_in;
    int group;     /* panels that one thread computes together: 2 for gate and up, else 1 */
    float* panels; /* [n_panels, n_in, SD_PANEL] f32, owned by the model's arena */
} sd_matrix;

typedef enum sd_number { SD_F32, SD_F16, SD_BF16 } sd_number;

/* A tensor as the caller has it: element (r, k) at data + r · row_stride + k · col_stride bytes. */
typedef struct sd_source {
    const void* data; /* borrowed for the call */
    sd_number number;
    ptrdiff_t row_stride, col_stride; /* bytes */
} sd_source;

/* One element of a source as f32. */
float sd_source_at(const sd_source* source, int row, int col);

/* Panels of a matrix with n_out outputs. */
int sd_matrix_panels(int n_out);

/* Take room for an empty matrix from the arena (which may be counting). */
sd_matrix sd_matrix_take(sd_arena* arena, int n_out, int n_in, int group);

/* Where source row r goes: rows in groups of 32 can be laid out alternately with those of another
 * matrix, so that one thread has both a gate and its up projection. */
typedef struct sd_rows {
    int first; /* row of the matrix that source row 0 becomes */
    int step;  /* 1: one after another; 2: every second group of 32 */
} sd_rows;

/* Pack n_rows of a source; fails on the first NaN or infinite value, naming `name`. */
sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name);

/* Copy row r to out [n_in] f32, borrowed. */
void sd_matrix_row(const sd_matrix* matrix, int r, float* out);

/* y[m, j] = Σ_k x[m, k] · matrix[j, k] for the panels in this thread's share, all rows.
 * x [n_rows, n_in] rows ldx apart, y [n_rows, 32 · n_panels] rows ldy apart; f32, borrowed.
 * With `prompt` set, OpenBLAS computes. Returns the columns written in *first, *end (< n_out). */
void sd_matrix_multiply(const sd_team* team, const sd_matrix* matrix, int prompt, int n_rows, const float* x,
                        ptrdiff_t ldx, float* y, ptrdiff_t ldy, int* first, int* end);

#endif
