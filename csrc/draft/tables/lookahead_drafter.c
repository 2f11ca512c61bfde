/* Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target itself drafts, by Jacobi iteration.
 *
 * A window of draft tokens runs ahead of the text: n - 1 rows of w columns. Cell (r, c) is a draft token at
 * offset r + c + 1 after the root. Row 0 is a chain from the root; the other rows of column c follow node c
 * of that chain. The target's argmax after the last row of a column makes a new row, and with the column an
 * n-gram, which goes into a pool. After a step the rows shift up by one: row 1 becomes row 0, one position
 * on. N-grams of the pool that begin with the text's last token follow the root as candidates. All these are
 * nodes of one tree, point masses each. */
#include "tables.h"

#include <assert.h>
#include <string.h>

#include "clock.h"
#include "kernels.h"
#include "running_mean.h"

/* Rounds whose n-grams the pool keeps. */
#define ROUNDS 256
/* Draft tokens that the acceptance rates average over. */
#define DRAFT_TOKENS 100.0

/* The last n-grams, found by first token, most recent first. All zeros is an empty pool. */
typedef struct ngram_pool {
    int n;           /* tokens of an n-gram, ≥ 2 */
    int capacity;    /* n-grams kept; each new one replaces the oldest */
    int64_t count;   /* n-grams added so far; they are numbered from 1 */
    int32_t* tokens; /* [capacity, n] n-gram i in row i % capacity */
    int64_t* older;  /* [capacity] the previous n-gram of the same bucket; 0: none */
    int64_t* newest; /* [n_buckets] the last one of each bucket; 0: none */
    int n_buckets;
} ngram_pool;

static ngram_pool take_pool(sd_arena* arena, int n, int capacity) {
    return SD_MAKE(ngram_pool, .n = n, .capacity = capacity, .n_buckets = capacity,
                   .tokens = sd_arena_take(arena, (size_t)capacity, (size_t)n * sizeof(int32_t)),
                   .older = sd_arena_take(arena, (size_t)capacity, sizeof(int64_t)),
                   .newest = sd_arena_take(arena, (size_t)capacity, sizeof(int64_t)));
}

static void empty(ngram_pool* p) {
    p->count = 0;
    memset(p->newest, 0, (size_t)p->n_buckets * sizeof *p->newest);
}

static void add(ngram_pool* p, int32_t first, const int32_t* rest) {
    int64_t number = ++p->count, row = number % p->capacity, *newest = &p->newest[first % p->n_buckets];
    int32_t* tokens = p->tokens + row * p->n;
    tokens[0] = first;
    memcpy(tokens + 1, rest, (size_t)(p->n - 1) * sizeof *tokens);
    p->older[row] = *newest;
    *newest = number;
}

/* Find at most `most` different continuations of `first`, most recent first. found [most] point at [n - 1]
 * tokens, which stay until the next n-gram is added. Returns their number. */
static int find(const ngram_pool* p, int32_t first, int most, const int32_t** found) {
    int n_found = 0;
    size_t n_bytes = (size_t)(p->n - 1) * sizeof(int32_t);
    /* n-grams older than the capacity have been overwritten, and so have their links */
    int64_t oldest = p->count > p->capacity ? p->count - p->capacity + 1 : 1;
    for (int64_t i = p->newest[first % p->n_buckets], next; n_found < most && i >= oldest; i = next) {
        next = p->older[i % p->capacity];
        assert(next < i); /* a chain goes back in time, so it ends */
        const int32_t* tokens = p->tokens + i % p->capacity * p->n;
        if (tokens[0] != first) continue;
        int same = 0;
        while (same < n_found && memcmp(found[same], tokens + 1, n_bytes) != 0) same++;
        if (same == n_found) found[n_found++] = tokens + 1;
    }
    return n_found;
}

/* The window ahead of one sequence's text. */
typedef struct window {
    int32_t* rows;   /* [ngram - 1, window] */
    int32_t* leaves; /* [window] nodes of the last row in the last proposal */
    int n_columns;
    int n_text; /* length of the text that the window follows; 0: not filled */
    ngram_pool pool;
} window;

