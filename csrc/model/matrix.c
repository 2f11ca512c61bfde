#include "matrix.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "gemm.h"
#include "kernels.h"

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f; /* subnormal halves are exact in f32 */
    return sign ? -tiny : tiny;
}

float sd_source_at(const sd_source* source, int row, int col) {
    const char* at = (const char*)source->data + row * source->row_stride + col * source->col_stride;
    float value = 0.0f;
    uint16_t half = 0;
    switch (source->number) {
    case SD_F32: memcpy(&value, at, sizeof value); break;
    case SD_F16: memcpy(&half, at, sizeof half), value = from_f16(half); break;
    case SD_BF16: memcpy(&half, at, sizeof half), value = from_bits((uint32_t)half << 16); break;
    }
    return value;
}

int sd_matrix_panels(int n_out) { return (n_out + SD_PANEL - 1) / SD_PANEL; }

sd_matrix sd_matrix_take(sd_arena* arena, int n_out, int n_in, int group) {
    size_t per_panel = (size_t)n_in * SD_PANEL * sizeof(float);
    return (sd_matrix){n_out, n_in, group, sd_arena_take(arena, (size_t)sd_matrix_panels(n_out), per_panel)};
}

static float* element(const sd_matrix* matrix, int row, int col) {
    size_t panel = (size_t)(row / SD_PANEL) * SD_PANEL * (size_t)matrix->n_in;
    return matrix->panels + panel + (size_t)col * SD_PANEL + row % SD_PANEL;
}

sd_status sd_matrix_pack(sd_matrix* matrix, const sd_source* source, int n_rows, sd_rows rows,
                         const char* name) {
    for (int r = 0; r < n_rows; r++) {
        int row = rows.first + r / SD_PANEL * SD_PANEL * rows.step + r % SD_PANEL;
        assert(row < matrix->n_out);
        float* to = element(matrix, row, 0);
        for (int k = 0; k < matrix->n_in; k++, to += SD_PANEL) {
            float value = sd_source_at(source, r, k);
            if (!isfinite(value))
                return sd_fail(SD_ERR_NOT_FINITE,
                               "tensor %s: element [%d, %d] is %g, expected a finite number", name, r, k,
                               (double)value);
            *to = value;
        }
    }
    return SD_OK;
}

void sd_matrix_row(const sd_matrix* matrix, int r, float* out) {
    const float* from = element(matrix, r, 0);
    for (int k = 0; k < matrix->n_in; k++, from += SD_PANEL) out[k] = *from;
}

void sd_matrix_multiply(const sd_team* team, const sd_matrix* matrix, int prompt, int n_rows, const float* x,
                        ptrdiff_t ldx, float* y, ptrdiff_t ldy, int* first, int* end) {
    void (*multiply)(int, const float*, ptrdiff_t, const float*, int, float*, ptrdiff_t) =
        prompt ? sd_gemm_panel : sd_kernels_get()->panel;
    int p, p_end;
    sd_team_share(team, sd_matrix_panels(matrix->n_out) / matrix->group, &p, &p_end);
    p *= matrix->group, p_end *= matrix->group;
    *first = p * SD_PANEL;
    for (; p < p_end; p++) {
        const float* panel = matrix->panels + (size_t)p * SD_PANEL * (size_t)matrix->n_in;
        multiply(n_rows, x, ldx, panel, matrix->n_in, y + (ptrdiff_t)p * SD_PANEL, ldy);
    }
    *end = p_end * SD_PANEL < matrix->n_out ? p_end * SD_PANEL : matrix->n_out;
    if (*first > *end) *first = *end;
}
