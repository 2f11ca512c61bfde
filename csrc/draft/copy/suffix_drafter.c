/* Suffix decoding: drafts what followed the longest known suffix, the most frequent first. */
#include "copy_drafters.h"

#include <limits.h>

/* Most occurrences of a piece that count: of more, this many are sampled evenly over the range. */
#define OCCURRENCES 256

typedef struct suffix_draft_token {
    int32_t token;
    int parent;   /* index of the draft token before it; -1: none */
    int depth;    /* 1: the first */
    double share; /* share of the occurrences before it that continue with it */
    double value; /* product of the shares down to it */
} suffix_draft_token;

typedef struct wish {
    int n;            /* most draft tokens */
    int depth;        /* most in a row */
    double min_value; /* least value of each draft token, > 0 */
    int branches;     /* 0: a chain */
} wish;

/* A draft token that is not taken yet, with its occurrences. Branches have disjoint occurrences. */
typedef struct branch {
    suffix_draft_token drafted;
    int begin, end; /* its occurrences, in `found` */
} branch;

typedef struct search {
    int32_t* found; /* [OCCURRENCES] positions */
    branch* open;   /* [OCCURRENCES] in the order in which they were found */
    int n_open;
    suffix_draft_token* draft_tokens; /* [n] of the last search, parents first */
    int n;
    double expected; /* Σ value: expected accepted tokens */
} search;

/* Take a search for at most `capacity` draft tokens. */
static search take_search(sd_arena* arena, int capacity) {
    return SD_MAKE(search, .found = sd_arena_take(arena, OCCURRENCES, sizeof(int32_t)),
                   .open = sd_arena_take(arena, OCCURRENCES, sizeof(branch)),
                   .draft_tokens = sd_arena_take(arena, (size_t)capacity, sizeof(suffix_draft_token)));
}

typedef struct source {
    const int32_t* tokens; /* [n] */
    int n;
} source;

/* The i-th token after a position, from 1; -1 at the end. */
static int32_t token_after(source text, int32_t position, int i) {
    return i < text.n - position ? text.tokens[position + i] : -1;
}

/* Sort positions [n] by the i-th token after them, which mostly takes one or few values. */
static void sort(source text, int32_t* positions, int n, int i) {
    for (int j = 1; j < n; j++) {
        int32_t position = positions[j], token = token_after(text, position, i);
        int at = j;
        for (; at > 0 && token_after(text, positions[at - 1], i) > token; at--)
            positions[at] = positions[at - 1];
        positions[at] = position;
    }
}

/* Open the continuations of occurrences [begin, end) of draft token `parent`; -1: of the match. */
static void open_after(search* s, source text, int parent, int begin, int end) {
    int depth = parent < 0 ? 1 : s->draft_tokens[parent].depth + 1;
    double value = parent < 0 ? 1.0 : s->draft_tokens[parent].value;
    sort(text, s->found + begin, end - begin, depth);
    for (int i = begin, next; i < end; i = next) {
        int32_t token = token_after(text, s->found[i], depth);
        for (next = i + 1; next < end && token_after(text, s->found[next], depth) == token;) next++;
        if (token < 0) continue;
        double share = (double)(next - i) / (end - begin);
        s->open[s->n_open++] = (branch){{token, parent, depth, share, value * share}, i, next};
    }
}

static branch take_best(search* s) {
    int best = 0;
    for (int i = 1; i < s->n_open; i++)
        if (s->open[i].drafted.value > s->open[best].drafted.value) best = i;
    const branch taken = s->open[best];
    s->n_open--;
    for (int i = best; i < s->n_open; i++) s->open[i] = s->open[i + 1];
    return taken;
}

/* Search the continuations of the occurrences in a range of an order of `tokens` [n_tokens]; a negative token
 * ends a continuation. Takes draft tokens in descending order of value, the first found on ties; siblings are
 * found in the order of their tokens. */
