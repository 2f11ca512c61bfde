/* Products in the order of tiles, for sets without the instruction TDPBF16PS (docs/NUMERICS.md).
 *
 * Included after products_template.h. A sum of two numbers is v_fma_flush(1, a, b), which rounds once.
 *
 * Each output has, per chunk of 32 inputs, two chains from +0: one over the even inputs, one over the odd
 * ones, each k ascending. Their sum is added to the output. Missing inputs are 0, and subnormals are
 * flushed throughout. Prepared rows are chunks as in products_template.h, of floats rounded to bf16, in
 * the order of the inputs. Chunks of int8 and int4 panels are first converted to bf16. */

/* Rows of a block: two chains per row, for both halves of a panel at once if there are enough registers. */
#define TILE_HALVES (MAX_ROWS_WIDE >= 6 ? 2 : 1)
#define TILE_ROWS (TILE_HALVES == 2 ? 6 : 3)

/* y (+)= a chunk of n_rows rows times the n_pairs pairs of inputs in a chunk of a panel. n_rows is
 * constant where this is inlined; y [n_rows, SD_PANEL], rows ldy apart, is added to with `add`. */
INLINE void tile_block(const int n_rows, const float* x, const uint16_t* chunk, int n_pairs, int add,
                       float* y, ptrdiff_t ldy) {
    const int n_halves = TILE_HALVES;
    for (int first = 0; first < 2; first += n_halves) {
        vec even[TILE_ROWS][TILE_HALVES], odd[TILE_ROWS][TILE_HALVES];
        FOR_ROWS FOR_HALVES even[m][h] = odd[m][h] = v_set1(0.0f);
        const uint16_t* panel = chunk + 2 * SD_LANES * first;
        for (int i = 0; i < n_pairs; i++, panel += 2 * SD_PANEL) {
            vec w[TILE_HALVES];
            FOR_HALVES w[h] = v_even_bf16(panel + 2 * SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + 2 * i]);
                FOR_HALVES even[m][h] = v_fma_flush(b, w[h], even[m][h]);
            }
            FOR_HALVES w[h] = v_odd_bf16(panel + 2 * SD_LANES * h);
            FOR_ROWS {
                vec b = v_set1(x[m * SD_BLOCK + 2 * i + 1]);
                FOR_HALVES odd[m][h] = v_fma_flush(b, w[h], odd[m][h]);
            }
        }
        const vec one = v_set1(1.0f);
        FOR_ROWS FOR_HALVES {
            float* to = y + m * ldy + SD_LANES * (first + h);
            vec sum = v_fma_flush(one, even[m][h], odd[m][h]);
            if (n_pairs < SD_BLOCK / 2) sum = v_add(sum, v_set1(0.0f)); /* missing inputs make -0 +0 */
            v_store(to, v_fma_flush(one, sum, add ? v_load(to) : v_set1(0.0f)));
        }
    }
}

/* Call the block function for n_rows rows, as in products_template.h. */
static void NAME(tile_blocks)(int n_rows, const float* x, const uint16_t* chunk, int n_pairs, int add,
                              float* y, ptrdiff_t ldy) {
    switch (n_rows) {
    case 1: tile_block(1, x, chunk, n_pairs, add, y, ldy); break;
    case 2: tile_block(2, x, chunk, n_pairs, add, y, ldy); break;
    case 3: tile_block(3, x, chunk, n_pairs, add, y, ldy); break;
#define MORE(n) \
    case n: tile_block(TILE_ROWS < n ? 1 : n, x, chunk, n_pairs, add, y, ldy); break
        MORE(4);
        MORE(5);
        MORE(6);
#undef MORE
    }
}

/* The weight of the code at bit `shift` of a line's word, rounded to bf16. The product is exact; zero is
 * +0. */
INLINE uint32_t weight_of(const int is_int4, uint32_t word, int shift, float scale) {
    int code = is_int4 ? (int)(word >> shift & 15) - 8 : (int)(word >> shift & 255) - 128;
    return sd_bf16_from_float((float)code * scale + 0.0f);
}

