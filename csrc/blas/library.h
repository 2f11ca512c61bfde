/* OpenBLAS: a shared library that is loaded when it is first needed, once for each process.
 *
 * The default build bundles a copy of its own: a file next to the extension whose soname and symbols nobody
 * else has (cmake/openblas.cmake). It computes on the thread that calls it and starts none. Another OpenBLAS
 * in the process is not touched. A build for the system's library shares that with whoever else has loaded
 * it: its number of threads is set to 1 for all of them. */
#pragma once

#include "status.h"

/* Load the library if it has not been loaded; SD_ERR_LIBRARY, with the loader's message, if it is not there
 * or is no OpenBLAS that can be used. No other thread may change the environment meanwhile: OpenBLAS reads
 * its settings there, and sees its own for as long as it is being loaded. A bundled copy is set to use one
 * thread, and to use its kernels for AVX-512 wherever the processor has it; OPENBLAS_CORETYPE, if set,
 * chooses other kernels. */
sd_status sd_library_load(void);

/* See that there is memory for calls on n_threads threads at once: OpenBLAS maps a buffer for each, when it
 * is first needed, and ends the process where it cannot. SD_ERR_MEMORY if there is none. The library has
 * been loaded. */
sd_status sd_library_reserve(int n_threads);

/* The library's description of itself: version, options, the processor whose kernels it uses; static. The
 * library has been loaded. */
const char* sd_library_description(void);

/* y[m, j] = Σ_k x[m, k] · matrix[j, k], by one call of cblas_sgemm, on the calling thread; x [n_rows, n_in]
 * and y [n_rows, n_out] f32, rows ldx and ldy apart, matrix [n_out, n_in] row-major; all borrowed. The
 * library has been loaded. A fork waits for calls that are on their way, as they hold locks of OpenBLAS. */
void sd_library_multiply(int n_rows, int n_out, int n_in, const float* x, int ldx, const float* matrix,
                         float* y, int ldy);
