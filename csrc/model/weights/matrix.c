#include "matrix.h"

#include <stdint.h>
#include <string.h>

#include "format.h"
#include "half.h"
#include "kernels.h"

/* Last-level cache of the measured machines. */
#define SHARED_CACHE ((size_t)32 << 20)

const char* const sd_engine_names[SD_N_ENGINES] = {"rows", "tiles", "blas"};

/* Bytes of all panels; the largest number, which no arena has, on overflow. */
static size_t bytes_of_parts(const sd_matrix_part* parts, int n_parts, int n_in) {
    size_t bytes = 0, of_part;
    for (int i = 0; i < n_parts; i++) {
        size_t n = (size_t)sd_matrix_panels(parts[i].n_rows);
        if (__builtin_mul_overflow(n, sd_panel_bytes(parts[i].format, (size_t)n_in), &of_part) ||
            __builtin_add_overflow(bytes, of_part, &bytes))
            return SIZE_MAX;
    }
    return bytes;
}

/* Lay out the panels in order, whatever parts they belong to. */
static void lay_out_panels(const sd_matrix* m, const sd_matrix_part* parts, int n_parts, char* at) {
    for (int i = 0; i < n_parts; i++)
        for (int p = 0; p < sd_matrix_panels(parts[i].n_rows); p++)
            m->panels[parts[i].rows.first / SD_PANEL + p * parts[i].rows.step].format = parts[i].format;
    for (int p = 0; p < sd_matrix_panels(m->n_out); p++) {
        m->panels[p].at = at;
        at += sd_panel_bytes(m->panels[p].format, (size_t)m->n_in);
    }
}

sd_matrix sd_matrix_take_parts(sd_arena* arena, const sd_matrix_part* parts, int n_parts, sd_layout layout,
                               int n_out, int n_in, int group) {
    sd_matrix m = {.n_out = n_out, .n_in = n_in, .group = group, .rows = sd_rows_of(parts[0].format)};
    for (int i = 1; i < n_parts; i++)
        if (sd_rows_of(parts[i].format) > m.rows) m.rows = sd_rows_of(parts[i].format);
    m.near = arena->base != NULL && arena->size < SHARED_CACHE;
    if (layout & SD_LAYOUT_PANELS) {
        m.panels = sd_arena_take(arena, (size_t)sd_matrix_panels(n_out), sizeof *m.panels);
        char* at = sd_arena_take(arena, bytes_of_parts(parts, n_parts, n_in), 1);
        if (m.panels != NULL) lay_out_panels(&m, parts, n_parts, at);
    }
    if (layout & SD_LAYOUT_PLAIN) m.plain = sd_arena_take(arena, (size_t)n_out, (size_t)n_in * sizeof(float));
    return m;
}

sd_matrix sd_matrix_take(sd_arena* arena, sd_format format, sd_layout layout, int n_out, int n_in,
                         int group) {
    const sd_matrix_part all = {{0, 1}, n_out, format};
    return sd_matrix_take_parts(arena, &all, 1, layout, n_out, n_in, group);
}

/* Lane j of an int8 panel: blocks of codes, each followed by its scales. */
static void int8_lane(const uint8_t* panel, int j, int n_in, float* out) {
    for (int k = 0; k < n_in; k += SD_BLOCK, panel += SD_INT8_BLOCK_BYTES) {
        const uint16_t* scales = (const uint16_t*)(const void*)(panel + SD_BLOCK * SD_PANEL);
        float scale = sd_float_from_f16(scales[j]);
        for (int i = 0; i < SD_BLOCK && k + i < n_in; i++)
            out[k + i] = (float)(panel[i / 4 * 4 * SD_PANEL + 4 * j + i % 4] - 128) * scale;
    }
}

