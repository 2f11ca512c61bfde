#include "suffix_tree.h"

#include <string.h>

#include "interrupt.h"

/* Positions sorted between two checks for an interruption: a power of two. */
#define PIECE 1024

static sd_suffix suffix_at(const int32_t* tokens, int32_t position) {
    return (sd_suffix){tokens + position, position + 1};
}

/* The i-th token of a suffix, from its end; -1 past its start. */
static int32_t token_of(sd_suffix s, int i) { return i < s.n ? s.last[-i] : -1; }

/* Number of common tokens of two suffixes, at most `depth`. */
static int common(sd_suffix a, sd_suffix b, int depth) {
    int i = 0;
    while (i < depth && token_of(a, i) >= 0 && token_of(a, i) == token_of(b, i)) i++;
    return i;
}

/* Is suffix a before suffix b? Not if they are equal. */
static int before(sd_suffix a, sd_suffix b, int depth) {
    int i = common(a, b, depth);
    if (i == depth) return 0;
    int32_t token_a = token_of(a, i), token_b = token_of(b, i);
    return token_b >= 0 && token_a < token_b;
}

/* Merge two sorted runs of positions into merged [n_left + n_right]. Positions of the left run are lower. */
static sd_status merge(const int32_t* tokens, int depth, const int32_t* left, int n_left,
                       const int32_t* right, int n_right, int32_t* merged) {
    for (int i = 0, j = 0; i + j < n_left + n_right;) {
        if ((i + j) % PIECE == PIECE - 1) SD_TRY(sd_interrupted());
        int from_right = i == n_left || (j < n_right && before(suffix_at(tokens, right[j]),
                                                               suffix_at(tokens, left[i]), depth));
        int32_t next = from_right ? right[j] : left[i];
        merged[i + j] = next;
        i += !from_right;
        j += from_right;
    }
    return SD_OK;
}

sd_status sd_suffix_sort(const int32_t* tokens, int depth, int32_t* positions, int n, int32_t* spare) {
    int32_t *from = positions, *to = spare;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width) {
            int n_left = (int)(n - i < width ? n - i : width);
            int n_right = (int)(n - i - n_left < width ? n - i - n_left : width);
            SD_TRY(i % PIECE == 0 ? sd_interrupted() : SD_OK);
            SD_TRY(merge(tokens, depth, from + i, n_left, from + i + n_left, n_right, to + i));
        }
        int32_t* sorted = to;
        to = from;
        from = sorted;
    }
    if (from != positions) memcpy(positions, from, (size_t)n * sizeof *positions);
    return SD_OK;
}

/* Number of the first `n` positions ordered before a suffix, by their last `depth` tokens; with `equals`,
 * including equal ones. */
