#include "growth.h"

sd_growth sd_growth_take(sd_arena* arena, int room) {
    return (sd_growth){.room = room, .best = sd_arena_take(arena, (size_t)room, sizeof(sd_candidate))};
}

void sd_growth_offer(sd_growth* g, sd_candidate candidate) {
    if (g->n == g->room && !(g->n > 0 && candidate.value > g->best[g->n - 1].value)) return;
    int at = g->n < g->room ? g->n++ : g->n - 1;
    for (; at > 0 && g->best[at - 1].value < candidate.value; at--) g->best[at] = g->best[at - 1];
    g->best[at] = candidate;
}

int sd_growth_choose(const sd_growth* g, int width, int depth, double price, int32_t* chosen) {
    int n = 0;
    double gain = 0.0;
    for (int i = 0; i < g->n && n < width; i++) {
        const sd_candidate* c = &g->best[i];
        if (c->node >= 0 || c->depth >= depth) continue;
        /* a child would take a free place, or that of the least */
        int free_places = g->room - g->n, n_taken = n - free_places;
        double replaced = n_taken < 0 ? 0.0 : n_taken < g->n ? g->best[g->n - 1 - n_taken].value : c->value;
        if (!(c->value > replaced)) break;
        gain += c->value - replaced;
        chosen[n++] = i;
    }
    return gain > price ? n : 0;
}