static void int4_lane(const uint8_t* panel, int j, int n_in, float* out) {
    for (int k = 0; k < n_in; k += SD_BLOCK, panel += SD_INT4_BLOCK_BYTES) {
        const uint16_t* scales = (const uint16_t*)(const void*)(panel + SD_BLOCK * SD_PANEL / 2);
        float scale = sd_float_from_f16(scales[j]);
        for (int i = 0; i < SD_BLOCK && k + i < n_in; i++) {
            int both = panel[i / 8 * 4 * SD_PANEL + 4 * j + i % 4];
            out[k + i] = (float)((i % 8 < 4 ? both & 15 : both >> 4) - 8) * scale;
        }
    }
}

/* Lane j of a panel in an uncoded format. */
static void own_lane(sd_format format, const void* panel, int j, int n_in, float* out) {
    const float* floats = panel;
    const uint16_t* pairs = panel;
    switch (format) {
    case SD_FORMAT_F32:
        for (int k = 0; k < n_in; k++) out[k] = floats[(size_t)k * SD_PANEL + (size_t)j];
        break;
    case SD_FORMAT_BF16:
        for (int k = 0; k < n_in; k++)
            out[k] = sd_float_from_bf16(pairs[((size_t)(k / 2) * SD_PANEL + (size_t)j) * 2 + k % 2]);
        break;
    case SD_FORMAT_INT8: int8_lane(panel, j, n_in, out); break;
    case SD_FORMAT_INT4: int4_lane(panel, j, n_in, out); break;
    default: break;
    }
}

/* First n inputs of lane j of an unpacked part. */
static void unpacked_lane(sd_coded coded, const sd_unpacked* part, int j, int n, float* out) {
    const int n_here = SD_BLOCK / coded.n_halves;
    for (int k = 0; k < n; k += n_here) {
        const int b = k / SD_BLOCK, h = k % SD_BLOCK / n_here, end = n - k < n_here ? n - k : n_here;
        const uint8_t (*lines)[SD_PANEL][4] = &part->codes[b][k % SD_BLOCK / 4];
        float scale = part->scale[b][h][j], minimum = coded.has_minimum ? part->minimum[b][h][j] : 0.0f;
        float values[SD_BLOCK];
        for (int l = 0; l < n_here / 4; l++)
            for (int i = 0; i < 4; i++) /* the product is exact */
                values[4 * l + i] = (float)(lines[l][j][i] - coded.offset) * scale + minimum;
        memcpy(out + k, values, (size_t)end * sizeof *values);
    }
}

/* Read n lanes from lane j on of a panel in a coded format. Each part is unpacked once for all lanes. */
static void coded_lanes(sd_format format, const char* panel, int j, int n, int n_in, float* out) {
    enum { INPUTS = SD_PART_BLOCKS * SD_BLOCK };
    const sd_coded coded = sd_coded_of(format);
    sd_unpacked part;
    for (int k = 0; k < n_in; k += INPUTS, panel += sd_panel_bytes(format, INPUTS)) {
        int n_here = n_in - k < INPUTS ? n_in - k : INPUTS;
        sd_kernels_get()->unpack[format](panel, (int)sd_blocks((size_t)n_here), &part);
        for (int l = 0; l < n; l++) unpacked_lane(coded, &part, j + l, n_here, out + (ptrdiff_t)l * n_in + k);
    }
}

void sd_matrix_rows(const sd_matrix* matrix, int r, int n, float* out) {
    const int n_in = matrix->n_in, j = r % SD_PANEL;
    if (matrix->panels == NULL) {
        memcpy(out, matrix->plain + (ptrdiff_t)r * n_in, (size_t)n * (size_t)n_in * sizeof *out);
        return;
    }
    const sd_panel panel = matrix->panels[r / SD_PANEL];
    if (panel.format >= SD_N_OWN_FORMATS) {
        coded_lanes(panel.format, panel.at, j, n, n_in, out);
        return;
    }
    for (int l = 0; l < n; l++) own_lane(panel.format, panel.at, j + l, n_in, out + (ptrdiff_t)l * n_in);
}