static void run_search(search* s, const sd_suffix_order* o, sd_suffix_range range, const int32_t* tokens,
                       int n_tokens, const wish* wanted) {
    const source text = {tokens, n_tokens};
    int n_all = range.end - range.begin;
    int n_found = n_all < OCCURRENCES ? n_all : OCCURRENCES;
    for (int i = 0; i < n_found; i++)
        s->found[i] = o->positions[range.begin + (int)((int64_t)i * n_all / n_found)];
    s->n = s->n_open = 0;
    s->expected = 0.0;
    open_after(s, text, -1, 0, n_found);
    while (s->n < wanted->n && s->n_open > 0) {
        const branch best = take_best(s);
        if (best.drafted.value < wanted->min_value) return;
        if (!wanted->branches) s->n_open = 0;
        s->draft_tokens[s->n] = best.drafted;
        s->expected += best.drafted.value;
        if (best.drafted.depth < wanted->depth) open_after(s, text, s->n, best.begin, best.end);
        s->n++;
    }
}

/* State of a sequence: its committed text. */
typedef struct sequence_state {
    const int32_t* prompt; /* [n_prompt] borrowed until it has been read */
    int n_prompt;
    int n_read;            /* tokens that have been read */
    sd_suffix_order order; /* of all of them but the last, which nothing follows yet */
    /* the memory's tree when the sequence began, with a reference; NULL: not begun yet */
    sd_suffix_tree* tree;
} sequence_state;

typedef struct suffix_drafter {
    sd_drafter base; /* must stay first */
    sd_suffix_drafter_options options;
    int n_vocab, n_sequences;
    sequence_state* states; /* [n_sequences] */
    int32_t* slice;         /* [2 · SD_READ_SLICE] positions being sorted, and scratch */
    int32_t* nodes;         /* [gamma] the node of each draft token; -1: none */
    search in_text, in_memory;
    sd_odds prior; /* without cases: prior trust in matches by length */
} suffix_drafter;

/* Append text from where the last call ended. */
static sd_status read_on(suffix_drafter* d, sequence_state* r, const int32_t* tokens, int n_tokens) {
    while (r->n_read < n_tokens) {
        int n_here = n_tokens - r->n_read, n = 0;
        if (n_here > SD_READ_SLICE) n_here = SD_READ_SLICE;
        for (int i = r->order.n; i < r->n_read + n_here - 1; i++) d->slice[n++] = i;
        SD_TRY(sd_suffix_sort(tokens, r->order.depth, d->slice, n, d->slice + SD_READ_SLICE));
        SD_TRY(sd_suffix_order_add(&r->order, tokens, d->slice, n));
        r->n_read += n_here;
    }
    return SD_OK;
}

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    suffix_drafter* d = (suffix_drafter*)base;
    sequence_state* r = &d->states[sequence];
    sd_suffix_tree_release(r->tree);
    r->tree = sd_suffix_memory_tree(d->options.memory);
    r->order.depth = r->tree->order.depth;
    r->order.n = r->n_read = 0;
    r->prompt = prompt->tokens;
    r->n_prompt = prompt->n;
    return sd_check_range("a token of the draft's memory", r->tree->max_token, 0, d->n_vocab - 1);
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    suffix_drafter* d = (suffix_drafter*)base;
    int n_free = SD_READ_SLICE;
    for (int i = 0; i < d->n_sequences && n_free > 0; i++) {
        sequence_state* r = &d->states[i];
        int n_here = sd_slice_take(r->n_prompt, r->n_read, &n_free);
        if (n_here == 0) continue;
        SD_TRY(read_on(d, r, r->prompt, r->n_read + n_here));
    }
    *done = n_free > 0;
    return SD_OK;
}

static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    suffix_drafter* d = (suffix_drafter*)base;
    return read_on(d, &d->states[sequence], tokens, n_tokens);
}

/* Search the continuations of the text's longest suffix in `tokens` [n_tokens], whose order is given. Returns
 * the length of the suffix. */
static int look_up(const suffix_drafter* d, search* s, const sd_proposal* p, const sd_suffix_order* order,
                   const int32_t* tokens, int n_tokens) {
    const sd_suffix suffix = {p->text + p->n_text - 1, p->n_text};
    sd_suffix_range range = sd_suffix_order_find(order, tokens, suffix);
    if (range.length < d->options.min_match) range = (sd_suffix_range){0};
    double most = range.length * d->options.factor;
    int n = most < p->budget ? (int)most : p->budget;
    if (n < 1 && p->budget > 0) n = 1;
    const wish wanted = {n, p->depth, d->options.min_probability, d->options.branches};
    run_search(s, order, range, tokens, n_tokens, &wanted);
    return range.length;
}

