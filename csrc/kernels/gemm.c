#include "gemm.h"

#include <cblas.h>

#include "kernels.h"

/* The PyPI build of OpenBLAS prefixes its symbols, so that it can live beside others. */
#ifdef SD_BLAS_PREFIXED
#define BLAS(name) scipy_##name
#else
#define BLAS(name) name
#endif

void sd_gemm_init(void) { BLAS(openblas_set_num_threads)(1); }

void sd_gemm_panel(int n_rows, const float* x, ptrdiff_t ldx, const float* panel, int n_k, float* y,
                   ptrdiff_t ldy) {
    BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_rows, SD_PANEL, n_k, 1.0f, x, (int)ldx,
                      panel, SD_PANEL, 0.0f, y, (int)ldy);
}

const char* sd_gemm_info(void) { return BLAS(openblas_get_config)(); }