typedef struct lookahead_drafter {
    sd_drafter base; /* must stay first */
    sd_lookahead_options options;
    int n_vocab;
    window* windows;       /* [n_sequences] */
    const int32_t** found; /* [candidates] */
    int32_t* rest;         /* [ngram] n-gram being added to the pool */
    /* Acceptance rates in the window and in the pool, given an accepted parent. */
    sd_mean in_window, in_pool;
} lookahead_drafter;

static double estimate(sd_mean mean) { return sd_mean_of(mean, 0.5, 1.0); }

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    (void)prompt;
    window* w = &((lookahead_drafter*)base)->windows[sequence];
    w->n_text = w->n_columns = 0;
    empty(&w->pool);
    return SD_OK;
}

/* Move the columns to the text's end; new ones start with random tokens of the text. */
static void slide(const lookahead_drafter* d, window* w, const sd_proposal* p) {
    int n_cols = d->options.window, n_rows = d->options.ngram - 1;
    int moved = w->n_text > 0 && p->n_text - w->n_text < n_cols ? p->n_text - w->n_text : n_cols;
    w->n_text = p->n_text;
    if (moved <= 0) return; /* the text may have lost rejected draft tokens */
    for (int r = 0; r < n_rows; r++) {
        int32_t* row = w->rows + r * n_cols;
        memmove(row, row + moved, (size_t)(n_cols - moved) * sizeof *row);
        for (int c = n_cols - moved; c < n_cols; c++) {
            double u = sd_uniform(p->stream, (uint32_t)p->n_text, SD_DRAW_WINDOW, (uint32_t)(r * n_cols + c));
            row[c] = p->text[(int)(u * p->n_text)];
        }
    }
}

static void propose_window(const lookahead_drafter* d, window* w, sd_proposal* p) {
    int n_cols = d->options.window, n_rows = d->options.ngram - 1;
    /* whole columns only: without its last row a column adds no n-gram */
    int n_free = p->budget / n_rows, deep = p->depth - n_rows + 1;
    w->n_columns = n_cols < n_free ? n_cols : n_free;
    if (w->n_columns > deep) w->n_columns = deep > 0 ? deep : 0;
    double confidence = estimate(d->in_window);
    for (int c = 0, head = 0; c < w->n_columns; c++) {
        int node = head = sd_proposal_add_point(p, head, w->rows[c], confidence);
        for (int r = 1; r < n_rows; r++)
            node = sd_proposal_add_point(p, node, w->rows[r * n_cols + c], confidence);
        w->leaves[c] = node;
    }
}

static void propose_candidates(const lookahead_drafter* d, const window* w, sd_proposal* p) {
    int n_rows = d->options.ngram - 1;
    int n = find(&w->pool, p->tree.tokens[0], d->options.candidates, d->found);
    double confidence = estimate(d->in_pool);
    for (int i = 0; i < n; i++)
        for (int r = 0, node = 0; r < n_rows && p->tree.n_nodes <= p->budget && r < p->depth &&
                                  sd_proposal_allows(p, node, d->found[i][r]);
             r++)
            node = sd_proposal_add_point(p, node, d->found[i][r], confidence);
}

/* Propose nothing where drafting does not pay at all, but do not price the window token by token: its columns
 * provide n-grams for later rounds. */
static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    lookahead_drafter* d = (lookahead_drafter*)base;
    double begun = sd_now();
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        window* w = &d->windows[p->sequence];
        w->n_columns = 0;
        if (!sd_proposal_may_draft(p, 0)) continue;
        slide(d, w, p);
        propose_window(d, w, p);
        propose_candidates(d, w, p);
    }
    base->other_s = sd_now() - begun;
    return SD_OK;
}