/* Convert a block of an int8 or int4 panel to a chunk of a bf16 panel. */
INLINE void dequantize(const int is_int4, const uint8_t* block, uint16_t* chunk) {
    const int n_lines = SD_BLOCK / (is_int4 ? 8 : 4), n_pairs = is_int4 ? 4 : 2; /* of a line */
    const uint8_t* scales = block + n_lines * 4 * SD_PANEL;
    float scale[SD_PANEL];
    for (int j = 0; j < SD_PANEL; j += UNIT_LANES)
        u_store(scale + j, u_half((const uint16_t*)(const void*)scales + j));
    for (int line = 0; line < n_lines; line++, block += 4 * SD_PANEL)
        for (int pair = 0; pair < n_pairs; pair++, chunk += 2 * SD_PANEL) {
            int shift = pair % 2 * 16 + pair / 2 * 4;
            for (int j = 0; j < SD_PANEL; j++) {
                uint32_t word, both;
                memcpy(&word, block + 4 * j, sizeof word);
                both = weight_of(is_int4, word, shift, scale[j]);
                both |= weight_of(is_int4, word, shift + 8, scale[j]) << 16;
                memcpy(chunk + 2 * j, &both, sizeof both);
            }
        }
}

/* Multiply all rows with a chunk of a bf16 panel, which stays in the first-level cache. */
INLINE void multiply_chunk(int n_rows, const float* x, const uint16_t* chunk, int n_pairs, int add, float* y,
                           ptrdiff_t ldy) {
    int n_blocks = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int b = 0, first = 0; b < n_blocks; b++) {
        int rows = (n_rows - first + n_blocks - b - 1) / (n_blocks - b); /* even shares */
        NAME(tile_blocks)(rows, x + first * SD_BLOCK, chunk, n_pairs, add, y + first * ldy, ldy);
        first += rows;
    }
}

/* Multiply all rows with a panel; missing inputs of formats with codes are zeros. With `add`, sums continue
 * from y. */
INLINE void multiply_tiles(const sd_format format, int n_rows, const float* x, const char* panel, int n_in,
                           int add, float* y, ptrdiff_t ldy) {
    const ptrdiff_t bytes = (ptrdiff_t)sd_panel_bytes(format, SD_BLOCK);
    uint16_t dequantized[SD_BLOCK * SD_PANEL];
    for (int k = 0; k < n_in; k += SD_BLOCK, panel += bytes, x += (ptrdiff_t)n_rows * SD_BLOCK) {
        if (format == SD_FORMAT_BF16) {
            int n_pairs = ((n_in - k < SD_BLOCK ? n_in - k : SD_BLOCK) + 1) / 2;
            multiply_chunk(n_rows, x, (const uint16_t*)(const void*)panel, n_pairs, add || k > 0, y, ldy);
        } else {
            dequantize(format == SD_FORMAT_INT4, (const uint8_t*)panel, dequantized);
            multiply_chunk(n_rows, x, dequantized, SD_BLOCK / 2, add || k > 0, y, ldy);
        }
    }
}

#define DEFINE_TILES(name, format)                                                                          \
    static void NAME(name)(int n_rows, const void* x, const void* panels, int n_panels, int n_in, float* y, \
                           ptrdiff_t ldy) {                                                                 \
        const char* panel = panels;                                                                         \
        for (int p = 0; p < n_panels; p++, panel += sd_panel_bytes(format, (size_t)n_in))                   \
            FLUSHED(multiply_tiles(format, n_rows, x, panel, n_in, 0, y + (ptrdiff_t)p * SD_PANEL, ldy));   \
    }
DEFINE_TILES(tiles_bf16, SD_FORMAT_BF16)
DEFINE_TILES(tiles_int8, SD_FORMAT_INT8)
DEFINE_TILES(tiles_int4, SD_FORMAT_INT4)

static void NAME(add_tiles)(int n_rows, int n_panels, const void* x, const void* panels, int n_in, int add,
                            float* y, ptrdiff_t ldy, ptrdiff_t step) {
    const char* panel = panels;
    for (int p = 0; p < n_panels; p++, panel += sd_panel_bytes(SD_FORMAT_BF16, (size_t)n_in), y += step)
        FLUSHED(multiply_tiles(SD_FORMAT_BF16, n_rows, x, panel, n_in, add, y, ldy));
}