/* Lines of a block of inputs or, without scales, of the whole panel. A panel consists of lines of SD_PANEL
 * 4-byte numbers; a format with scales has a line of scales after the lines of each block. */
static size_t lines_of(sd_format format, size_t n_in) {
    switch (format) {
    case SD_FORMAT_F32: return n_in;
    case SD_FORMAT_BF16: return (n_in + 1) / 2;
    case SD_FORMAT_INT8: return SD_BLOCK / 4;
    case SD_FORMAT_INT4: return SD_BLOCK / 8;
    default: return 0;
    }
}

/* Copy lane `from_lane` of a panel in a coded format to a lane of another panel. A line has 4, 2 or 1 bytes
 * of each lane. */
static void copy_coded_lane(sd_format format, size_t n_in, const char* from, int from_lane, char* to,
                            int to_lane) {
    const size_t header = sd_coded_header_bytes(format) / SD_PANEL,
                 block = sd_coded_block_bytes(format) / SD_PANEL;
    for (size_t b = 0; b < sd_blocks(n_in); b++) {
        if (b % SD_PART_BLOCKS == 0)
            for (size_t i = 0; i < header / 2; i++, from += 2 * SD_PANEL, to += 2 * SD_PANEL)
                memcpy(to + 2 * to_lane, from + 2 * from_lane, 2);
        size_t n_lines = sd_coded_code_bytes(format) / (4 * SD_PANEL),
               width = (size_t)sd_coded_of(format).scale_bytes;
        for (size_t i = 0; i < n_lines; i++, from += 4 * SD_PANEL, to += 4 * SD_PANEL)
            memcpy(to + 4 * to_lane, from + 4 * from_lane, 4);
        for (size_t i = block - 4 * n_lines; i > 0;
             i -= width, from += width * SD_PANEL, to += width * SD_PANEL)
            memcpy(to + width * (size_t)to_lane, from + width * (size_t)from_lane, width);
    }
}

/* The same for a panel in any format. */
static void copy_lane(sd_format format, size_t n_in, const char* from, int from_lane, char* to, int to_lane) {
    int scaled = sd_rows_of(format) == SD_ROWS_CODES;
    if (format >= SD_N_OWN_FORMATS) {
        copy_coded_lane(format, n_in, from, from_lane, to, to_lane);
        return;
    }
    size_t n_blocks = scaled ? sd_blocks(n_in) : 1, n_lines = lines_of(format, n_in), line = 4 * SD_PANEL;
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
        copy_lane(from->panels[0].format, (size_t)from->n_in, from->panels[rows[r] / SD_PANEL].at,
                  rows[r] % SD_PANEL, to->panels[r / SD_PANEL].at, r % SD_PANEL);
}

int sd_matrix_grain(const sd_matrix* matrix, const sd_team* team) {
    int n_groups = sd_matrix_panels(matrix->n_out) / matrix->group;
    int pieces = 8, grain = n_groups / (pieces * team->n_threads);
    return grain > 1 ? grain : 1;
}

static int in_tiles(sd_engine engine, sd_row_type row_type) {
    return engine == SD_ENGINE_TILES && row_type != SD_ROWS_F32;
}

/* Approximate bytes of a prepared row that products read. */
static size_t row_bytes(sd_engine engine, sd_row_type row_type, int n_in) {
    size_t n_blocks = sd_blocks((size_t)n_in);
    if (in_tiles(engine, row_type)) return n_blocks * SD_BLOCK * 2;
    return row_type >= SD_ROWS_CODES ? n_blocks * (SD_BLOCK + sizeof(sd_row_block))
                                     : sd_prepared_bytes((size_t)n_in);
}

/* Rows of a band: as many as take this many bytes, within limits. */
typedef struct band_limits {
    int unit, fewest, most;
    size_t bytes;
} band_limits;

