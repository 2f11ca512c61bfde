/* Matrix product for prompts, over OpenBLAS: the one place where a sum's order is not our own.
 *
 * A slice of a prompt always has the same shape and is always computed by one call per panel on
 * one thread, so its bits depend on the prompt and the machine only (docs/NUMERICS.md). */
#ifndef SD_GEMM_H
#define SD_GEMM_H

#include <stddef.h>

/* Switch OpenBLAS's own threads off: it is called from ours. Call once, at start. */
void sd_gemm_init(void);

/* As sd_kernels.panel, for many rows. x [n_rows, n_k] rows `ldx` apart, panel [n_k, SD_PANEL],
 * y [n_rows, SD_PANEL] rows `ldy` apart; f32, borrowed. */
void sd_gemm_panel(int n_rows, const float* x, ptrdiff_t ldx, const float* panel, int n_k, float* y,
                   ptrdiff_t ldy);

/* OpenBLAS's description of itself; static. */
const char* sd_gemm_info(void);

#endif
