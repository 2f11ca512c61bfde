#include "gemm.h"

#include "library.h"

#define MIN_COLUMNS 64
#define MAX_COLUMNS 256

/* Outputs of a slice: enough of them that packing rows is little work beside multiplying, and few enough that
 * there are slices for several threads. */
static int slice_columns(int n_out) {
    int n = (n_out / 8 + MIN_COLUMNS - 1) / MIN_COLUMNS * MIN_COLUMNS;
    return n < MIN_COLUMNS ? MIN_COLUMNS : n > MAX_COLUMNS ? MAX_COLUMNS : n;
}

static int smaller(int a, int b) { return a < b ? a : b; }

static void multiply_slices(void* argument, int thread, int first, int end) {
    (void)thread;
    const sd_gemm* g = argument;
    int columns = slice_columns(g->n_out), n_beside = (g->n_out + columns - 1) / columns;
    for (int i = first; i < end; i++) {
        int row = i / n_beside * SD_GEMM_ROWS, column = i % n_beside * columns;
        sd_library_multiply(smaller(SD_GEMM_ROWS, g->n_rows - row), smaller(columns, g->n_out - column),
                            g->n_in, g->x + row * g->ldx, (int)g->ldx,
                            g->matrix + (ptrdiff_t)column * g->n_in, g->y + row * g->ldy + column,
                            (int)g->ldy);
    }
}

void sd_gemm_run(const sd_team* team, const sd_gemm* gemm) {
    int columns = slice_columns(gemm->n_out);
    int n_below = (gemm->n_rows + SD_GEMM_ROWS - 1) / SD_GEMM_ROWS;
    int n_beside = (gemm->n_out + columns - 1) / columns;
    sd_gemm borrowed = *gemm;
    sd_team_run(team, n_below * n_beside, 1, multiply_slices, &borrowed);
}
