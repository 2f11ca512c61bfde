#include "recorded_drafter.h"

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "row_distribution.h"
#include "system.h"

sd_online_sample sd_online_sample_take(sd_arena* arena, const sd_online_sample_shape* shape) {
    sd_online_sample made = {0};
    made.before = sd_arena_take(arena, (size_t)shape->n_before, sizeof *made.before);
    made.top = sd_arena_take(arena, (size_t)shape->n_top, sizeof *made.top);
    made.log_probs = sd_arena_take(arena, (size_t)shape->n_top, sizeof *made.log_probs);
    made.hidden = sd_arena_take(arena, (size_t)shape->n_hidden, sizeof *made.hidden);
    return made;
}

static void lay_out_ring(sd_online_samples* ring) {
    ring->entries = sd_arena_take(&ring->arena, (size_t)ring->n_entries, sizeof *ring->entries);
    for (int i = 0; i < ring->n_entries; i++) {
        sd_online_sample entry = sd_online_sample_take(&ring->arena, &ring->shape);
        if (ring->arena.base != NULL) ring->entries[i] = entry;
    }
}

sd_status sd_online_samples_create(sd_online_samples* ring, const sd_online_sample_shape* shape,
                                   int n_entries) {
    SD_TRY(sd_check_range("n", n_entries, 1, SD_MAX_ONLINE_SAMPLES));
    SD_TRY(sd_check_range("n_before", shape->n_before, 1, 1 << 16));
    SD_TRY(sd_check_range("n_top", shape->n_top, 1, 1 << 16));
    SD_TRY(sd_check_range("n_hidden", shape->n_hidden, 0, 1 << 24));
    *ring = (sd_online_samples){.shape = *shape, .n_entries = n_entries, .busy = ATOMIC_FLAG_INIT};
    return SD_ARENA_BUILD(&ring->arena, lay_out_ring(ring));
}

void sd_online_samples_free(sd_online_samples* ring) { sd_arena_free(&ring->arena); }

int32_t sd_online_samples_number_text(sd_online_samples* ring) {
    return atomic_fetch_add_explicit(&ring->n_texts, 1, memory_order_relaxed);
}

void sd_online_sample_fill_target(sd_online_sample* c, const sd_online_sample_shape* shape,
                                  const float* logits, int n_vocab, double* weights) {
    const sd_kernels* k = sd_kernels_get();
    int n_top = shape->n_top < n_vocab ? shape->n_top : n_vocab;
    sd_top top = {.n = n_top, .tokens = c->top, .values = weights}; /* scratch for logits */
    for (int32_t i = 0; i < n_vocab; i++) sd_top_offer(&top, i, (double)logits[i]);
    sd_top_sort(&top);
    for (int i = 0; i < n_top; i++) c->log_probs[i] = (float)weights[i];
    double sum = k->weigh(n_vocab, logits, c->log_probs[0], 1.0f, weights), log_sum = log(sum);
    float largest = c->log_probs[0];
    double found = 0.0;
    for (int i = 0; i < n_top; i++) {
        found += weights[c->top[i]];
        c->log_probs[i] = (float)((double)c->log_probs[i] - largest - log_sum);
    }
    for (int i = n_top; i < shape->n_top; i++) {
        c->top[i] = -1;
        c->log_probs[i] = -INFINITY;
    }
    c->rest = n_top < n_vocab ? (float)fmax(1.0 - found / sum, 0.0) : 0.0f;
}

static void copy(sd_online_sample* to, const sd_online_sample* from, const sd_online_sample_shape* shape) {
    memcpy(to->before, from->before, (size_t)shape->n_before * sizeof *to->before);
    memcpy(to->top, from->top, (size_t)shape->n_top * sizeof *to->top);
    memcpy(to->log_probs, from->log_probs, (size_t)shape->n_top * sizeof *to->log_probs);
    memcpy(to->hidden, from->hidden, (size_t)shape->n_hidden * sizeof *to->hidden);
    to->rest = from->rest;
    to->depth = from->depth;
    to->text = from->text;
    to->position = from->position;
}

static void enter(sd_online_samples* ring) {
    while (atomic_flag_test_and_set_explicit(&ring->busy, memory_order_acquire)) sd_thread_yield();
}

static void leave(sd_online_samples* ring) { atomic_flag_clear_explicit(&ring->busy, memory_order_release); }

void sd_online_samples_store(sd_online_samples* ring, const sd_online_sample* sample) {
    /* Never wait in a round: the other thread may have low priority and be descheduled. */
    if (atomic_flag_test_and_set_explicit(&ring->busy, memory_order_acquire)) return;
    if (ring->n == ring->n_entries) {
        ring->first = (ring->first + 1) % ring->n_entries;
        ring->n--;
    }
    copy(&ring->entries[(ring->first + ring->n) % ring->n_entries], sample, &ring->shape);
    ring->n++;
    leave(ring);
}

