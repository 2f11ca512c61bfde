#include "score.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "interrupt.h"
#include "row_distribution.h"

/* -------------------------------------------------------------------------- texts as trees of their tokens
 *
 * Texts are sorted, so that texts with a common prefix are adjacent, and divided into groups. A group's tree
 * has a node for each token that is read: all but the last of each text. First comes the stem, a chain that
 * all texts of the group start with, then what follows it. */

/* Most nodes of a tree after its stem: every row of the tree attends to all of them, and masks those not on
 * its path. */
#define MOST_AFTER_STEM 256

/* Sorted texts [first, first + n). */
typedef struct text_group {
    int first, n;
    int n_nodes, n_stem;
    int n_unscored; /* leading nodes of the stem after which no text is scored */
    int n_wants;    /* scored tokens */
} text_group;

/* A token scored by the logits of a node. */
typedef struct want {
    int32_t token;
    int next;         /* next want of the node, -1: none */
    ptrdiff_t result; /* index of its results */
} want;

/* The tree of a group; its arrays, owned by the caller, hold the largest group. */
typedef struct text_tree {
    int32_t* tokens;  /* [n_nodes] */
    int32_t* parents; /* [n_nodes] earlier nodes; -1: none */
    int* first_wants; /* [n_nodes] first want of each node, -1: none */
    want* wants;      /* [n_wants] */
    int32_t* path;    /* [n_nodes] scratch: nodes of the last text */
} text_tree;

/* A text that shares this many tokens joins a group, however many more it has. */
#define WORTH_JOINING 16

