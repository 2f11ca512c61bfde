/* A weight matrix: packed for the row kernels, as panels of SD_PANEL outputs interleaved along the inputs
 * (format.h), plain (for OpenBLAS), or both.
 *
 * Row r is output r % 32 of panel r / 32. Rows past n_out in the last panel are zero. */
#pragma once

#include "gemm.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"

/* Memory layouts of the weights, as bits. */
typedef enum sd_layout { SD_LAYOUT_PANELS = 1, SD_LAYOUT_PLAIN = 2, SD_LAYOUT_BOTH = 3 } sd_layout;

/* What multiplies rows: the row kernels; the row kernels in tile order (kernels.h), for matrices not in f32;
 * OpenBLAS. */
typedef enum sd_engine { SD_ENGINE_ROWS, SD_ENGINE_TILES, SD_ENGINE_BLAS, SD_N_ENGINES } sd_engine;

/* "rows", "tiles", "blas". */
extern const char* const sd_engine_names[SD_N_ENGINES];

/* A panel of sd_panel_bytes of its format, part of its matrix's memory. */
typedef struct sd_panel {
    char* at;
    sd_format format;
} sd_panel;

typedef struct sd_matrix {
    int n_out, n_in;
    int group;        /* panels that a thread computes together: 2 for gate and up, else 1 */
    int near;         /* the whole model is small enough to stay in a cache between forward passes */
    sd_row_type rows; /* how rows are prepared for its products: suits all of its panels */
    sd_panel* panels; /* [n_panels], adjacent, owned by the model's arena; NULL: only plain */
    float* plain;     /* [n_out, n_in] row-major, owned by the model's arena; NULL: only packed */
} sd_matrix;

/* Rows of a matrix that a source fills: groups of 32, which can alternate with those of another source, so
 * that one thread has both a gate and its up projection. */
typedef struct sd_rows {
    int first; /* row of the matrix that source row 0 becomes */
    int step;  /* 1: consecutive; 2: every second group of 32 */
} sd_rows;

/* Rows of a matrix in one format. */
typedef struct sd_matrix_part {
    sd_rows rows;
    int n_rows;
    sd_format format;
} sd_matrix_part;

/* Panels of a matrix with n_out outputs. */
static inline int sd_matrix_panels(int n_out) { return (n_out + SD_PANEL - 1) / SD_PANEL; }

/* Columns of n outputs in whole panels. */
static inline int sd_whole_panels(int n) { return SD_PANEL * sd_matrix_panels(n); }

/* Take memory for an empty matrix from the arena of its model (which may be counting). Plain weights are
 * f32. */
sd_matrix sd_matrix_take(sd_arena* arena, sd_format format, sd_layout layout, int n_out, int n_in, int group);

/* The same for a matrix with several parts, which together have all of its panels. Their formats need rows of
 * one type. */
sd_matrix sd_matrix_take_parts(sd_arena* arena, const sd_matrix_part* parts, int n_parts, sd_layout layout,
                               int n_out, int n_in, int group);

/* Read rows r … r + n − 1 of one panel, as products use them, into out [n, n_in] f32, borrowed. */
void sd_matrix_rows(const sd_matrix* matrix, int r, int n, float* out);

/* Copy rows [to->n_out], given by number, of a packed matrix whose panels have one format to another matrix
 * with that format and number of inputs. They stay packed: products have the same bits. All borrowed. */
void sd_matrix_gather(const sd_matrix* from, const int32_t* rows, sd_matrix* to);

/* Bands of rows as inputs of products: few enough rows that a cache holds them while all panels of a matrix
 * pass. The bits of a row do not depend on the bands. */
typedef struct sd_bands {
    int n_rows, n; /* number of rows, and of bands */
    int unit;      /* bands start at multiples of this */
} sd_bands;

/* The bands of n_rows rows of n_in inputs, for products with matrices of this row type by an engine other
 * than OpenBLAS. */
sd_bands sd_bands_of(sd_engine engine, sd_row_type row_type, int n_in, int n_rows);

/* First row of a band; n_rows after the last band. */
static inline int sd_band_row(sd_bands bands, int band) {
    int n_units = (bands.n_rows + bands.unit - 1) / bands.unit;
    int row = (int)((int64_t)n_units * band / bands.n) * bands.unit;
    return row < bands.n_rows ? row : bands.n_rows;
}

/* Groups of panels that a thread takes at a time, with the rows of one band: few enough that threads end
 * together. */
int sd_matrix_grain(const sd_matrix* matrix, const sd_team* team);

/* Prepare a part of rows for products with matrices of this row type, by an engine other than OpenBLAS: x
 * [part.n_rows, part.n_inputs] f32, rows ldx apart; out: all prepared rows, n_all · sd_prepared_bytes(n_in),
 * band after band, each in the layout of kernels.h. All borrowed. */
void sd_rows_prepare(sd_engine engine, sd_row_type row_type, sd_part part, const float* x, ptrdiff_t ldx,
                     int n_in, void* out);

/* y[m, j] = Σ_k x[m, k] · matrix[j, k] for the outputs of panels [first, end) and the rows m of one band, by
 * an engine other than OpenBLAS. x: all rows in their bands, prepared for the engine and the matrix,
 * borrowed; y [rows of the band, 32 · (end − first)] f32, rows ldy apart, borrowed. */
void sd_matrix_multiply(const sd_matrix* matrix, sd_engine engine, int first, int end, sd_bands bands,
                        int band, const void* x, float* y, ptrdiff_t ldy);

#ifdef SPECDEC_TESTING
/* Testing: bands of at most n_rows rows, but at least one unit; 0: the default. Invalidates rows prepared
 * before. */
void sd_bands_force(int n_rows);
#endif

/* ------------------------------------------------------------------------------ slices of prompts */

/* OpenBLAS has the longest slices, and its bits depend on them: they start at multiples of this. */
#define SD_BLAS_SLICE SD_GEMM_ROWS
#define SD_MOST_SLICE SD_BLAS_SLICE

/* Prompt tokens per slice for the row kernels, in either order, and these weights: enough that arithmetic
 * outweighs reading the weights. It changes no bits. */
int sd_row_slice(sd_format weights, sd_engine engine);

#ifdef SPECDEC_TESTING
/* Testing: slices of models created from now on; 0: those that sd_row_slice chooses. */
void sd_row_slice_force(int n);
#endif
