#include "gemm.h"

#include "library.h"

#define MIN_COLUMNS 128
#define UNIT 64 /* of their number */

static int smaller(int a, int b) { return a < b ? a : b; }

/* Outputs of a slice: enough that packing rows costs little compared to multiplying, and few enough to have
 * slices for several threads. */
static int slice_columns(const sd_gemm* g) {
    int n = (g->n_out / 8 + UNIT - 1) / UNIT * UNIT;
    return n < MIN_COLUMNS ? MIN_COLUMNS : smaller(n, SD_GEMM_COLUMNS);
}

static int slices_per_row(const sd_gemm* g) {
    int columns = slice_columns(g);
    return (g->n_out + columns - 1) / columns;
}

int sd_gemm_slices(const sd_gemm* g) {
    return (g->n_rows + SD_GEMM_ROWS - 1) / SD_GEMM_ROWS * slices_per_row(g);
}

sd_gemm_slice sd_gemm_slice_at(const sd_gemm* g, int i) {
    int columns = slice_columns(g), n_per_row = slices_per_row(g);
    int row = i / n_per_row * SD_GEMM_ROWS, column = i % n_per_row * columns;
    return (sd_gemm_slice){row, smaller(SD_GEMM_ROWS, g->n_rows - row), column,
                           smaller(columns, g->n_out - column)};
}

void sd_gemm_compute(const sd_gemm* g, sd_gemm_slice s) {
    sd_library_multiply(s.n_rows, s.n_columns, g->n_in, g->x + s.row * g->ldx, (int)g->ldx,
                        g->matrix + (ptrdiff_t)s.column * g->n_in, g->y + s.row * g->ldy + s.column,
                        (int)g->ldy);
}

static void compute_slices(void* argument, int thread, int first, int end) {
    (void)thread;
    for (int i = first; i < end; i++) sd_gemm_compute(argument, sd_gemm_slice_at(argument, i));
}

void sd_gemm_run(const sd_team* team, const sd_gemm* gemm) {
    sd_gemm borrowed = *gemm;
    sd_team_run(team, sd_gemm_slices(gemm), 1, compute_slices, &borrowed);
}
