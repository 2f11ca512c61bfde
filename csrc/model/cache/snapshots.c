#include "snapshots.h"

#include <stdatomic.h>
#include <string.h>

static void lay_out(sd_snapshot* s, const sd_config* c) {
    s->states = sd_arena_take(&s->arena, (size_t)c->n_layer, sizeof *s->states);
    for (int layer = 0; layer < c->n_layer; layer++) {
        sd_layer_state state = sd_layer_state_take(&s->arena, c, layer, 0);
        if (s->states) s->states[layer] = state;
    }
}

static void release(sd_snapshot* s) {
    if (atomic_fetch_sub_explicit(&s->n_references, 1, memory_order_acq_rel) > 1) return;
    sd_arena_free(&s->arena);
    sd_free(s);
}

size_t sd_snapshot_bytes(const sd_config* c) {
    sd_snapshot counted = {0};
    lay_out(&counted, c); /* without memory: only counts */
    return counted.arena.used;
}

size_t sd_snapshots_bytes(const sd_snapshots* s) {
    size_t bytes = 0;
    for (int i = 0; i < s->n; i++) bytes += s->taken[i]->arena.size;
    return bytes;
}

int sd_snapshots_stop(const sd_snapshots* s, int n_read, int n) {
    if (s->most == 0) return n + 1;
    int next = (n_read / SD_SNAPSHOT_PERIOD + 1) * SD_SNAPSHOT_PERIOD, before_end = n - SD_SNAPSHOT_TAIL;
    if (before_end > n_read && before_end < next && before_end - sd_snapshots_last(s) >= SD_SNAPSHOT_LEAST)
        next = before_end;
    return next < n ? next : n + 1;
}

/* Drop the first n. */
static void drop(sd_snapshots* s, int n) {
    for (int i = 0; i < n; i++) release(s->taken[i]);
    s->n -= n;
    memmove(s->taken, s->taken + n, (size_t)s->n * sizeof *s->taken);
}

/* An empty snapshot with one reference, the caller's; NULL: out of memory. */
static sd_snapshot* create(const sd_config* c, int n) {
    sd_snapshot* taken = sd_alloc(sizeof *taken);
    if (taken == NULL) return NULL;
    atomic_init(&taken->n_references, 1);
    taken->n = n;
    if (SD_ARENA_BUILD(&taken->arena, lay_out(taken, c)) == SD_OK) return taken;
    sd_free(taken);
    return NULL;
}

sd_status sd_snapshots_append(sd_snapshots* s, const sd_config* c, int n) {
    sd_snapshot* taken = create(c, n);
    if (taken == NULL) return SD_ERR_MEMORY;
    s->taken[s->n++] = taken;
    return SD_OK;
}

void sd_snapshots_add(sd_snapshots* s, const sd_config* c, const sd_layer_state* states, int n) {
    sd_snapshot* taken = create(c, n);
    if (taken == NULL) return;
    sd_layer_states_copy(c, states, n, n, taken->states);
    int most = s->most > 0 ? s->most : 1;
    if (s->n >= most) drop(s, s->n - most + 1);
    s->taken[s->n++] = taken;
}

int sd_snapshots_within(const sd_snapshots* s, int low, int n) {
    int i = s->n - 1;
    while (i >= 0 && s->taken[i]->n > n) i--;
    return i >= 0 && s->taken[i]->n >= low ? s->taken[i]->n : 0;
}

void sd_snapshots_restore(const sd_snapshots* s, const sd_config* c, int n, const sd_layer_state* states) {
    for (int i = 0; i < s->n; i++)
        if (s->taken[i]->n == n) sd_layer_states_copy(c, s->taken[i]->states, n, n, states);
}

void sd_snapshots_cut(sd_snapshots* s, int n) {
    while (s->n > 0 && s->taken[s->n - 1]->n > n) release(s->taken[--s->n]);
}

void sd_snapshots_share(sd_snapshots* s, const sd_snapshots* from, int n) {
    sd_snapshots_cut(s, 0);
    for (; s->n < from->n && from->taken[s->n]->n <= n; s->n++) {
        s->taken[s->n] = from->taken[s->n];
        atomic_fetch_add_explicit(&s->taken[s->n]->n_references, 1, memory_order_relaxed);
    }
}