/* Measured with a second-level cache of 2 MiB (benchmarks/SPEED.md). The row kernels store sums between the
 * parts of a panel, so a band's sums should fit a first-level cache. Tiles pass a panel so fast that it has
 * to serve many rows, and divide inputs themselves. */
static const band_limits of_rows = {12, 48, 96, (size_t)768 << 10};
static const band_limits of_tiles = {32, 512, 512, SIZE_MAX};

static int forced_rows;

sd_bands sd_bands_of(sd_engine engine, sd_row_type row_type, int n_in, int n_rows) {
    const band_limits limits = in_tiles(engine, row_type) ? of_tiles : of_rows;
    size_t fitting = limits.bytes / row_bytes(engine, row_type, n_in);
    int most = fitting < (size_t)limits.most ? (int)fitting : limits.most;
    if (most < limits.fewest) most = limits.fewest;
    if (forced_rows > 0) most = forced_rows;
    int n_units = (n_rows + limits.unit - 1) / limits.unit, per_band = most / limits.unit;
    if (per_band < 1) per_band = 1;
    return (sd_bands){n_rows, (n_units + per_band - 1) / per_band, limits.unit};
}

void sd_rows_prepare(sd_engine engine, sd_row_type row_type, sd_part part, const float* x, ptrdiff_t ldx,
                     int n_in, void* out) {
    const sd_kernels* k = sd_kernels_get();
    sd_prepare_kernel prepare = in_tiles(engine, row_type) ? k->prepare_tiles : k->prepare[row_type];
    sd_bands bands = sd_bands_of(engine, row_type, n_in, part.n_all);
    for (int b = 0; b < bands.n; b++) {
        int first = sd_band_row(bands, b), end_row = sd_band_row(bands, b + 1);
        int from = part.row > first ? part.row : first,
            end = part.row + part.n_rows < end_row ? part.row + part.n_rows : end_row;
        if (from >= end) continue;
        const sd_part here = {end_row - first, from - first, end - from, part.input, part.n_inputs};
        prepare(here, x + (from - part.row) * ldx, ldx, n_in,
                (char*)out + (size_t)first * sd_prepared_bytes((size_t)n_in));
    }
}

void sd_matrix_multiply(const sd_matrix* matrix, sd_engine engine, int first, int end, sd_bands bands,
                        int band, const void* x, float* y, ptrdiff_t ldy) {
    const sd_kernels* k = sd_kernels_get();
    int row = sd_band_row(bands, band), n_rows = sd_band_row(bands, band + 1) - row;
    const char* rows = (const char*)x + (size_t)row * sd_prepared_bytes((size_t)matrix->n_in);
    const sd_panel* at = matrix->panels;
    int tiles = in_tiles(engine, matrix->rows);
    for (int p = first, n; p < end; p += n, y += (ptrdiff_t)n * SD_PANEL) {
        n = 1;
        if (!tiles) {
            k->panel[at[p].format](n_rows, rows, at[p].at, matrix->n_in, matrix->near, y, ldy);
            continue;
        }
        while (p + n < end && at[p + n].format == at[p].format) n++;
        k->tiles[at[p].format](n_rows, rows, at[p].at, n, matrix->n_in, y, ldy);
    }
}

#ifdef SPECDEC_TESTING
void sd_bands_force(int n_rows) { forced_rows = n_rows; }
#endif

static int forced;

/* Rows of longer slices do not fit the second-level cache; tiles multiply codes so fast that slices of 128
 * pay nevertheless (benchmarks/SPEED.md). */
int sd_row_slice(sd_format weights, sd_engine engine) {
    if (forced > 0) return forced;
    if (engine == SD_ENGINE_TILES) return SD_MOST_SLICE;
    int by_tiles = sd_kernels_get()->thresholds.tiles_from[weights] < SD_NEVER;
    return weights == SD_FORMAT_F32 || by_tiles ? 128 : 64;
}

#ifdef SPECDEC_TESTING
void sd_row_slice_force(int n) { forced = n; }
#endif
