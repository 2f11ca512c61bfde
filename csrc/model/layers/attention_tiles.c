/* Attention in the order of tiles, for prompts and sources. */
#include "attention.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "positions.h"

/* Positions whose scores are computed together start at a multiple of this number: bits depend on it. */
#define SPAN 128

sd_attention_tiles sd_attention_tiles_take(sd_arena* arena, const sd_config* c, int n_slots) {
    size_t rows = SD_TILE_ATTENTION_ROWS, d_head = (size_t)sd_widest(c, sd_head_size);
    size_t columns = (size_t)sd_value_panels((int)d_head) * SD_PANEL;
    return (sd_attention_tiles){
        .queries = sd_arena_take(arena, rows, d_head * sizeof(float)),
        .prepared = sd_arena_take(arena, rows, sd_prepared_bytes(d_head)),
        .scores = sd_arena_take(arena, rows, SPAN * sizeof(float)),
        .weights = sd_arena_take(arena, rows, sd_prepared_bytes(SPAN)),
        .key_panel = sd_arena_take(arena, sd_panel_bytes(SD_FORMAT_BF16, d_head), 1),
        .value_rows = sd_arena_take(arena, (size_t)SD_BLOCK * SD_PANEL, sizeof(uint16_t)),
        .values = sd_arena_take(arena, (size_t)sd_whole_panels(n_slots), columns * sizeof(uint16_t)),
        .output = sd_arena_take(arena, rows, columns * sizeof(float)),
        .bias = sd_has_distance_bias(c) ? sd_arena_take(arena, rows + SPAN, sizeof(float)) : NULL,
    };
}

/* Rows with consecutive positions on one path of the tree, or rows of a source. */
typedef struct stretch {
    const sd_attention* attention;
    const sd_layer_config* config;
    const sd_attention_tiles* scratch;
    int row, n_rows;
    int position;   /* of the first row */
    int first, end; /* positions that some row attends to; `first` starts a panel */
    int n_same;     /* positions below it are in the slots of their numbers */
    int node;       /* pending node of the last row; its ancestors are in the other slots */
} stretch;

/* Rows of a stretch and query heads computed together. Pair m is row m / n_heads, head m % n_heads. */
typedef struct block {
    const stretch* stretch;
    int row, n_rows;
    int head, n_heads;
    int position, first, end; /* as in the stretch */
} block;

/* Some positions, from the start of a panel. */
typedef struct span {
    int first, n_panels;
} span;

static int n_pairs(const block* b) { return b->n_rows * b->n_heads; }

/* Scores of pairs from `pair` on with panel p of a span's keys, [.., SD_PANEL]. */
static float* scores_at(const block* b, int p, int pair) {
    return b->stretch->scratch->scores + ((ptrdiff_t)p * n_pairs(b) + pair) * SD_PANEL;
}

/* Are 32 positions, as far as they are attended to, a panel of bf16 or int8 in the cache? */
static int lie_as_panel(const stretch* r, int first) {
    int end = first + SD_PANEL < r->end ? first + SD_PANEL : r->end;
    return r->attention->keys->format != SD_FORMAT_F32 && end <= r->n_same;
}

/* Find the slots of 32 positions; -1: not attended to. */
static void find_slots(const stretch* r, int first, int slots[SD_PANEL]) {
    const sd_cache* cache = r->attention->cache;
    for (int i = 0; i < SD_PANEL; i++)
        slots[i] = first + i < r->end && first + i < r->n_same ? first + i : -1;
    if (cache == NULL) return;
    for (int up = r->node; up >= 0; up = cache->parents[up]) {
        int position = cache->n_committed + cache->depths[up];
        if (position < r->n_same || position < first) return;
        if (position < first + SD_PANEL) slots[position - first] = cache->n_committed + up;
    }
}

/* Find up to n contiguous panels of keys from position `first` on. Returns their number. */
static int key_panels(const stretch* r, int first, int n, const void** panels) {
    const sd_attention* at = r->attention;
    int more = 0, n_adjacent = sd_key_values_run(at->keys, first) / SD_PANEL;
    while (more < n && more < n_adjacent && lie_as_panel(r, first + more * SD_PANEL)) more++;
    if (more > 0) {
        *panels = sd_key_panel(at->keys, at->kv_head, first / SD_PANEL);
        return more;
    }
    int slots[SD_PANEL];
    find_slots(r, first, slots);
    sd_key_values_gather_keys(at->keys, at->kv_head, slots, r->scratch->key_panel);
    *panels = r->scratch->key_panel;
    return 1;
}

