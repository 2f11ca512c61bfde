/* The row kernels: all arithmetic of a forward pass.
 *
 * One table per instruction set, chosen once per process. The order of each kernel's sums is defined here,
 * and every table follows it. So results agree bit for bit between instruction sets, in every number format
 * (docs/NUMERICS.md). A kernel never allocates, never fails and never looks at other rows: the bits of a row
 * do not depend on how many rows there are. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "format.h"
#include "memory.h"
#include "status.h"

/* A threshold that no number of rows reaches; the largest one allowed. */
#define SD_NEVER (1 << 20)

/* Row counts at which a product changes its method, for each format. Formats whose panels are unpacked
 * part by part (coded_template.h) use block_rows only. */
typedef struct sd_thresholds {
    int fetch_from[SD_N_FORMATS];      /* least rows at which panels in memory are prefetched */
    int fetch_from_near[SD_N_FORMATS]; /* the same for panels that are likely in a cache */
    int block_rows[SD_N_FORMATS];      /* rows multiplied at once, at most the table's MAX_ROWS */
    int tiles_from[SD_N_FORMATS];      /* least rows at which a table with tiles uses them */
    /* bf16: least rows at which a table with an instruction for pairs multiplies floats instead, which some
     * processors do at twice the rate; other formats ignore it */
    int floats_from[SD_N_FORMATS];
} sd_thresholds;

/* A threshold and its name. */
typedef struct sd_threshold_field {
    const char* name;
    size_t offset; /* of its int [SD_N_FORMATS] in sd_thresholds */
} sd_threshold_field;
#define SD_N_THRESHOLDS 5
extern const sd_threshold_field sd_threshold_fields[SD_N_THRESHOLDS];

/* The values [SD_N_FORMATS] of a field, borrowed from the thresholds. */
int* sd_threshold_values(sd_thresholds* thresholds, const sd_threshold_field* field);

/* The thresholds in use: those of the chosen table (kernels.h) until others are set. Static. */
extern sd_thresholds sd_thresholds_used;

/* Copy `thresholds` and use them. Fails, and changes nothing, if a value is not 1 to SD_NEVER; the message
 * names it. No other thread may compute meanwhile. */
sd_status sd_thresholds_set(const sd_thresholds* thresholds);

/* A digest of the kernels' sources and compiler, 16 digits. Measured thresholds are valid for one digest. */
const char* sd_kernels_digest(void);

/* Partial sums of a reduction: element i goes to lane i % SD_LANES, lanes are added as a tree. */
#define SD_LANES 16

/* Lanes of a checksum of bytes: word i goes to lane i % SD_CHECKSUM_LANES. */
#define SD_CHECKSUM_LANES 8

/* A part of a matrix of rows: rows [row, row + n_rows) of n_all, inputs [input, input + n_inputs).
 * `input` and n_inputs are multiples of SD_BLOCK, except that the last part may be shorter. */
typedef struct sd_part {
    int n_all, row, n_rows, input, n_inputs;
} sd_part;

typedef void (*sd_prepare_kernel)(sd_part part, const float* x, ptrdiff_t ldx, int n_in, void* out);
typedef void (*sd_panel_kernel)(int n_rows, const void* x, const void* panel, int n_in, int near, float* y,
                                ptrdiff_t ldy);

typedef void (*sd_tiles_kernel)(int n_rows, const void* x, const void* panels, int n_panels, int n_in,
                                float* y, ptrdiff_t ldy);

typedef void (*sd_unpack_kernel)(const void* part, int n_blocks, sd_unpacked* to);

/* What a token does to a recurrent state: S[i, j] = fma(key[i], delta[j], decay · S[i, j]). */
typedef struct sd_recurrent_update {
    const float* key;   /* [n_key], borrowed */
    const float* delta; /* [SD_PANEL], borrowed */
    float decay;
} sd_recurrent_update;

/* A token's view of a tile of the state before it. */
typedef struct sd_recurrent_row {
    const float *query, *key; /* [n_key], borrowed */
    const float* value;       /* [SD_PANEL], borrowed */
    float product;            /* query · key, as unit_length or dot returns it */
    float decay, beta, skip;
    int corrects;       /* the delta rule, which does not use `skip`; else Mamba-2 */
    float *delta, *out; /* [SD_PANEL], borrowed, written */
} sd_recurrent_row;

