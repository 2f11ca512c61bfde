#include "corrections.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#include "kernels.h"
#include "top.h"

sd_correction sd_correction_take(sd_arena* arena, const sd_correction_shape* shape) {
    sd_correction made = {0};
    made.before = sd_arena_take(arena, (size_t)shape->n_before, sizeof *made.before);
    made.top = sd_arena_take(arena, (size_t)shape->n_top, sizeof *made.top);
    made.log_probs = sd_arena_take(arena, (size_t)shape->n_top, sizeof *made.log_probs);
    made.hidden = sd_arena_take(arena, (size_t)shape->n_hidden, sizeof *made.hidden);
    return made;
}

static void lay_out(sd_corrections* ring) {
    ring->entries = sd_arena_take(&ring->arena, (size_t)ring->n_entries, sizeof *ring->entries);
    for (int i = 0; i < ring->n_entries; i++) {
        sd_correction entry = sd_correction_take(&ring->arena, &ring->shape);
        if (ring->arena.base != NULL) ring->entries[i] = entry;
    }
}

static sd_status check(const char* name, int value, int least, int most) {
    if (value >= least && value <= most) return SD_OK;
    return sd_fail(SD_ERR_VALUE, "%s is %d, expected %d to %d", name, value, least, most);
}

sd_status sd_corrections_create(sd_corrections* ring, const sd_correction_shape* shape, int n_entries) {
    sd_status status = check("n", n_entries, 1, SD_MAX_CORRECTIONS);
    if (status == SD_OK) status = check("n_before", shape->n_before, 1, 1 << 16);
    if (status == SD_OK) status = check("n_top", shape->n_top, 1, 1 << 16);
    if (status == SD_OK) status = check("n_hidden", shape->n_hidden, 0, 1 << 24);
    if (status != SD_OK) return status;
    *ring = (sd_corrections){.shape = *shape, .n_entries = n_entries, .busy = ATOMIC_FLAG_INIT};
    if ((status = SD_ARENA_BUILD(&ring->arena, lay_out(ring))) != SD_OK) sd_arena_free(&ring->arena);
    return status;
}

void sd_corrections_free(sd_corrections* ring) { sd_arena_free(&ring->arena); }

int32_t sd_corrections_number_text(sd_corrections* ring) {
    return atomic_fetch_add_explicit(&ring->n_texts, 1, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------ the law */

void sd_correction_fill_law(sd_correction* c, const sd_correction_shape* shape, const float* logits,
                            int n_vocab, double* weights) {
    const sd_kernels* k = sd_kernels_get();
    int n_top = shape->n_top < n_vocab ? shape->n_top : n_vocab;
    sd_top top = {.n = n_top, .tokens = c->top, .values = weights}; /* room for logits, for now */
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

/* ----------------------------------------------------------------------------------------- the ring */

/* Copy what a correction holds, into arrays of the same shape. */
static void copy(sd_correction* to, const sd_correction* from, const sd_correction_shape* shape) {
    memcpy(to->before, from->before, (size_t)shape->n_before * sizeof *to->before);
    memcpy(to->top, from->top, (size_t)shape->n_top * sizeof *to->top);
    memcpy(to->log_probs, from->log_probs, (size_t)shape->n_top * sizeof *to->log_probs);
    memcpy(to->hidden, from->hidden, (size_t)shape->n_hidden * sizeof *to->hidden);
    to->rest = from->rest;
    to->depth = from->depth;
    to->text = from->text;
    to->position = from->position;
}

static void enter(sd_corrections* ring) {
    while (atomic_flag_test_and_set_explicit(&ring->busy, memory_order_acquire)) sched_yield();
}

static void leave(sd_corrections* ring) { atomic_flag_clear_explicit(&ring->busy, memory_order_release); }

void sd_corrections_store(sd_corrections* ring, const sd_correction* correction) {
    /* A round does not wait: the other thread may be one of low priority, which has lost its core. */
    if (atomic_flag_test_and_set_explicit(&ring->busy, memory_order_acquire)) return;
    if (ring->n == ring->n_entries) {
        ring->first = (ring->first + 1) % ring->n_entries;
        ring->n--;
    }
    copy(&ring->entries[(ring->first + ring->n) % ring->n_entries], correction, &ring->shape);
    ring->n++;
    leave(ring);
}

int sd_corrections_count(sd_corrections* ring) {
    enter(ring);
    int n = ring->n;
    leave(ring);
    return n;
}

int sd_corrections_pop(sd_corrections* ring, sd_correction* correction) {
    enter(ring);
    int found = ring->n > 0;
    if (found) {
        copy(correction, &ring->entries[ring->first], &ring->shape);
        ring->first = (ring->first + 1) % ring->n_entries;
        ring->n--;
    }
    leave(ring);
    return found;
}