static int count_before(const sd_suffix_order* o, const int32_t* tokens, int n, sd_suffix s, int depth,
                        int equals) {
    int low = 0, high = n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        sd_suffix there = suffix_at(tokens, o->positions[middle]);
        if (equals ? !before(s, there, depth) : before(there, s, depth))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Insert from the last position to the first, so that later entries move only once. */
sd_status sd_suffix_order_add(sd_suffix_order* o, const int32_t* tokens, const int32_t* positions, int n) {
    int end = o->n;
    for (int i = n - 1; i >= 0; i--) {
        SD_TRY(i % PIECE == PIECE - 1 ? sd_interrupted() : SD_OK);
        int at = count_before(o, tokens, end, suffix_at(tokens, positions[i]), o->depth, 1);
        memmove(o->positions + at + i + 1, o->positions + at, (size_t)(end - at) * sizeof *o->positions);
        o->positions[at + i] = positions[i];
        end = at;
    }
    o->n += n;
    return SD_OK;
}

sd_suffix_range sd_suffix_order_find(const sd_suffix_order* o, const int32_t* tokens, sd_suffix s) {
    int at = count_before(o, tokens, o->n, s, o->depth, 0);
    int left = at > 0 ? common(suffix_at(tokens, o->positions[at - 1]), s, o->depth) : 0;
    int right = at < o->n ? common(suffix_at(tokens, o->positions[at]), s, o->depth) : 0;
    int length = left > right ? left : right;
    if (length == 0) return (sd_suffix_range){0, 0, 0};
    return (sd_suffix_range){count_before(o, tokens, at, s, length, 0),
                             count_before(o, tokens, o->n, s, length, 1), length};
}

/* Number of positions of a text: tokens of [text, end) that are followed by one of [output, end). */
static int count_positions(int text, int output, int end) {
    int first = output > text ? output - 1 : text;
    return first < end - 1 ? end - 1 - first : 0;
}

static void lay_out(sd_suffix_tree* t, int n_positions) {
    size_t n_texts = (size_t)t->n_texts;
    t->tokens = sd_arena_take(&t->arena, n_texts + (size_t)t->n_tokens + 1, sizeof *t->tokens);
    t->texts = sd_arena_take(&t->arena, n_texts + 1, sizeof *t->texts);
    t->outputs = sd_arena_take(&t->arena, n_texts, sizeof *t->outputs);
    t->order.positions = sd_arena_take(&t->arena, (size_t)n_positions, sizeof *t->order.positions);
}

/* Create an empty tree with capacity for texts and positions. */
static sd_status create(int n_texts, int n_tokens, int n_positions, int depth, sd_suffix_tree** out) {
    SD_NEW(sd_suffix_tree, t);
    t->n_texts = n_texts;
    t->n_tokens = n_tokens;
    t->order.depth = depth;
    if (SD_ARENA_BUILD(&t->arena, lay_out(t, n_positions)) != SD_OK) {
        sd_free(t);
        return SD_ERR_MEMORY;
    }
    atomic_init(&t->n_references, 1);
    t->tokens[0] = -1;
    t->texts[0] = 1;
    *out = t;
    return SD_OK;
}

sd_status sd_suffix_memory_create(sd_suffix_memory* m, int max_tokens, int depth) {
    SD_TRY(sd_check_range("max_tokens", max_tokens, 1, SD_SUFFIX_MAX_TOKENS));
    SD_TRY(sd_check_range("depth", depth, 1, SD_SUFFIX_MAX_DEPTH));
    sd_suffix_tree* tree;
    SD_TRY(create(0, 0, 0, depth, &tree));
    *m = (sd_suffix_memory){.tree = tree, .max_tokens = max_tokens};
    sd_mutex_init(&m->lock);
    return SD_OK;
}

void sd_suffix_memory_free(sd_suffix_memory* m) {
    sd_suffix_tree_release(m->tree);
    sd_mutex_destroy(&m->lock);
}

sd_suffix_tree* sd_suffix_memory_tree(sd_suffix_memory* m) {
    sd_mutex_lock(&m->lock);
    sd_suffix_tree* tree = m->tree;
    atomic_fetch_add_explicit(&tree->n_references, 1, memory_order_relaxed);
    sd_mutex_unlock(&m->lock);
    return tree;
}

void sd_suffix_tree_release(sd_suffix_tree* t) {
    if (t == NULL || atomic_fetch_sub_explicit(&t->n_references, 1, memory_order_acq_rel) > 1) return;
    sd_arena_free(&t->arena);
    sd_free(t);
}

/* What to keep of the old tree and of the added texts. */
typedef struct choice {
    int old;       /* first text of the old tree to keep */
    int new;       /* first of the added texts to keep */
    int64_t begin; /* index of its first token in the added texts */
    int cut;       /* tokens cut off its start */
    int n_tokens, n_positions;
} choice;

static choice choose(const sd_suffix_memory* m, const sd_suffix_tree* old, const sd_suffix_texts* new) {
    choice c = {.old = old->n_texts, .new = new->n};
    int64_t end = 0;
    for (int i = 0; i < new->n; i++) end += new->lengths[i];
    c.begin = end;
    for (; c.new > 0 && c.cut == 0; c.new--) {
        int length = new->lengths[c.new - 1], n_free = m->max_tokens - c.n_tokens;
        if (length > n_free && c.n_tokens > 0) return c;
        if (length > n_free) c.cut = length - n_free;
        c.begin -= length;
        c.n_tokens += length - c.cut;
        int n_before = new->n_before[c.new - 1] - c.cut;
        c.n_positions += count_positions(0, n_before > 0 ? n_before : 0, length - c.cut);
    }
    if (c.new > 0 || c.cut > 0) return c;
    for (; c.old > 0; c.old--) {
        int first = old->texts[c.old - 1], next = old->texts[c.old] - 1;
        if (next - first > m->max_tokens - c.n_tokens) break;
        c.n_tokens += next - first;
        c.n_positions += count_positions(first, old->outputs[c.old - 1], next);
    }
    return c;
}

/* Copy what stays of the old tree: its texts in one piece, its positions in order. */
static void take_over(sd_suffix_tree* t, const sd_suffix_tree* old, int first) {
    int begin = old->texts[first], shift = begin - 1, n_texts = old->n_texts - first;
    int n_tokens = old->texts[old->n_texts] - begin;
    memcpy(t->tokens + 1, old->tokens + begin, (size_t)n_tokens * sizeof *t->tokens);
    for (int i = 0; i < n_texts; i++) {
        t->texts[i] = old->texts[first + i] - shift;
        t->outputs[i] = old->outputs[first + i] - shift;
    }
    t->texts[n_texts] = old->texts[old->n_texts] - shift;
    for (int i = 0; i < old->order.n; i++)
        if (old->order.positions[i] >= begin)
            t->order.positions[t->order.n++] = old->order.positions[i] - shift;
}

/* Append the new texts, from text `at` of the tree on, and write their positions to `positions`. */
static int append(sd_suffix_tree* t, int at, const sd_suffix_texts* new, const choice* c,
                  int32_t* positions) {
    const int32_t* from = new->tokens + c->begin + c->cut;
    int n_positions = 0, cut = c->cut;
    for (int i = c->new; i < new->n; i++, at++, cut = 0) {
        int begin = t->texts[at], n = new->lengths[i] - cut, end = begin + n;
        int n_before = new->n_before[i] > cut ? new->n_before[i] - cut : 0;
        memcpy(t->tokens + begin, from, (size_t)n * sizeof *t->tokens);
        from += n;
        t->tokens[end] = -1;
        t->outputs[at] = begin + n_before;
        t->texts[at + 1] = end + 1;
        for (int position = end - 1 - count_positions(begin, begin + n_before, end); position < end - 1;
             position++)
            positions[n_positions++] = position;
    }
    return n_positions;
}

/* Add the new texts' positions to a tree with the old ones. */
static sd_status fill(sd_suffix_tree* t, int n_old, const sd_suffix_texts* new, const choice* c) {
    size_t n_positions = (size_t)(c->n_positions - t->order.n);
    int32_t* positions = sd_alloc(2 * (n_positions + 1) * sizeof *positions); /* the second half is scratch */
    if (positions == NULL) return SD_ERR_MEMORY;
    int n = append(t, n_old, new, c, positions);
    sd_status status = sd_suffix_sort(t->tokens, t->order.depth, positions, n, positions + n_positions);
    if (status == SD_OK) status = sd_suffix_order_add(&t->order, t->tokens, positions, n);
    sd_free(positions);
    for (int i = 0; i < t->n_texts + t->n_tokens; i++)
        if (t->tokens[i] > t->max_token) t->max_token = t->tokens[i];
    return status;
}

sd_status sd_suffix_memory_add(sd_suffix_memory* m, const sd_suffix_texts* new) {
    sd_suffix_tree *old = m->tree, *t; /* no other thread replaces it meanwhile */
    choice c = choose(m, old, new);
    int n_old = old->n_texts - c.old;
    SD_TRY(create(n_old + new->n - c.new, c.n_tokens, c.n_positions, old->order.depth, &t));
    take_over(t, old, c.old);
    sd_status status = fill(t, n_old, new, &c);
    if (status == SD_OK) {
        sd_mutex_lock(&m->lock);
        m->tree = t;
        sd_mutex_unlock(&m->lock);
    }
    sd_suffix_tree_release(status == SD_OK ? old : t);
    return status;
}