typedef struct sd_kernels {
    const char* name;         /* "ref", "avx2", "avxvnni", "avx512f", "avx512vnni", "avx512", "amx", "neon" */
    sd_thresholds thresholds; /* defaults, used until others are measured */

    /* Products with packed panels. Rows are first prepared, as the row type of the panels' format, then
     * multiplied with any number of panels. The layout of prepared rows is private to the table;
     * n_rows rows of n_in inputs take n_rows · sd_prepared_bytes(n_in), aligned to SD_ALIGNMENT.
     *
     * prepare: prepares one part. x [part.n_rows, part.n_inputs] f32, rows `ldx` apart, borrowed; `out`: all
     * prepared rows, borrowed. */
    sd_prepare_kernel prepare[SD_N_ROW_TYPES];
    /* y[m, j] = Σ_k x[m, k] · panel[k, j] in the format's own order, which is the same for every
     * n_rows: f32: k ascending, one fused multiply-add each, from +0; bf16: pairs, rounded rows;
     * int8, int4: blocks of 32, quantized rows (docs/NUMERICS.md).
     * x: n_rows prepared rows; panel: as in format.h; y [n_rows, SD_PANEL] rows `ldy` apart, f32;
     * all borrowed; y does not overlap the others. `near`: the panels are likely in a cache; this
     * changes only when memory is prefetched. */
    sd_panel_kernel panel[SD_N_FORMATS];

    /* The same products in the order of tiles (docs/NUMERICS.md): per 32 inputs, one chain over the even
     * and one over the odd inputs. Rows and weights are rounded to bf16; a weight of int8 or int4 is code
     * · scale. NULL for f32. `panels`: n_panels, contiguous; y [n_rows, n_panels · SD_PANEL]. */
    sd_prepare_kernel prepare_tiles;
    sd_tiles_kernel tiles[SD_N_FORMATS];
    /* The same for n_panels panels of bf16. Products with panel p are at y + p · step, rows ldy apart. With
     * `add`, sums continue from y. */
    void (*add_tiles)(int n_rows, int n_panels, const void* x, const void* panels, int n_in, int add,
                      float* y, ptrdiff_t ldy, ptrdiff_t step);
    /* Interleave rows 2i and 2i + 1 of x [2 n_pairs], values of a bf16 cache, as the pairs of a panel, y
     * [n_pairs, SD_PANEL, 2]; both borrowed. */
    void (*pair_rows)(int n_pairs, const uint16_t* x, uint16_t* y);

    /* Unpack n_blocks, up to 8, of a panel in a coded format; NULL for other formats.
     * `part`: the header, if the format has one, then the blocks; the first of them is block 0, 8,
     * 16 … of the panel. All borrowed. */
    sd_unpack_kernel unpack[SD_N_FORMATS];

    /* Blocks of GGUF files, in words of 4 bytes; the last word is padded with any bytes. NULL for numbers
     * that are stored one by one.
     *
     * put_blocks: pack one block of each of 32 rows into the part of a panel that begins with them, in
     * the panel format of these blocks. The blocks are transposed: word w of row j is words[SD_PANEL · w
     * + j]. Returns not 0 if some number may not be finite. All borrowed. */
    int (*put_blocks[SD_N_NUMBERS])(const uint32_t* words, uint8_t* part);
    /* Write numbers 32 · i … 32 · i + 31 of one block to out [32], borrowed. */
    void (*read_block[SD_N_NUMBERS])(const uint32_t* words, int i, float* out);

    /* Quantize one block of a panel to int8 or int4 (format.h, docs/NUMERICS.md). columns [SD_BLOCK,
     * SD_PANEL]: input k of the 32 outputs is columns[k]; columns and block are borrowed. Returns the
     * first output whose scale is too large for f16, or −1. */
    int (*quantize_int8)(const float (*columns)[SD_PANEL], uint8_t* block);
    int (*quantize_int4)(const float (*columns)[SD_PANEL], uint8_t* block);

    /* Fit x ≈ scale · code − low, with low ≥ 0 and codes 0 … most: of several trials, the one with the least
     * Σ w · error². x, w [SD_BLOCK], finite, w ≥ 0, borrowed. With scale 0 all codes are 0. */
    void (*affine_code)(const float* x, const float* w, float most, float* scale, float* low);
    /* Fit x ≈ scale · code, with codes −32 … 31 and a scale of either sign; x, w [SD_BLOCK / 2]. */
    float (*centered_code)(const float* x, const float* w);

    /* y[m, j] = fma(x[m, k], values[k, j], y[m, j]), k ascending. x: n_rows rows prepared as f32:
     * [⌈n_k / 32⌉][n_rows][32]; values [n_k, SD_PANEL] f32, or [n_k, 16, 2] bf16: numbers j and j + 16 of a
     * row side by side, which are widened by one operation each. */
    void (*add_values_f32)(int n_rows, const float* x, const void* values, int n_k, float* y, ptrdiff_t ldy);
    void (*add_values_bf16)(int n_rows, const float* x, const void* values, int n_k, float* y, ptrdiff_t ldy);
    /* The same with fma(x[m, k] · scale[k], code[k, j], y[m, j]), whose first product is rounded. values: for
     * each 32 of k [32][SD_PANEL] codes in int8, then [32] scales in f16. */
    void (*add_values_int8)(int n_rows, const float* x, const void* values, int n_k, float* y, ptrdiff_t ldy);
    /* Quantize x [n], n <= 32, borrowed, as the weights of int8 are: writes codes [32], with zeros after the
     * n-th, and returns the scale in f16. If a number or the scale is not finite, the scale is infinite. */
    uint16_t (*to_int8)(int n, const float* x, int8_t* codes);
    /* y = x rounded to bf16, nearest even, subnormals flushed to 0; [n] */
    void (*to_bf16)(int n, const float* x, uint16_t* y);

    /* y = x / sqrt(mean(x²) + eps) · weight. x, weight, y [n] f32, borrowed. */
    void (*rms_norm)(int n, const float* x, const float* weight, float eps, float* y);

    /* y = (x − mean) / sqrt(var + eps) · weight + bias. x, weight, bias, y [n] f32, borrowed. */
    void (*layer_norm)(int n, const float* x, const float* weight, const float* bias, float eps, float* y);

    /* Rotate the pairs (x[i], x[i + n_half]) by the angles of cosine, sine [n_half];
     * x [2 · n_half] f32, in place. */
    void (*rotate)(int n_half, float* x, const float* cosine, const float* sine);

    /* x += y, both [n_rows, n] f32, rows ldx and ldy apart; ldy 0 adds one row to all. */
    void (*add)(int n_rows, int n, float* x, ptrdiff_t ldx, const float* y, ptrdiff_t ldy);
    /* y = x · factor, x, y [n] f32, may be the same. */
    void (*scale)(int n, const float* x, float factor, float* y);

    /* y = act(x), x, y [n] f32, may be the same: x·sigmoid(x); x·Φ(x); the tanh approximation of x·Φ(x). */
    void (*silu)(int n, const float* x, float* y);
    void (*gelu)(int n, const float* x, float* y);
    void (*gelu_tanh)(int n, const float* x, float* y);
    /* y = 1 / (1 + exp(−x)), x, y [n] f32, may be the same. */
    void (*sigmoid)(int n, const float* x, float* y);
    /* y = max(x, 0); y = max(x, 0)². */
    void (*relu)(int n, const float* x, float* y);
    void (*relu2)(int n, const float* x, float* y);
    /* gate = g · sigmoid(1.702 g) · (u + 1) with g = min(gate, limit) and u = up clamped to ± limit; gate, up
     * [n] f32. */
    void (*silu_clamped)(int n, float* gate, const float* up, float limit);
    /* y = softplus(a) p² + (softplus(b) + c) (exp(q) − 1 − q) + c x with p = max(x, 0), q = min(x, 0); x, y
     * [n] f32, may be the same; factors a, b, c. */
    void (*xielu)(int n, const float* x, const float* factors, float* y);
    /* y = ln(1 + exp(x)), x, y [n] f32, may be the same. */
    void (*softplus)(int n, const float* x, float* y);
    /* x = cap · tanh(x / cap), and x clamped to ± limit, [n] f32 in place. */
    void (*softcap)(int n, float* x, float cap);
    void (*clamp)(int n, float* x, float limit);
    /* x *= y, both [n] f32. */
    void (*multiply)(int n, float* x, const float* y);
    /* y[i] = fma(x[w − 1][i], weights[w − 1][i], … fma(x[0][i], weights[0][i], bias[i] or +0)), w = width:
     * x [width] rows of n f32, borrowed; weights [width] rows of n, ldw apart; bias NULL: none. y [n] may be
     * one of x. */
    void (*convolve)(int n, int width, const float* const* x, const float* weights, ptrdiff_t ldw,
                     const float* bias, float* y);
    /* One step of a gated recurrent unit: state = fma(z, state − c, c) with r = sigmoid(x[i] + h[i]),
     * z = sigmoid(x[n + i] + h[n + i]) and c = tanh(fma(r, h[2n + i], x[2n + i])). x, h [3 · n], state [n]
     * f32, in place; the others do not overlap it. */
    void (*gated_step)(int n, const float* x, const float* h, float* state);

    /* time = softplus(x + bias), then y = exp(rate · time), [n] f32; x, time and y may be the same. */
    void (*decay)(int n, const float* x, const float* bias, const float* rate, float* time, float* y);
    /* Σ x · y, [n] f32, by fused multiply-adds in lanes. */
    float (*dot)(int n, const float* x, const float* y);
    /* Scale a query and a key [n] f32, in place: x / sqrt(Σ x² + 1e-6), and the query by 1 / sqrt(n) in the
     * same factor. Returns the sum of their products, each by a fused multiply-add; all sums in lanes. */
    float (*unit_length)(int n, float* query, float* key);
    /* One step of a recurrence (docs/NUMERICS.md) on a tile of a state, S [n_key, SD_PANEL]: apply the
     * updates of n_updates tokens in order to `from`, store the result in `to` unless it is NULL, and compute
     * `row` from it unless that is NULL:
     *   delta[j] = (value[j] − decay · Σ_i S[i, j] key[i]) · beta, or value[j] · beta in Mamba-2
     *   out[j] = fma(product, delta[j], decay · Σ_i S[i, j] query[i])
     *   out[j] = fma(skip, value[j], out[j]) in Mamba-2
     * A sum is one chain of fused multiply-adds, i ascending, from +0. All borrowed; `from` may be `to`. */
    void (*recurrent_step)(int n_key, const float* from, float* to, int n_updates,
                           const sd_recurrent_update* updates, const sd_recurrent_row* row);

    /* Largest of x [n] f32, n ≥ 1. */
    float (*max)(int n, const float* x);
    /* Replace a row of scores [n], in pieces of 32 that are `chunk` floats apart, by
     * exp((x − largest) · factor); lanes[i % SD_LANES] = Σ of the first n_sum of them, i
     * ascending. Returns the largest. The caller sets masked scores to −infinity first. */
    float (*softmax)(int n, float* x, ptrdiff_t chunk, float factor, int n_sum, float* lanes);

    /* Rows of scores, as products with panels of keys return them: x [n_chunks][n_rows][SD_PANEL], chunks
     * `chunk` floats apart, borrowed; lanes [n_rows, SD_LANES], borrowed. Element i of a row belongs to lane
     * i % SD_LANES.
     *
     * lanes = max(lanes, the largest score of each lane). */
    void (*largest_scores)(int n_rows, int n_chunks, const float* x, ptrdiff_t chunk, float* lanes);
    /* Replace elements first, first + 1, … of each row by exp((x − largest[m]) · factor), with factor >
     * 0, and add those before n_sum[m] to their lanes, ascending. largest, n_sum [n_rows], borrowed;
     * `first` is a multiple of SD_PANEL. */
    void (*weigh_scores)(int n_rows, int n_chunks, int first, float* x, ptrdiff_t chunk, const float* largest,
                         float factor, const int* n_sum, float* lanes);

    /* The same in the order of tiles (docs/NUMERICS.md), which processes scores in spans with coarse
     * powers: exp(x) = 2^(x · log2 e), 0 below 2^-125. Rows are laid out as above; largest, rescale [n_rows],
     * borrowed.
     *
     * largest[m] = max(largest[m], the scores of row m); rescale[m] = exp((largest[m] before − after) ·
     * factor), 0 where both are -infinity. */
    void (*raise_tiles)(int n_rows, int n_chunks, const float* x, float factor, float* largest,
                        float* rescale);
    /* x = x · factor, x [n] f32, in place; results below 2^-126 become 0. */
    void (*fade)(int n, float* x, float factor);
    /* Turn rows of scores into rows of 32 · n_chunks weights exp((x − largest[m]) · factor), prepared
     * like the rows of prepare_tiles, at `out`, borrowed. Each weight is added to its lane before it is
     * rounded. */
    void (*weigh_tiles)(int n_rows, int n_chunks, const float* x, const float* largest, float factor,
                        float* lanes, void* out);

    /* Sampling: rows over the vocabulary. Weights are probabilities up to a factor, ≥ 0, f64.
     * Sums add element i to one of 8 lanes, lane i % 8, i ascending, then ((0+4)+(2+6)) +
     * ((1+5)+(3+7)). All pointers borrowed, rows [n], n ≥ 1. */

    /* Are all x f32 finite? n may be 0. */
    int (*all_finite)(int n, const float* x);
    /* Index of the largest of x f32, the lowest on ties. */
    int32_t (*argmax)(int n, const float* x);
    /* weights = exp((x − shift) · factor), computed in f32 and widened; returns their sum. x f32. */
    double (*weigh)(int n, const float* x, float shift, float factor, double* weights);
    /* Σ weights. */
    double (*mass)(int n, const double* weights);
    /* Σ max(0, a · (scale · a_factor) − b · b_factor), whose terms go to left [n] unless it is NULL; left may
     * be a or b. *overlap is Σ min(a · a_factor, b · b_factor). */
    double (*residual)(int n, const double* a, double a_factor, double scale, const double* b,
                       double b_factor, double* left, double* overlap);
    /* Copy the weights in [low, high) to `inside` [n], in order; returns their count. `inside`
     * may be `weights`. sums[0] and sums[1]: the sums of the weights ≥ high and ≥ low, each rounded
     * to a multiple of the spacing of doubles at `grid`, or counted as 1 if grid is 0. The caller
     * chooses a grid at which these sums are exact. */
    int (*split)(int n, const double* weights, double low, double high, double grid, double* inside,
                 double sums[2]);
    /* Set weights below `low` to 0, in place; returns the sum of the others. */
    double (*cut)(int n, double* weights, double low);
    /* Uniform numbers in [0, 1): element t of noise [n] uses words 2 (t % 2) and 2 (t % 2) + 1 of the
     * Philox4x32-10 block (rng.h) whose second counter is counter[1] + t / 2. */
    void (*noise)(int n, const uint32_t counter[4], const uint32_t key[2], double* noise);
    /* Return the first i with x[i] < y[i] · factor, or n. x, y f64. */
    int (*find_below)(int n, const double* x, const double* y, double factor);

    /* Update the sums of a checksum with n_lines lines of SD_CHECKSUM_LANES words, borrowed, of any
     * alignment: for each word of a lane first = rotate_left(first + word, 29), second = second + first
     * (checksum.c). `first`, `second`: the sums so far, borrowed, in place. */
    void (*checksum_lines)(size_t n_lines, const char* lines, uint64_t first[SD_CHECKSUM_LANES],
                           uint64_t second[SD_CHECKSUM_LANES]);
} sd_kernels;