/* Value columns of panel `column` from a position of the stretch on, with positions as inputs. */
static uint16_t* values_at(const stretch* r, int column, int position) {
    ptrdiff_t n = sd_whole_panels(r->end - r->first);
    return r->scratch->values + (column * n + position - r->first) * SD_PANEL;
}

/* Store the values of a stretch's positions as panels: pairs of positions side by side. */
static void pair_values(const stretch* r) {
    const sd_attention* at = r->attention;
    const sd_kernels* k = sd_kernels_get();
    for (int column = 0; column < sd_value_panels(r->config->d_head); column++)
        for (int first = r->first; first < r->end; first += SD_PANEL) {
            int slots[SD_PANEL];
            const void* rows = r->scratch->value_rows;
            /* After the end there may be values of an earlier text, and weight 0 times NaN is NaN. */
            if (at->keys->format == SD_FORMAT_BF16 && first + SD_PANEL <= r->end && lie_as_panel(r, first)) {
                rows = sd_value_rows(at->keys, at->kv_head, column, first);
            } else {
                find_slots(r, first, slots);
                sd_key_values_gather_values(at->keys, at->kv_head, column, slots, r->scratch->value_rows);
            }
            k->pair_rows(SD_PANEL / 2, rows, values_at(r, column, first));
        }
}

/* First position that a row at `position` attends to, and the end of its positions. */
static int seen_from(const stretch* r, int position) {
    if (r->attention->attended != SD_ATTEND_TEXT || r->config->window == 0) return 0;
    int start = position - r->config->window + 1;
    return start > 0 ? start : 0;
}
static int seen_to(const stretch* r, int position) {
    return r->attention->attended == SD_ATTEND_TEXT ? position + 1 : r->attention->n_keys;
}

/* Do scores need more than a factor? */
static int is_adjusted(const stretch* r) {
    const sd_config* c = &r->attention->model->config;
    return c->attn_softcap > 0.0f || sd_has_distance_bias(c);
}

/* Add the distance biases to the scores of a span. A row's biases are those of the row before it, shifted by
 * one position; so one line of biases, by the distance from the last row, serves all rows of a head. */
static void add_biases(const block* b, span s) {
    const sd_attention* at = b->stretch->attention;
    int last = b->position + b->n_rows - 1, n = s.n_panels * SD_PANEL + b->n_rows - 1;
    int n_before = last - s.first + 1 < n ? last - s.first + 1 : n;
    if (n_before < 0) n_before = 0;
    for (int h = 0; h < b->n_heads; h++) {
        float* bias = b->stretch->scratch->bias;
        if (n_before > 0)
            sd_distance_biases_before(at->model, at->layer, b->head + h, last, s.first, n_before, bias);
        if (at->attended == SD_ATTEND_OWN && n > n_before)
            sd_distance_biases_after(at->model, at->layer, b->head + h, s.first + n_before - last,
                                     n - n_before, bias + n_before);
        for (int p = 0; p < s.n_panels; p++)
            sd_kernels_get()->add(b->n_rows, SD_PANEL, scores_at(b, p, h), (ptrdiff_t)b->n_heads * SD_PANEL,
                                  bias + b->n_rows - 1 + p * SD_PANEL, -1);
    }
}

static void mask(const block* b, span s) {
    for (int p = 0; p < s.n_panels; p++) {
        int first = s.first + p * SD_PANEL, last_row = b->position + b->n_rows - 1;
        if (first >= seen_from(b->stretch, last_row) && first + SD_PANEL <= seen_to(b->stretch, b->position))
            continue;
        for (int m = 0; m < n_pairs(b); m++) {
            float* scores = scores_at(b, p, m);
            int position = b->position + m / b->n_heads;
            int from = seen_from(b->stretch, position) - first, to = seen_to(b->stretch, position) - first;
            for (int i = 0; i < SD_PANEL && i < from; i++) scores[i] = -INFINITY;
            for (int i = to > 0 ? to : 0; i < SD_PANEL; i++) scores[i] = -INFINITY;
        }
    }
}