/* Append draft tokens to a proposal. If one does not pay, none of a lower value does. */
static void append(const suffix_drafter* d, const search* s, int length, sd_proposal* p) {
    for (int i = 0; i < s->n; i++) {
        const suffix_draft_token* drafted = &s->draft_tokens[i];
        int parent = drafted->parent < 0 ? 0 : d->nodes[drafted->parent];
        d->nodes[i] = -1;
        if (parent < 0 || !sd_proposal_allows(p, parent, drafted->token)) continue;
        double confidence = drafted->share * sd_odds_of(&d->prior, length + drafted->depth - 1);
        if (!sd_proposal_has_capacity(p, parent) || !sd_proposal_worth_verifying(p, parent, confidence))
            return;
        d->nodes[i] = sd_proposal_add_point(p, parent, drafted->token, confidence);
    }
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    suffix_drafter* d = (suffix_drafter*)base;
    for (int i = 0; i < n; i++) {
        sd_proposal* p = &proposals[i];
        if (p->budget == 0) continue;
        const sequence_state* r = &d->states[p->sequence];
        const sd_suffix_tree* tree = r->tree;
        int in_text = look_up(d, &d->in_text, p, &r->order, p->text, p->n_text);
        int in_memory =
            look_up(d, &d->in_memory, p, &tree->order, tree->tokens, tree->n_texts + tree->n_tokens + 1);
        if (d->in_memory.expected > d->in_text.expected)
            append(d, &d->in_memory, in_memory, p);
        else
            append(d, &d->in_text, in_text, p);
    }
    return SD_OK;
}

static void release(sd_drafter* base) {
    suffix_drafter* d = (suffix_drafter*)base;
    for (int i = 0; d->base.arena.base && i < d->n_sequences; i++) sd_suffix_tree_release(d->states[i].tree);
    sd_drafter_release(base);
}

static void lay_out(suffix_drafter* d, const sd_drafting* drafting) {
    d->states = sd_arena_take(&d->base.arena, (size_t)d->n_sequences, sizeof *d->states);
    d->slice = sd_arena_take(&d->base.arena, 2 * SD_READ_SLICE, sizeof *d->slice);
    d->nodes = sd_arena_take(&d->base.arena, (size_t)drafting->gamma, sizeof *d->nodes);
    d->in_text = take_search(&d->base.arena, drafting->gamma);
    d->in_memory = take_search(&d->base.arena, drafting->gamma);
    for (int i = 0; i < d->n_sequences; i++) {
        int32_t* positions = sd_arena_take(&d->base.arena, (size_t)drafting->n_text, sizeof *positions);
        if (d->base.arena.base != NULL) d->states[i].order.positions = positions;
    }
}

sd_status sd_suffix_drafter_create(const sd_drafting* drafting, const sd_suffix_drafter_options* options,
                                   sd_drafter** drafter) {
    SD_TRY(sd_check_range("min_match", options->min_match, 1, INT_MAX));
    if (!(options->factor > 0.0))
        return sd_fail(SD_ERR_VALUE, "factor is %g, expected a number above 0", options->factor);
    SD_FAIL_IF(!(options->min_probability > 0.0 && options->min_probability <= 1.0), SD_ERR_VALUE,
               "min_probability is %g, expected a number above 0, at most 1", options->min_probability);
    SD_NEW(suffix_drafter, d);
    d->base =
        SD_MAKE(sd_drafter, .tree_type = options->branches ? SD_TREE_ANY : SD_TREE_CHAINS, .points = 1,
                .begin = begin, .read = read_prompts, .propose = propose, .commit = commit, .free = release);
    d->options = *options;
    d->n_vocab = drafting->n_vocab;
    d->n_sequences = drafting->n_sequences;
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->base.arena, lay_out(d, drafting)), drafter);
}
