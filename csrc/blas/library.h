/* OpenBLAS: a shared library, loaded on first use, once per process.
 *
 * The default build bundles its own copy: a file next to the extension, with a private soname and private
 * symbols (cmake/openblas.cmake). It computes on the calling thread and starts none. Other copies of OpenBLAS
 * in the process are not touched. A build for the system's library shares it with its other users: its number
 * of threads is set to 1 for all of them. */
#pragma once

#include "status.h"

/* Load the library unless it is loaded. SD_ERR_LIBRARY, with the loader's message, if it is missing or not a
 * usable OpenBLAS. OpenBLAS reads its settings from the environment, which is replaced while it loads, so no
 * other thread may change the environment meanwhile. A bundled copy uses one thread, and its AVX-512 kernels
 * wherever the processor has AVX-512, unless OPENBLAS_CORETYPE chooses others. */
sd_status sd_library_load(void);

/* Check that there is memory for simultaneous calls on n_threads threads. OpenBLAS maps a buffer for each
 * thread on first use, and ends the process if it cannot. SD_ERR_MEMORY if there is too little. The library
 * must be loaded. */
sd_status sd_library_reserve(int n_threads);

/* The library's own description: version, options, and the processor whose kernels it uses; static. The
 * library must be loaded. */
const char* sd_library_description(void);

/* y[m, j] = Σ_k x[m, k] · matrix[j, k], by one call of cblas_sgemm, on the calling thread; x [n_rows, n_in]
 * and y [n_rows, n_out] f32, rows ldx and ldy apart, matrix [n_out, n_in] row-major; all borrowed. The
 * library must be loaded. A fork waits for running calls, because they hold locks of OpenBLAS. */
void sd_library_multiply(int n_rows, int n_out, int n_in, const float* x, int ldx, const float* matrix,
                         float* y, int ldy);