int sd_online_samples_count(sd_online_samples* ring) {
    enter(ring);
    int n = ring->n;
    leave(ring);
    return n;
}

int sd_online_samples_pop(sd_online_samples* ring, sd_online_sample* sample) {
    enter(ring);
    int found = ring->n > 0;
    if (found) {
        copy(sample, &ring->entries[ring->first], &ring->shape);
        ring->first = (ring->first + 1) % ring->n_entries;
        ring->n--;
    }
    leave(ring);
    return found;
}

typedef struct recorded_drafter {
    sd_drafter base;   /* must stay first */
    sd_drafter* inner; /* owned */
    sd_drafting drafting;
    sd_recorded_options options;
    sd_arena arena; /* owns the arrays below */
    int* n_text;    /* [n_sequences] length of each text at the last begin or commit */
    int32_t* texts; /* [n_sequences] number of each text */
    /* The last observation; proposal NULL: none since a proposal or a commit. */
    const sd_proposal* proposal;
    const float* logits;
    ptrdiff_t stride;
    int32_t* node_rows;      /* [gamma + 1] */
    sd_online_sample sample; /* scratch */
    double* weights;         /* [n_vocab] scratch */
} recorded_drafter;

static sd_status begin(sd_drafter* base, int sequence, const sd_prompt* prompt) {
    recorded_drafter* d = (recorded_drafter*)base;
    d->n_text[sequence] = prompt->n;
    d->texts[sequence] = sd_online_samples_number_text(d->options.samples);
    return sd_drafter_begin(d->inner, sequence, prompt);
}

static sd_status read_prompts(sd_drafter* base, int* done) {
    return sd_drafter_read(((recorded_drafter*)base)->inner, done);
}

static sd_status propose(sd_drafter* base, sd_proposal* proposals, int n) {
    recorded_drafter* d = (recorded_drafter*)base;
    d->proposal = NULL;
    sd_status status = d->inner->propose(d->inner, proposals, n);
    base->other_s = d->inner->other_s;
    return status;
}

static sd_status observe(sd_drafter* base, const sd_proposal* proposal, const int32_t* node_rows,
                         const float* logits, ptrdiff_t stride) {
    recorded_drafter* d = (recorded_drafter*)base;
    d->proposal = proposal;
    d->logits = logits;
    d->stride = stride;
    memcpy(d->node_rows, node_rows, (size_t)proposal->tree.n_nodes * sizeof *node_rows);
    return d->inner->observe ? d->inner->observe(d->inner, proposal, node_rows, logits, stride) : SD_OK;
}

/* A child of `row`, with the token if that is not -1; 0: none. */
static int child_of(const recorded_drafter* d, int32_t row, int32_t token) {
    const sd_tree* tree = &d->proposal->tree;
    for (int i = 1; i < tree->n_nodes; i++)
        if (d->node_rows[tree->parents[i]] == row && (token < 0 || tree->tokens[i] == token)) return i;
    return 0;
}

/* Fill in the hidden states of the token before the root. Returns 0 if the cache lacks them. */
static int fill_hidden(const recorded_drafter* d, int n_hidden) {
    const sd_proposal* p = d->proposal;
    if (n_hidden == 0) return 1;
    if (p->n_text < 2 || p->cache == NULL) return 0;
    size_t n = (size_t)n_hidden / (size_t)d->inner->captures.n;
    for (int i = 0; i < d->inner->captures.n; i++)
        memcpy(d->sample.hidden + (size_t)i * n,
               sd_cache_captured(p->cache, p->n_text - 2, d->inner->captures.layers[i]), n * sizeof(float));
    return 1;
}

/* Store a sample at an accepted row, `depth` tokens after the root. */
static void store_row(recorded_drafter* d, int32_t row, int depth, const int32_t* text) {
    const sd_online_sample_shape* shape = &d->options.samples->shape;
    const sd_proposal* p = d->proposal;
    sd_online_sample* c = &d->sample;
    c->depth = depth;
    c->text = d->texts[p->sequence];
    c->position = p->n_text + depth;
    for (int i = 0; i < shape->n_before; i++) {
        int at = c->position - shape->n_before + i;
        c->before[i] = at < 0 ? -1 : text[at];
    }
    sd_online_sample_fill_target(c, shape, d->logits + row * d->stride, d->drafting.n_vocab, d->weights);
    sd_online_samples_store(d->options.samples, c);
}

/* Follow the text, now tokens [n_text], through the tree of the last proposal, and store a sample where it
 * left the tree; with `everywhere` also at each row on the path. */
