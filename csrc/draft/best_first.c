#include "best_first.h"

#include <math.h>

sd_best_first sd_best_first_take(sd_arena* arena, int room) {
    return (sd_best_first){.room = room, .best = sd_arena_take(arena, (size_t)room, sizeof(sd_candidate))};
}

void sd_best_first_offer(sd_best_first* g, sd_candidate candidate) {
    if (g->n == g->room && !(g->n > 0 && candidate.value > g->best[g->n - 1].value)) return;
    int at = g->n < g->room ? g->n++ : g->n - 1;
    for (; at > 0 && g->best[at - 1].value < candidate.value; at--) g->best[at] = g->best[at - 1];
    g->best[at] = candidate;
}

/* The value of the i-th least of the best: what makes room for the i-th better one, from 0. */
static double least(const sd_best_first* g, int i) {
    int at = g->room - 1 - i;
    return at >= g->n ? 0.0 : at < 0 ? g->best[0].value : g->best[at].value;
}

int sd_best_first_choose(const sd_best_first* g, int width, int depth, double price, int32_t* chosen) {
    int n = 0;
    double gain = 0.0;
    for (int i = 0; i < g->n && n < width; i++) {
        const sd_candidate* c = &g->best[i];
        if (c->node >= 0 || c->depth >= depth) continue;
        if (!(c->value > least(g, 0))) break; /* no child of it would be among the best */
        gain += fmax(0.0, c->value - least(g, n));
        chosen[n++] = i;
    }
    return gain > price ? n : 0;
}