/* Compute the scores of a span; positions that a row does not attend to get -infinity. */
static void score(const block* b, span s) {
    const sd_kernels* k = sd_kernels_get();
    const sd_config* c = &b->stretch->attention->model->config;
    const sd_key_values* keys = b->stretch->attention->keys;
    size_t panel_bytes = sd_panel_bytes(keys->format, (size_t)keys->d_head);
    for (int p = 0, n; p < s.n_panels; p += n) {
        const void* panels;
        int first = s.first + p * SD_PANEL;
        n = key_panels(b->stretch, first, s.n_panels - p, &panels);
        if (keys->format == SD_FORMAT_INT8 && lie_as_panel(b->stretch, first)) {
            for (int i = 0; i < n; i++)
                k->tiles[SD_FORMAT_INT8](n_pairs(b), b->stretch->scratch->prepared,
                                         (const char*)panels + i * panel_bytes, 1, keys->d_head,
                                         scores_at(b, p + i, 0), SD_PANEL);
            continue;
        }
        k->add_tiles(n_pairs(b), n, b->stretch->scratch->prepared, panels, b->stretch->config->d_head, 0,
                     scores_at(b, p, 0), SD_PANEL, (ptrdiff_t)n_pairs(b) * SD_PANEL);
    }
    if (is_adjusted(b->stretch)) {
        int n = s.n_panels * n_pairs(b) * SD_PANEL;
        float* scores = b->stretch->scratch->scores;
        if (b->stretch->config->score_scale != 1.0f)
            k->scale(n, scores, b->stretch->config->score_scale, scores);
        if (c->attn_softcap > 0.0f) k->softcap(n, scores, c->attn_softcap);
        if (sd_has_distance_bias(c)) add_biases(b, s);
    }
    mask(b, s);
}

/* Positions from `first` up to the next multiple of SPAN. */
static span span_at(const block* b, int first) {
    int end = first / SPAN * SPAN + SPAN;
    return (span){first, sd_matrix_panels((b->end < end ? b->end : end) - first)};
}

static void prepare(const block* b) {
    const sd_attention* at = b->stretch->attention;
    int d_head = b->stretch->config->d_head;
    float* to = b->stretch->scratch->queries;
    const float* from = at->queries + (b->stretch->row + b->row) * at->ldq + (ptrdiff_t)b->head * d_head;
    for (int i = 0; i < b->n_rows; i++, from += at->ldq, to += (ptrdiff_t)b->n_heads * d_head) {
        if (i + SD_ROWS_AHEAD < b->n_rows)
            sd_prefetch_floats(from + SD_ROWS_AHEAD * at->ldq, b->n_heads * d_head);
        memcpy(to, from, (size_t)b->n_heads * (size_t)d_head * sizeof *to);
    }
    sd_kernels_get()->prepare_tiles((sd_part){n_pairs(b), 0, n_pairs(b), 0, d_head},
                                    b->stretch->scratch->queries, d_head, d_head,
                                    b->stretch->scratch->prepared);
}

/* exp(sink − largest · scale); 0 without a sink. */
static float sink_of(const block* b, int head, float largest) {
    const sd_layer* layer = &b->stretch->attention->model->layers[b->stretch->attention->layer];
    double weight;
    if (layer->sinks == NULL) return 0.0f;
    sd_kernels_get()->weigh(1, &layer->sinks[head], largest, 1.0f, &weight);
    return (float)weight;
}

typedef struct sums {
    float largest[SD_TILE_ATTENTION_ROWS];          /* scores */
    float lanes[SD_TILE_ATTENTION_ROWS * SD_LANES]; /* sums of weights */
} sums;

/* Multiply the sums of pairs whose largest score has risen by the factor that their weights lose. */
static void rescale(const block* b, const float* factors, sums* sums, ptrdiff_t ldo) {
    const sd_kernels* k = sd_kernels_get();
    for (int m = 0; m < n_pairs(b); m++) {
        if (factors[m] == 1.0f) continue;
        float *lanes = sums->lanes + m * SD_LANES, *output = b->stretch->scratch->output + m * ldo;
        k->fade(SD_LANES, lanes, factors[m]);
        k->fade((int)ldo, output, factors[m]);
    }
}

