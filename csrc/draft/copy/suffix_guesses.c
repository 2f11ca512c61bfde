#include "suffix_guesses.h"

sd_suffix_search sd_suffix_search_take(sd_arena* arena, int room) {
    return (sd_suffix_search){
        .found = sd_arena_take(arena, SD_SUFFIX_OCCURRENCES, sizeof(int32_t)),
        .open = sd_arena_take(arena, SD_SUFFIX_OCCURRENCES, sizeof(sd_suffix_branch)),
        .guesses = sd_arena_take(arena, (size_t)room, sizeof(sd_suffix_guess)),
    };
}

/* A text in which places were found. */
typedef struct source {
    const int32_t* tokens; /* [n] */
    int n;
} source;

/* The i-th token behind a place, from 1; -1 where nothing follows. */
static int32_t behind(source text, int32_t place, int i) {
    return i < text.n - place ? text.tokens[place + i] : -1;
}

/* Sort places [n] by the i-th token behind them. Mostly that is one token, or few. */
static void sort(source text, int32_t* places, int n, int i) {
    for (int j = 1; j < n; j++) {
        int32_t place = places[j], token = behind(text, place, i);
        int at = j;
        for (; at > 0 && behind(text, places[at - 1], i) > token; at--) places[at] = places[at - 1];
        places[at] = place;
    }
}

/* Open what follows occurrences [begin, end) of a guess, by its index, or of no guess, -1. */
static void open_behind(sd_suffix_search* s, source text, int parent, int begin, int end) {
    int depth = parent < 0 ? 1 : s->guesses[parent].depth + 1;
    double value = parent < 0 ? 1.0 : s->guesses[parent].value;
    sort(text, s->found + begin, end - begin, depth);
    for (int i = begin, next; i < end; i = next) {
        int32_t token = behind(text, s->found[i], depth);
        for (next = i + 1; next < end && behind(text, s->found[next], depth) == token;) next++;
        if (token < 0) continue;
        double share = (double)(next - i) / (end - begin);
        s->open[s->n_open++] = (sd_suffix_branch){{token, parent, depth, share, value * share}, i, next};
    }
}

/* Take out the best open branch. */
static sd_suffix_branch take_best(sd_suffix_search* s) {
    int best = 0;
    for (int i = 1; i < s->n_open; i++)
        if (s->open[i].guess.value > s->open[best].guess.value) best = i;
    sd_suffix_branch branch = s->open[best];
    s->n_open--;
    for (int i = best; i < s->n_open; i++) s->open[i] = s->open[i + 1];
    return branch;
}

void sd_suffix_search_run(sd_suffix_search* s, const sd_suffix_order* o, sd_suffix_range range,
                          const int32_t* tokens, int n_tokens, const sd_suffix_wish* wish) {
    const source text = {tokens, n_tokens};
    int n_all = range.end - range.begin;
    int n_found = n_all < SD_SUFFIX_OCCURRENCES ? n_all : SD_SUFFIX_OCCURRENCES;
    for (int i = 0; i < n_found; i++)
        s->found[i] = o->places[range.begin + (int)((int64_t)i * n_all / n_found)];
    s->n = s->n_open = 0;
    s->expected = 0.0;
    open_behind(s, text, -1, 0, n_found);
    while (s->n < wish->n && s->n_open > 0) {
        sd_suffix_branch branch = take_best(s);
        if (branch.guess.value < wish->min_value) return;
        if (!wish->branches) s->n_open = 0;
        s->guesses[s->n] = branch.guess;
        s->expected += branch.guess.value;
        if (branch.guess.depth < wish->depth) open_behind(s, text, s->n, branch.begin, branch.end);
        s->n++;
    }
}