/* Learn which draft tokens argmax decoding would have accepted. */
static void judge(lookahead_drafter* d, const window* w, const sd_proposal* p, const int32_t* node_rows,
                  const float* logits, ptrdiff_t stride) {
    const sd_tree* t = &p->tree;
    int first_of_pool = w->n_columns * (d->options.ngram - 1) + 1;
    for (int32_t row = node_rows[0], next = 0; next >= 0; row = next) {
        int32_t token = sd_kernels_get()->argmax(d->n_vocab, logits + row * stride);
        next = -1;
        for (int i = 1; i < t->n_nodes; i++) {
            if (node_rows[t->parents[i]] != row) continue;
            sd_mean_add(i < first_of_pool ? &d->in_window : &d->in_pool, t->tokens[i] == token, 1.0,
                        DRAFT_TOKENS);
            if (t->tokens[i] == token) next = node_rows[i];
        }
    }
}

static sd_status observe(sd_drafter* base, const sd_proposal* p, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride) {
    lookahead_drafter* d = (lookahead_drafter*)base;
    window* w = &d->windows[p->sequence];
    int n_cols = d->options.window, n_rows = d->options.ngram - 1;
    if (p->tree.n_nodes > 1) judge(d, w, p, node_rows, logits, stride);
    for (int c = 0; c < w->n_columns; c++) {
        int32_t first = w->rows[c];
        for (int r = 0; r + 1 < n_rows; r++) w->rows[r * n_cols + c] = w->rows[(r + 1) * n_cols + c];
        w->rows[(n_rows - 1) * n_cols + c] =
            sd_kernels_get()->argmax(d->n_vocab, logits + node_rows[w->leaves[c]] * stride);
        int32_t* rest = d->rest;
        for (int r = 0; r < n_rows; r++) rest[r] = w->rows[r * n_cols + c];
        add(&w->pool, first, rest);
    }
    if (w->n_columns > 0) w->n_text++;
    w->n_columns = 0;
    return SD_OK;
}

static void lay_out(lookahead_drafter* d, int n_sequences) {
    const sd_lookahead_options* o = &d->options;
    d->windows = sd_arena_take(&d->base.arena, (size_t)n_sequences, sizeof *d->windows);
    d->found = sd_arena_take(&d->base.arena, (size_t)o->candidates, sizeof *d->found);
    d->rest = sd_arena_take(&d->base.arena, (size_t)o->ngram, sizeof *d->rest);
    for (int i = 0; i < n_sequences; i++) {
        window w = {0};
        w.rows = sd_arena_take(&d->base.arena, (size_t)(o->ngram - 1), (size_t)o->window * sizeof *w.rows);
        w.leaves = sd_arena_take(&d->base.arena, (size_t)o->window, sizeof *w.leaves);
        w.pool = take_pool(&d->base.arena, o->ngram, ROUNDS * o->window);
        if (d->base.arena.base != NULL) d->windows[i] = w;
    }
}

sd_status sd_lookahead_drafter_create(const sd_drafting* drafting, const sd_lookahead_options* o,
                                      sd_drafter** drafter) {
    SD_FAIL_IF(o->window < 1 || o->ngram < 2 || o->candidates < 0, SD_ERR_VALUE,
               "lookahead: window, ngram and candidates are %d, %d and %d, expected at least 1, 2 and 0",
               o->window, o->ngram, o->candidates);
    int64_t n_nodes = ((int64_t)o->window + o->candidates) * (o->ngram - 1);
    SD_FAIL_IF(n_nodes > SD_MAX_GAMMA, SD_ERR_VALUE,
               "lookahead: the tree has %lld draft tokens, expected at most %d", (long long)n_nodes,
               SD_MAX_GAMMA);
    SD_NEW(lookahead_drafter, d);
    d->base = SD_MAKE(sd_drafter, .tree_type = SD_TREE_ANY, .points = 1, .begin = begin, .propose = propose,
                      .observe = observe, .free = sd_drafter_release);
    d->options = *o;
    d->n_vocab = drafting->n_vocab;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafting->n_sequences)),
                           drafter);
}