/* Output of a block's pairs: weighted values over the sum of the weights. */
static void finish(const block* b, float scale, const sums* sums, ptrdiff_t ldo) {
    const sd_attention* at = b->stretch->attention;
    int d_head = b->stretch->config->d_head;
    for (int m = 0; m < n_pairs(b); m++) {
        int row = b->stretch->row + b->row + m / b->n_heads, head = b->head + m % b->n_heads;
        const float* from = b->stretch->scratch->output + m * ldo;
        float* to = at->out + row * at->ldo + (ptrdiff_t)head * d_head;
        float sink = sink_of(b, head, sums->largest[m] * scale);
        float factor = 1.0f / (sdk_tree_sum(sums->lanes + m * SD_LANES) + sink);
        for (int i = 0; i < d_head; i++) to[i] = (from[i] + 0.0f) * factor; /* −0 becomes +0 */
    }
}

static void run_block(const block* b) {
    const sd_kernels* k = sd_kernels_get();
    const sd_attention_tiles* scratch = b->stretch->scratch;
    float scale = is_adjusted(b->stretch) ? 1.0f : b->stretch->config->score_scale;
    float factors[SD_TILE_ATTENTION_ROWS];
    int n = n_pairs(b), n_columns = sd_value_panels(b->stretch->config->d_head);
    ptrdiff_t ldo = (ptrdiff_t)n_columns * SD_PANEL;
    sums sums;
    for (int m = 0; m < n; m++) sums.largest[m] = -INFINITY;
    memset(sums.lanes, 0, sizeof sums.lanes);
    prepare(b);
    for (int first = b->first; first < b->end; first = first / SPAN * SPAN + SPAN) {
        span s = span_at(b, first);
        score(b, s);
        k->raise_tiles(n, s.n_panels, scratch->scores, scale, sums.largest, factors);
        if (first > b->first) rescale(b, factors, &sums, ldo);
        k->weigh_tiles(n, s.n_panels, scratch->scores, sums.largest, scale, sums.lanes, scratch->weights);
        for (int column = 0; column < n_columns; column++)
            k->add_tiles(n, 1, scratch->weights, values_at(b->stretch, column, first), s.n_panels * SD_PANEL,
                         first > b->first, scratch->output + (ptrdiff_t)column * SD_PANEL, ldo, 0);
    }
    finish(b, scale, &sums, ldo);
}

/* The stretch of rows that starts at `row`. n_chain: number of leading pending nodes that are a chain. */
static stretch stretch_at(const sd_attention* at, const sd_attention_tiles* scratch, int row, int n_chain) {
    const sd_cache* cache = at->cache;
    stretch r = SD_MAKE(stretch, .attention = at, .config = &at->model->config.layers[at->layer],
                        .scratch = scratch, .row = row, .n_rows = at->n_rows - row);
    if (cache == NULL) {
        r.position = at->position + row;
        r.end = r.n_same = at->n_keys;
        return r;
    }
    int first = at->first_node + row, n = 1;
    while (n < r.n_rows && cache->parents[first + n] == first + n - 1) n++;
    r.n_rows = n;
    r.node = first + n - 1;
    r.position = cache->n_committed + cache->depths[first];
    r.first = seen_from(&r, r.position) / SD_PANEL * SD_PANEL;
    r.end = r.position + n;
    int up = r.node;
    while (up >= n_chain) up = cache->parents[up];
    r.n_same = cache->n_committed + up + 1;
    return r;
}

static void run_heads(const stretch* r, int head, int n_heads) {
    int together = SD_TILE_ATTENTION_ROWS / n_heads;
    for (int row = 0, n; row < r->n_rows; row += n) {
        n = r->n_rows - row < together ? r->n_rows - row : together;
        block b = {.stretch = r, .row = row, .n_rows = n, .head = head, .n_heads = n_heads};
        b.position = r->position + row;
        b.first = seen_from(r, b.position) / SD_PANEL * SD_PANEL;
        b.end = seen_to(r, b.position + n - 1);
        run_block(&b);
    }
}

void sd_attention_run_tiles(const sd_attention* at, const sd_attention_tiles* scratch) {
    const sd_layer_config* own = &at->model->config.layers[at->layer];
    int group = own->n_head / own->n_kv_head, n_chain = at->cache ? sd_cache_chain(at->cache) : 0;
    for (int row = 0; row < at->n_rows;) {
        const stretch r = stretch_at(at, scratch, row, n_chain);
        pair_values(&r);
        for (int head = 0, n_heads; head < group; head += n_heads) {
            n_heads = group - head < SD_TILE_ATTENTION_ROWS ? group - head : SD_TILE_ATTENTION_ROWS;
            run_heads(&r, at->kv_head * group + head, n_heads);
        }
        row += r.n_rows;
    }
}