static int compare_ids(const int32_t* a, int n_a, const int32_t* b, int n_b) {
    for (int i = 0; i < n_a && i < n_b; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return (n_a > n_b) - (n_a < n_b);
}

static int compare(const void* one, const void* two) {
    const sd_scored_text *a = one, *b = two;
    int order = compare_ids(a->source, a->n_source, b->source, b->n_source);
    if (order == 0) order = compare_ids(a->tokens, a->n, b->tokens, b->n);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

static int n_read(const sd_scored_text* text) { return text->n - 1; }

/* Number of read tokens that two texts share at their start. */
static int common_tokens(const sd_scored_text* a, const sd_scored_text* b) {
    if (compare_ids(a->source, a->n_source, b->source, b->n_source) != 0) return 0;
    int n = n_read(a) < n_read(b) ? n_read(a) : n_read(b), at = 0;
    while (at < n && a->tokens[at] == b->tokens[at]) at++;
    return at;
}

static text_group group_of(const sd_scored_text* text, int i) {
    return SD_MAKE(text_group, .first = i, .n = 1, .n_nodes = n_read(text), .n_stem = n_read(text),
                   .n_unscored = text->n_given - 1, .n_wants = text->n - text->n_given);
}

/* Add a text to the group of the text before it, with which it shares n_common tokens, if that saves work.
 * Returns whether it did. */
static int join(text_group* group, const sd_scored_text* text, int n_common) {
    text_group joined = group_of(text, group->first);
    int n_more = n_read(text) - n_common;
    if (n_common < n_more && n_common < WORTH_JOINING) return 0;
    joined.n += group->n;
    joined.n_nodes = group->n_nodes + n_more;
    joined.n_stem = group->n_stem < n_common ? group->n_stem : n_common;
    if (group->n_unscored < joined.n_unscored) joined.n_unscored = group->n_unscored;
    if (joined.n_stem < joined.n_unscored) joined.n_unscored = joined.n_stem;
    joined.n_wants += group->n_wants;
    if (joined.n_nodes - joined.n_stem > MOST_AFTER_STEM) return 0;
    *group = joined;
    return 1;
}

/* Divide sorted texts [n] into groups [n]; returns their number. `apart`: one text per group. */
static int group_texts(const sd_scored_text* texts, int n, int apart, text_group* groups) {
    int n_groups = 0;
    for (int i = 0; i < n; i++) {
        if (!apart && i > 0 &&
            join(&groups[n_groups - 1], &texts[i], common_tokens(&texts[i - 1], &texts[i])))
            continue;
        groups[n_groups++] = group_of(&texts[i], i);
    }
    return n_groups;
}

/* Build the tree of a group of the sorted texts. */
static void build_tree(text_tree* tree, const sd_scored_text* texts, const text_group* group) {
    int n_nodes = 0, n_wants = 0;
    for (int i = group->first; i < group->first + group->n; i++) {
        const sd_scored_text* text = &texts[i];
        int n_common = i > group->first ? common_tokens(&texts[i - 1], text) : 0;
        for (int at = n_common; at < n_read(text); at++, n_nodes++) {
            tree->tokens[n_nodes] = text->tokens[at];
            tree->parents[n_nodes] = at > 0 ? tree->path[at - 1] : -1;
            tree->first_wants[n_nodes] = -1;
            tree->path[at] = n_nodes;
        }
        for (int at = text->n_given - 1; at < n_read(text); at++, n_wants++) {
            int* first = &tree->first_wants[tree->path[at]];
            tree->wants[n_wants] =
                (want){text->tokens[at + 1], *first, text->first + (at + 1 - text->n_given)};
            *first = n_wants;
        }
    }
}

/* Shared tokens worth waiting for: fewer are read again, in a forward pass with others. */
#define WORTH_WAITING 16

/* Rows of logits processed together. */
#define LOGITS 64

/* Groups read at once by default. */
#define MOST_LANES 16

/* A group being read. Its cache has the same index. */
typedef struct lane {
    const text_group* group; /* NULL: none */
    text_tree tree;
    int has_source; /* has its source, or needs none */
    int begun;      /* reading has begun */
    int n_read;     /* nodes read */
    int stop;       /* nodes after which the states get a snapshot for later groups; INT_MAX: none */
} lane;

struct sd_score {
    sd_score_options options;
    sd_scored_text* texts; /* [n] in order, borrowed */
    sd_workspace workspace;
    sd_arena arena; /* owns the arrays below */
    int n, n_lanes, n_groups;
    int n_begun;                 /* groups started so far */
    text_group* groups;          /* [n] */
    lane* lanes;                 /* [n_lanes] */
    sd_cache* caches;            /* [n_lanes] */
    sd_branch* branches;         /* [n_lanes] branches of a forward pass */
    int* read;                   /* [n_lanes] lane of each branch */
    int32_t* parents;            /* [slice] of the branches' nodes */
    int32_t* rows;               /* [slice] rows of a forward pass after which tokens are scored */
    const text_tree** row_trees; /* [slice] tree of each of these rows */
    int* row_nodes;              /* [slice] node of each in its tree */
};

typedef struct bounds {
    int n_nodes, n_after_stem, n_wants;
} bounds;

static bounds bounds_of(const sd_score* s) {
    bounds most = {0};
    for (int i = 0; i < s->n_groups; i++) {
        const text_group* g = &s->groups[i];
        int n_after = g->n_nodes - g->n_stem;
        if (g->n_nodes > most.n_nodes) most.n_nodes = g->n_nodes;
        if (n_after > most.n_after_stem) most.n_after_stem = n_after;
        if (g->n_wants > most.n_wants) most.n_wants = g->n_wants;
    }
    return most;
}

static void lay_out(sd_score* s, const bounds* most) {
    sd_arena* arena = &s->arena;
    size_t n_lanes = (size_t)s->n_lanes, slice = (size_t)sd_prompt_slice(s->options.model);
    size_t n_nodes = (size_t)most->n_nodes;
    s->lanes = sd_arena_take(arena, n_lanes, sizeof *s->lanes);
    s->caches = sd_arena_take(arena, n_lanes, sizeof *s->caches);
    s->branches = sd_arena_take(arena, n_lanes, sizeof *s->branches);
    s->read = sd_arena_take(arena, n_lanes, sizeof *s->read);
    s->parents = sd_arena_take(arena, slice, sizeof *s->parents);
    s->rows = sd_arena_take(arena, slice, sizeof *s->rows);
    s->row_trees = sd_arena_take(arena, slice, sizeof *s->row_trees);
    s->row_nodes = sd_arena_take(arena, slice, sizeof *s->row_nodes);
    for (int i = 0; i < s->n_lanes; i++) {
        text_tree tree;
        tree.tokens = sd_arena_take(arena, n_nodes, sizeof *tree.tokens);
        tree.parents = sd_arena_take(arena, n_nodes, sizeof *tree.parents);
        tree.first_wants = sd_arena_take(arena, n_nodes, sizeof *tree.first_wants);
        tree.wants = sd_arena_take(arena, (size_t)most->n_wants, sizeof *tree.wants);
        tree.path = sd_arena_take(arena, n_nodes, sizeof *tree.path);
        if (arena->base != NULL) s->lanes[i].tree = tree;
    }
}

static sd_status check_text(const sd_model* model, const sd_scored_text* text) {
    int n_vocab = model->config.n_vocab, n_ctx = model->config.n_ctx;
    if (text->n < 2) return sd_fail(SD_ERR_VALUE, "ids: %d tokens, expected at least 2", text->n);
    SD_FAIL_IF(text->n_given < 1 || text->n_given >= text->n, SD_ERR_VALUE,
               "%d of %d tokens are given, expected 1 to %d", text->n_given, text->n, text->n - 1);
    if (text->n - 1 > n_ctx)
        return sd_fail(SD_ERR_CONTEXT, "ids: %d tokens, expected at most %d: the context of %d and one more",
                       text->n, n_ctx + 1, n_ctx);
    for (int i = 0; i < text->n; i++)
        SD_FAIL_IF(text->tokens[i] < 0 || text->tokens[i] >= n_vocab, SD_ERR_VALUE,
                   "ids[%d] is %d, expected 0 to %d", i, (int)text->tokens[i], n_vocab - 1);
    return sd_encoder_check(model, text->source, text->n_source);
}

/* One group more than fills a forward pass twice at average size: a group that ends leaves no pass half
 * empty. */
static int lanes_that_fill(const sd_score* s) {
    long n_nodes = 0, slice = sd_prompt_slice(s->options.model);
    for (int i = 0; i < s->n_groups; i++) n_nodes += s->groups[i].n_nodes;
    long wanted = 1 + (2 * slice * s->n_groups + n_nodes - 1) / n_nodes;
    return wanted < MOST_LANES ? (int)wanted : MOST_LANES;
}

sd_status sd_score_create(const sd_score_options* options, sd_scored_text* texts, int n, sd_score** out) {
    const sd_model* model = options->model;
    int n_vocab = model->config.n_vocab, n_top = options->results.n_top, slice = sd_prompt_slice(model);
    if (n < 1) return sd_fail(SD_ERR_VALUE, "there are no texts");
    SD_TRY(sd_check_range("n_top", n_top, 0, n_vocab));
    SD_TRY(sd_check_range("n_texts", options->n_texts, 0, INT_MAX));
    for (int i = 0; i < n; i++) SD_TRY(check_text(model, &texts[i]));
    qsort(texts, (size_t)n, sizeof *texts, compare);
    SD_NEW(sd_score, s);
    s->options = *options;
    s->texts = texts;
    s->n = n;
    sd_status status = SD_ERR_MEMORY;
    if ((s->groups = sd_alloc((size_t)n * sizeof *s->groups)) == NULL) goto fail;
    s->n_groups = group_texts(texts, n, sd_prompts_in_slices(model), s->groups);
    int wanted = options->n_texts > 0 ? options->n_texts : lanes_that_fill(s);
    s->n_lanes = wanted < s->n_groups ? wanted : s->n_groups;
    const bounds most = bounds_of(s);
    if ((status = SD_ARENA_BUILD(&s->arena, lay_out(s, &most))) != SD_OK) goto fail;
    for (int i = 0; i < s->n_lanes; i++) {
        status = sd_cache_create(&s->caches[i], model, most.n_nodes, most.n_after_stem + 1, 0, NULL);
        if (status != SD_OK) goto fail;
    }
    status = sd_workspace_create(&s->workspace, model, options->n_threads, slice,
                                 sd_prompts_in_slices(model) ? slice : LOGITS, most.n_nodes);
    if (status != SD_OK) goto fail;
    s->workspace.name = "the model";
    *out = s;
    return SD_OK;
fail:
    sd_score_free(s);
    return status;
}

void sd_score_free(sd_score* s) {
    if (s == NULL) return;
    for (int i = 0; s->arena.base && i < s->n_lanes; i++) sd_cache_free(&s->caches[i]);
    sd_workspace_free(&s->workspace);
    sd_arena_free(&s->arena);
    sd_free(s->groups);
    sd_free(s);
}

const sd_cache* sd_score_cache(const sd_score* s) { return &s->caches[0]; }

/* ------------------------------------------------------------------------------------- groups and lanes */

static int being_read(const lane* l) { return l->group != NULL && l->begun; }

/* Unscored tokens of a group that the stem of another one starts with too. */
static int in_common(const sd_score* s, const text_group* of, const text_group* other) {
    int n = common_tokens(&s->texts[of->first], &s->texts[other->first]);
    if (of->n_unscored < n) n = of->n_unscored;
    return other->n_stem < n ? other->n_stem : n;
}

/* Start waiting groups, except those that should wait for a stem being read. */
static void begin_groups(sd_score* s) {
    for (int i = 0; i < s->n_lanes; i++) {
        lane* l = &s->lanes[i];
        if (l->group == NULL || l->begun || !l->has_source) continue;
        int longest = 0, n = l->group->n_unscored;
        for (int other = 0; other < s->n_lanes; other++) {
            if (!being_read(&s->lanes[other])) continue;
            int common = in_common(s, l->group, s->lanes[other].group);
            if (common > longest) longest = common;
        }
        if (longest - sd_cache_known(s->caches, s->n_lanes, i, l->tree.tokens, n) >= WORTH_WAITING) continue;
        sd_cache_begin(s->caches, s->n_lanes, i, l->tree.tokens, n);
        l->n_read = s->caches[i].n_committed;
        l->begun = 1;
    }
}

static void fill_lanes(sd_score* s) {
    for (int i = 0; i < s->n_lanes && s->n_begun < s->n_groups; i++) {
        lane* l = &s->lanes[i];
        if (l->group != NULL) continue;
        l->group = &s->groups[s->n_begun++];
        l->has_source = s->options.model->encoder == NULL;
        l->begun = l->n_read = 0;
        build_tree(&l->tree, s->texts, l->group);
    }
}

/* Attach the caches of new groups to their sources: another cache may have one, else encode it and set
 * *encoded. */
static sd_status attend(sd_score* s, int* encoded) {
    const sd_workspace* w = &s->workspace;
    for (int i = 0; i < s->n_lanes && !*encoded; i++) {
        lane* l = &s->lanes[i];
        if (l->group == NULL || l->has_source) continue;
        const sd_scored_text* text = &s->texts[l->group->first];
        int from = 0;
        while (from < s->n_lanes &&
               !sd_encoded_has_source(s->caches[from].encoded, text->source, text->n_source))
            from++;
        if (from < s->n_lanes) {
            sd_cache_set_source(&s->caches[i], s->caches[from].encoded);
        } else {
            SD_TRY(sd_encode(&s->caches[i], text->source, text->n_source, w->n_threads, w->name));
            *encoded = 1;
        }
        l->has_source = 1;
    }
    return SD_OK;
}

/* ----------------------------------------------------------------------------------------- one forward */

/* Find the next `stop` of a lane: where its stem and one of the next groups part. */
static int next_stop(const sd_score* s, int which) {
    const lane* l = &s->lanes[which];
    int stop = INT_MAX, next = (int)(l->group - s->groups) + 1;
    int end = next + (s->caches[which].n_ring > 0 ? s->n_lanes : 0);
    for (int g = next; g < end && g < s->n_groups; g++) {
        int common = in_common(s, &s->groups[g], l->group);
        if (sd_prompts_in_slices(s->options.model)) common -= common % SD_BLAS_SLICE;
        if (common >= WORTH_WAITING && common > l->n_read && common < stop) stop = common;
    }
    return stop;
}

/* Make the next nodes of a lane, at most `most`, a branch of a forward pass. Returns their number. */
static int fill_branch(sd_score* s, int which, int most, int32_t* parents, sd_branch* branch) {
    lane* l = &s->lanes[which];
    sd_cache* cache = &s->caches[which];
    int n = sd_slice_length(cache, l->group->n_nodes - l->n_read), wanted = 0;
    int n_commit = l->group->n_stem > l->n_read ? l->group->n_stem - l->n_read : 0;
    l->stop = next_stop(s, which);
    if (n > most) n = most;
    if (n > l->stop - l->n_read) n = l->stop - l->n_read;
    for (int i = 0; i < n; i++) {
        parents[i] = l->tree.parents[l->n_read + i] - cache->n_committed; /* the stem's last node: -1 */
        wanted |= l->tree.first_wants[l->n_read + i] >= 0;
    }
    *branch = SD_MAKE(sd_branch, .cache = cache, .tokens = l->tree.tokens + l->n_read, .parents = parents,
                      .n_new = n, .n_commit = n_commit < n ? n_commit : n,
                      .n_logits = wanted && sd_prompts_in_slices(s->options.model) ? n : 0);
    return n;
}

static int fill_branches(sd_score* s) {
    int alone = sd_prompts_in_slices(s->options.model), n_left = sd_prompt_slice(s->options.model);
    int n_branches = 0, most = alone ? 1 : s->n_lanes, n_rows = 0;
    for (int i = 0; i < s->n_lanes && n_left > 0 && n_branches < most; i++) {
        if (!being_read(&s->lanes[i])) continue;
        int n = fill_branch(s, i, n_left, s->parents + n_rows, &s->branches[n_branches]);
        s->read[n_branches++] = i;
        n_rows += n;
        n_left -= n;
    }
    return n_branches;
}

/* Find the rows of the last forward pass after which tokens are scored; returns their number. */
static int find_rows(sd_score* s, int n_branches) {
    int n = 0;
    for (int b = 0, row = 0; b < n_branches; b++) {
        const lane* l = &s->lanes[s->read[b]];
        for (int i = 0; i < s->branches[b].n_new; i++, row++) {
            if (l->tree.first_wants[l->n_read + i] < 0) continue;
            s->rows[n] = row;
            s->row_trees[n] = &l->tree;
            s->row_nodes[n++] = l->n_read + i;
        }
    }
    return n;
}

typedef struct rows_of_logits {
    const sd_score* score;
    const float* logits; /* rows from `first` on or, with `whole`, numbered as in the pass */
    int whole, first;
} rows_of_logits;

/* Write a row's most probable tokens and their ln p as the results of one token. */
static void put_top(const sd_score* s, const sd_row_distribution* p, const float* logits, ptrdiff_t result) {
    const sd_score_results* r = &s->options.results;
    sd_row_top(p, logits, s->options.model->config.n_vocab, r->n_top, r->top_tokens + result * r->n_top,
               r->top_log_probs + result * r->n_top);
}

static void copy_top(const sd_score_results* r, ptrdiff_t from, ptrdiff_t to) {
    size_t n = (size_t)r->n_top;
    memcpy(r->top_tokens + to * r->n_top, r->top_tokens + from * r->n_top, n * sizeof *r->top_tokens);
    memcpy(r->top_log_probs + to * r->n_top, r->top_log_probs + from * r->n_top,
           n * sizeof *r->top_log_probs);
}

static void score_rows(void* argument, int thread, int first, int end) {
    (void)thread;
    const rows_of_logits* rows = argument;
    const sd_score* s = rows->score;
    const sd_score_results* r = &s->options.results;
    for (int row = first; row < end; row++) {
        int i = rows->first + row;
        const text_tree* tree = s->row_trees[i];
        const float* logits = rows->logits + (rows->whole ? s->rows[i] : row) * s->workspace.ld_logits;
        const sd_row_distribution p = sd_row_distribution_of(logits, s->options.model->config.n_vocab);
        int first_want = tree->first_wants[s->row_nodes[i]];
        for (int w = first_want; w >= 0; w = tree->wants[w].next) {
            const want* of = &tree->wants[w];
            r->log_probs[of->result] = sd_row_log_prob(&p, logits, of->token);
            if (r->greedy) r->greedy[of->result] = of->token == p.argmax;
            if (r->n_top > 0 && w == first_want)
                put_top(s, &p, logits, of->result);
            else if (r->n_top > 0)
                copy_top(r, tree->wants[first_want].result, of->result);
        }
    }
}

/* Score the tokens after rows of the last forward pass. */
static sd_status score_forward(sd_score* s, int n_branches) {
    sd_workspace* w = &s->workspace;
    int n = find_rows(s, n_branches), whole = sd_prompts_in_slices(s->options.model);
    for (int first = 0, n_here; first < n; first += n_here) {
        n_here = !whole && n - first > LOGITS ? LOGITS : n - first;
        rows_of_logits rows = {s, w->logits, whole, first};
        if (!whole) {
            SD_TRY(sd_forward_more_logits(w, s->rows + first, n_here, &rows.logits));
            SD_TRY(sd_forward_check_more(w, s->rows + first, n_here));
        }
        const sd_team team = sd_team_open(w->n_threads);
        sd_team_run(&team, n_here, 1, score_rows, &rows);
        sd_team_close(&team);
    }
    return SD_OK;
}

/* Finish a branch that was read: rows of the stem become text, and a group whose nodes are all read leaves
 * its lane. Returns how many texts are complete. */
static sd_status advance(sd_score* s, int which, int n_new, int* n_ended) {
    lane* l = &s->lanes[which];
    sd_cache* cache = &s->caches[which];
    l->n_read += n_new;
    int n_stem = l->n_read < l->group->n_stem ? l->n_read : l->group->n_stem;
    int n_settled = n_stem - cache->n_committed;
    SD_TRY(sd_cache_settle(cache, n_settled));
    sd_cache_count_prompt(cache, n_settled);
    if (l->n_read == l->stop) sd_cache_take_snapshot(cache);
    if (l->n_read < l->group->n_nodes) return SD_OK;
    *n_ended += l->group->n;
    l->group = NULL;
    return sd_cache_keep(cache, NULL, 0);
}

sd_status sd_score_slice(sd_score* s, int* n_ended, int* done) {
    int encoded = 0;
    *n_ended = *done = 0;
    begin_groups(s); /* before a finished lane gives up a stem that others wait for */
    fill_lanes(s);
    sd_status status = attend(s, &encoded);
    if (status != SD_OK || encoded) return status;
    begin_groups(s);
    int n_branches = fill_branches(s);
    if (n_branches == 0) {
        *done = 1;
        return SD_OK;
    }
    status = sd_forward_prompt(&s->workspace, s->branches, n_branches);
    if (status == SD_OK) status = sd_forward_check(&s->workspace, 0, sd_prompt_slice(s->options.model));
    if (status == SD_OK) status = score_forward(s, n_branches);
    for (int b = 0; b < n_branches && status == SD_OK; b++)
        status = advance(s, s->read[b], s->branches[b].n_new, n_ended);
    return status;
}
