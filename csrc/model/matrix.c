#include "matrix.h"

#include <string.h>

#include "half.h"
#include "kernels.h"

/* What the last level of cache has on the machines that were measured. */
#define SHARED_CACHE ((size_t)32 << 20)

const char* const sd_engine_names[SD_N_ENGINES] = {"rows", "tiles", "blas"};

sd_matrix sd_matrix_take(sd_arena* arena, sd_format format, sd_layout layout, int n_out, int n_in,
                         int group) {
    size_t per_panel = sd_panel_bytes(format, (size_t)n_in);
    size_t n_panels = layout & SD_LAYOUT_PANELS ? (size_t)sd_matrix_panels(n_out) : 0;
    size_t n_plain = layout & SD_LAYOUT_PLAIN ? (size_t)n_out : 0;
    char* panels = n_panels > 0 ? sd_arena_take(arena, n_panels, per_panel) : NULL;
    float* plain = n_plain > 0 ? sd_arena_take(arena, n_plain, (size_t)n_in * sizeof(float)) : NULL;
    int near = arena->base != NULL && arena->size < SHARED_CACHE;
    return (sd_matrix){n_out, n_in, group, format, near, panels, plain};
}

char* sd_matrix_panel(const sd_matrix* matrix, int panel) {
    return matrix->panels + (size_t)panel * sd_panel_bytes(matrix->format, (size_t)matrix->n_in);
}

static float int8_at(const uint8_t* panel, int j, int k) {
    const uint8_t* block = panel + (size_t)(k / SD_BLOCK) * SD_INT8_BLOCK_BYTES;
    const uint16_t* scales = (const uint16_t*)(const void*)(block + SD_BLOCK * SD_PANEL);
    int code = block[k % SD_BLOCK / 4 * 4 * SD_PANEL + 4 * j + k % 4];
    return (float)(code - 128) * sd_float_from_f16(scales[j]);
}

static float int4_at(const uint8_t* panel, int j, int k) {
    const uint8_t* block = panel + (size_t)(k / SD_BLOCK) * SD_INT4_BLOCK_BYTES;
    const uint16_t* scales = (const uint16_t*)(const void*)(block + SD_BLOCK * SD_PANEL / 2);
    int both = block[k % SD_BLOCK / 8 * 4 * SD_PANEL + 4 * j + k % 4];
    int code = k % 8 < 4 ? both & 15 : both >> 4;
    return (float)(code - 8) * sd_float_from_f16(scales[j]);
}

void sd_matrix_row(const sd_matrix* matrix, int r, float* out) {
    if (matrix->panels == NULL) {
        memcpy(out, matrix->plain + (ptrdiff_t)r * matrix->n_in, (size_t)matrix->n_in * sizeof *out);
        return;
    }
    const void* panel = sd_matrix_panel(matrix, r / SD_PANEL);
    int j = r % SD_PANEL;
    for (int k = 0; k < matrix->n_in; k++) {
        switch (matrix->format) {
        case SD_FORMAT_F32: out[k] = ((const float*)panel)[(size_t)k * SD_PANEL + j]; break;
        case SD_FORMAT_BF16:
            out[k] =
                sd_float_from_bf16(((const uint16_t*)panel)[((size_t)(k / 2) * SD_PANEL + j) * 2 + k % 2]);
            break;
        case SD_FORMAT_INT8: out[k] = int8_at(panel, j, k); break;
        case SD_FORMAT_INT4: out[k] = int4_at(panel, j, k); break;
        case SD_N_FORMATS: break;
        }
    }
}

/* A panel is lines of SD_PANEL numbers of 4 bytes, of which a format with scales has some for each block, and
 * behind them a line of scales. Lines of a block of inputs, or, without scales, of the whole panel. */
static size_t lines_of(const sd_matrix* m) {
    size_t n_in = (size_t)m->n_in;
    switch (m->format) {
    case SD_FORMAT_F32: return n_in;
    case SD_FORMAT_BF16: return (n_in + 1) / 2;
    case SD_FORMAT_INT8: return SD_BLOCK / 4;
    case SD_FORMAT_INT4: return SD_BLOCK / 8;
    case SD_N_FORMATS: break;
    }
    return 0;
}

/* Copy lane `from_lane` of a panel to a lane of another. */
static void copy_lane(const sd_matrix* m, const char* from, int from_lane, char* to, int to_lane) {
    int scaled = m->format == SD_FORMAT_INT8 || m->format == SD_FORMAT_INT4;
    size_t n_blocks = scaled ? sd_blocks((size_t)m->n_in) : 1, n_lines = lines_of(m), line = 4 * SD_PANEL;
    for (size_t block = 0; block < n_blocks; block++) {
        for (size_t i = 0; i < n_lines; i++, from += line, to += line)
            memcpy(to + 4 * to_lane, from + 4 * from_lane, 4);
        if (!scaled) continue;
        memcpy(to + 2 * to_lane, from + 2 * from_lane, 2);
        from += 2 * SD_PANEL;
        to += 2 * SD_PANEL;
    }
}

void sd_matrix_gather(const sd_matrix* from, const int32_t* rows, sd_matrix* to) {
    for (int r = 0; r < to->n_out; r++)
        copy_lane(from, sd_matrix_panel(from, rows[r] / SD_PANEL), rows[r] % SD_PANEL,
                  sd_matrix_panel(to, r / SD_PANEL), r % SD_PANEL);
}

int sd_matrix_grain(const sd_matrix* matrix, const sd_team* team) {
    int pieces = 8, grain = sd_matrix_panels(matrix->n_out) / matrix->group / (pieces * team->n_threads);
    return matrix->group * (grain > 1 ? grain : 1);
}

static int in_tiles(sd_engine engine, sd_format format) {
    return engine == SD_ENGINE_TILES && format != SD_FORMAT_F32;
}

void sd_rows_prepare(sd_engine engine, sd_format format, sd_part part, const float* x, ptrdiff_t ldx,
                     int n_in, void* out) {
    const sd_kernels* k = sd_kernels_get();
    sd_prepare_kernel prepare = in_tiles(engine, format) ? k->prepare_tiles : k->prepare[format];
    prepare(part, x, ldx, n_in, out);
}

void sd_matrix_multiply(const sd_matrix* matrix, sd_engine engine, int first, int end, int n_rows,
                        const void* x, float* y, ptrdiff_t ldy) {
    const sd_kernels* k = sd_kernels_get();
    if (in_tiles(engine, matrix->format)) {
        k->tiles[matrix->format](n_rows, x, sd_matrix_panel(matrix, first), end - first, matrix->n_in, y,
                                 ldy);
        return;
    }
    sd_panel_kernel multiply = k->panel[matrix->format];
    for (int p = first; p < end; p++, y += SD_PANEL)
        multiply(n_rows, x, sd_matrix_panel(matrix, p), matrix->n_in, matrix->near, y, ldy);
}