static void NAME(pair_rows)(int n_pairs, const uint16_t* x, uint16_t* y) {
    for (int i = 0; i < n_pairs; i++, x += 2 * SD_PANEL, y += 2 * SD_PANEL)
        for (int j = 0; j < SD_LANES; j++) {
            uint32_t a, b;
            memcpy(&a, x + 2 * j, sizeof a);
            memcpy(&b, x + SD_PANEL + 2 * j, sizeof b);
            uint32_t low = (a & 0xffff) | b << 16, high = a >> 16 | (b & 0xffff0000);
            memcpy(y + 2 * j, &low, sizeof low);
            memcpy(y + SD_PANEL + 2 * j, &high, sizeof high);
        }
}

/* Convert a block of an unpacked part to a chunk of a bf16 panel. Zero is +0. */
INLINE void round_block(const sd_coded coded, const sd_unpacked* part, int b, uint16_t* chunk) {
    for (int l = 0; l < SD_BLOCK / 4; l++, chunk += 4 * SD_PANEL) {
        const int h = coded.n_halves == 2 && l >= SD_BLOCK / 8;
        const float *scale = part->scale[b][h], *minimum = part->minimum[b][h];
        for (int j = 0; j < SD_PANEL; j++)
            for (int i = 0; i < 4; i++) {
                float code = (float)(part->codes[b][l][j][i] - coded.offset);
                float value = coded.has_minimum ? fmaf(code, scale[j], minimum[j]) : code * scale[j];
                chunk[i / 2 * 2 * SD_PANEL + 2 * j + i % 2] = sd_bf16_from_float(value + 0.0f);
            }
    }
}

/* A function for each formula of codes, named after one format that uses it. */
typedef void (*round_fn)(const sd_unpacked* part, int b, uint16_t* chunk);
#define DEFINE_ROUND(format)                                                      \
    static void round_##format(const sd_unpacked* part, int b, uint16_t* chunk) { \
        round_block(sd_coded_of(SD_FORMAT_##format), part, b, chunk);             \
    }
DEFINE_ROUND(Q4_K)
DEFINE_ROUND(Q6_K)
DEFINE_ROUND(Q2_K)
DEFINE_ROUND(IQ4_NL)

INLINE round_fn round_of(const sd_format format) {
    const sd_coded coded = sd_coded_of(format);
    if (coded.offset == 128) return round_IQ4_NL;
    if (coded.offset == 32) return round_Q6_K;
    return coded.n_halves == 2 ? round_Q2_K : round_Q4_K;
}

/* Multiply all rows with a panel in a coded format. Its weights are rounded without flushing subnormals. */
static void NAME(multiply_coded_tiles)(const sd_format format, int n_rows, const float* x, const char* panel,
                                       int n_in, float* y, ptrdiff_t ldy) {
    const size_t bytes = sd_panel_bytes(format, SD_PART_BLOCKS * SD_BLOCK);
    const int n_blocks = (int)sd_blocks((size_t)n_in);
    const round_fn convert = round_of(format);
    sd_unpacked part;
    uint16_t chunk[SD_BLOCK * SD_PANEL];
    for (int first = 0; first < n_blocks; first += SD_PART_BLOCKS, panel += bytes) {
        int n = n_blocks - first < SD_PART_BLOCKS ? n_blocks - first : SD_PART_BLOCKS;
        UNPACK[format](panel, n, &part);
        for (int b = 0; b < n; b++, x += (ptrdiff_t)n_rows * SD_BLOCK) {
            convert(&part, b, chunk);
            FLUSHED(multiply_chunk(n_rows, x, chunk, SD_BLOCK / 2, first + b > 0, y, ldy));
        }
    }
}

#define DEFINE_CODED_TILES(name, format)                                                                  \
    static void NAME(tiles_##name)(int n_rows, const void* x, const void* panels, int n_panels, int n_in, \
                                   float* y, ptrdiff_t ldy) {                                             \
        const char* panel = panels;                                                                       \
        for (int p = 0; p < n_panels; p++, panel += sd_panel_bytes(format, (size_t)n_in))                 \
            NAME(multiply_coded_tiles)(format, n_rows, x, panel, n_in, y + (ptrdiff_t)p * SD_PANEL, ldy); \
    }
SD_CODED_FORMATS(DEFINE_CODED_TILES)