static void store(recorded_drafter* d, const int32_t* text, int n_text) {
    const sd_online_samples* ring = d->options.samples;
    int32_t row = d->node_rows[0];
    if (d->proposal->tree.n_nodes == 1 || !fill_hidden(d, ring->shape.n_hidden)) return;
    for (int at = d->proposal->n_text; at < n_text; at++) {
        int node = child_of(d, row, text[at]);
        if (ring->everywhere || (node == 0 && child_of(d, row, -1) > 0))
            store_row(d, row, at - d->proposal->n_text, text);
        if (node == 0) return;
        row = d->node_rows[node];
    }
}

/* Rounds of a nested drafter after draft tokens are not stored: these may not become text. */
static sd_status commit(sd_drafter* base, int sequence, const int32_t* tokens, int n_tokens) {
    recorded_drafter* d = (recorded_drafter*)base;
    const sd_proposal* p = d->proposal;
    if (p != NULL && p->sequence == sequence && p->n_text == d->n_text[sequence]) store(d, tokens, n_tokens);
    d->proposal = NULL;
    d->n_text[sequence] = n_tokens;
    return sd_drafter_commit(d->inner, sequence, tokens, n_tokens);
}

static void release(sd_drafter* base) {
    recorded_drafter* d = (recorded_drafter*)base;
    d->inner->free(d->inner);
    sd_arena_free(&d->arena);
    sd_free(d);
}

sd_drafter* sd_recorded_drafter_find(sd_drafter* drafter, const sd_online_samples* samples) {
    if (drafter->free == release && ((recorded_drafter*)drafter)->options.samples == samples) return drafter;
    sd_drafter* found = NULL;
    for (int i = 0; i < drafter->n_within && found == NULL; i++)
        found = sd_recorded_drafter_find(drafter->within[i], samples);
    return found;
}

const sd_drafting* sd_recorded_drafter_drafting(const sd_drafter* drafter) {
    return &((const recorded_drafter*)drafter)->drafting;
}

void* sd_recorded_drafter_owner(const sd_drafter* drafter) {
    return ((const recorded_drafter*)drafter)->options.owner;
}

static sd_extra_queries extra_of(const sd_drafter* drafter) {
    sd_drafter* found = NULL;
    sd_status status = sd_drafter_find_queries((sd_drafter*)drafter, &found);
    return status == SD_OK && found ? found->extra : (sd_extra_queries){0};
}

sd_status sd_recorded_drafter_check(const sd_drafter* drafter, const sd_drafter* inner) {
    const sd_drafter* old = ((const recorded_drafter*)drafter)->inner;
    int same = inner->tree_type == old->tree_type && inner->points == old->points;
    same =
        same && inner->captures.n == old->captures.n && sd_captures_include(&old->captures, &inner->captures);
    const sd_extra_queries ours = extra_of(old), theirs = extra_of(inner);
    same = same && ours.n == theirs.n && ours.d_model == theirs.d_model;
    if (same) return SD_OK;
    return sd_fail(SD_ERR_SETTING,
                   "the new draft differs in type, expected the trees, point masses and hidden "
                   "states of the draft that it replaces");
}

void sd_recorded_drafter_swap(sd_drafter* drafter, sd_drafter* inner) {
    recorded_drafter* d = (recorded_drafter*)drafter;
    d->inner->free(d->inner);
    d->inner = inner;
    d->proposal = NULL;
}

static void lay_out(recorded_drafter* d) {
    size_t nodes = (size_t)d->drafting.gamma + 1;
    d->n_text = sd_arena_take(&d->arena, (size_t)d->drafting.n_sequences, sizeof *d->n_text);
    d->texts = sd_arena_take(&d->arena, (size_t)d->drafting.n_sequences, sizeof *d->texts);
    d->node_rows = sd_arena_take(&d->arena, nodes, sizeof *d->node_rows);
    d->weights = sd_arena_take(&d->arena, (size_t)d->drafting.n_vocab, sizeof *d->weights);
    d->sample = sd_online_sample_take(&d->arena, &d->options.samples->shape);
}

sd_status sd_recorded_drafter_create(const sd_drafting* drafting, const sd_recorded_options* options,
                                     sd_drafter* inner, sd_drafter** drafter) {
    recorded_drafter* d = sd_alloc(sizeof *d);
    if (d == NULL) {
        inner->free(inner);
        return SD_ERR_MEMORY;
    }
    *d = (recorded_drafter){.inner = inner, .drafting = *drafting, .options = *options};
    d->base = SD_MAKE(sd_drafter, .tree_type = inner->tree_type, .points = inner->points, .within = &d->inner,
                      .n_within = 1, .begin = begin, .read = read_prompts, .propose = propose,
                      .observe = observe, .commit = commit, .free = release);
    return sd_drafter_made(&d->base, SD_ARENA_BUILD(&d->arena, lay_out(d)), drafter);
}