/* The sum of lanes [SD_LANES] as a fixed tree: halves of 8, 4, 2, 1. */
float sdk_tree_sum(const float* lanes);

/* Choose the table of this process, and its thresholds: the one named `forced` (NULL or "": the best one)
 * among those that this machine can run. Fails for other names. Call once, before any other thread
 * computes. */
sd_status sd_kernels_choose(const char* forced);
/* The chosen table. Borrowed, static; NULL before sd_kernels_choose. */
extern const sd_kernels* sd_kernels_chosen;
static inline const sd_kernels* sd_kernels_get(void) { return sd_kernels_chosen; }
/* Write up to `n_max` tables that this machine can run, best first; returns how many there are. */
int sd_kernels_available(const sd_kernels** tables, int n_max);

/* Bytes of a checksum's piece; stretches are multiples of it. */
#define SD_CHECKSUM_PIECE ((size_t)1 << 20)

/* Compute the checksum of each stretch of `size` bytes at `data`, borrowed. Stretches have `stretch`
 * bytes, the last one may be shorter, and there is at least one. `sums`: one number per stretch,
 * borrowed. n_threads, which are reserved, does not change them. Fails when interrupted (interrupt.h). */
sd_status sd_checksums(const void* data, size_t size, size_t stretch, int n_threads, uint64_t* sums);

/* Bytes of a processor's name, with its final zero. */
#define SD_PROCESSOR_NAME 128

/* Write the processor's vendor, family, model, stepping and brand string, equal for all processors of one
 * model; on processors other than x86 only the architecture. */
void sd_processor_name(char name[SD_PROCESSOR_NAME]);
