#include "profile.h"

#ifdef SPECDEC_TESTING
#include <stdint.h>
#include <string.h>

#include "clock.h"

/* A clock that is read in some nanoseconds; its unit is measured. */
#if defined(__x86_64__) || defined(__i386__)
static uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }
#else
static uint64_t ticks(void) { return (uint64_t)(1e9 * sd_now()); }
#endif

const char* const sd_activity_names[SD_N_ACTIVITIES] = {
    "other",      "embedding", "norms",  "preparing rows", "products", "attention",
    "activation", "addition",  "logits", "loops",          "waiting",
};

/* An activity may be part of another one: so deep. Deeper ones, of a signal handler that computes within a
 * forward, count as part of the last. */
#define MAX_DEPTH 8

static _Thread_local struct {
    int on, depth;
    sd_activity activities[MAX_DEPTH]; /* [depth] is the present one, within those before */
    double begun;                      /* the time when measuring began */
    uint64_t first, last;              /* the ticks then, and when the present activity began */
    uint64_t spent[SD_N_ACTIVITIES];   /* ticks */
} mine;

/* Count the time since the present activity began. */
static void count(void) {
    if (!mine.on) return;
    uint64_t now = ticks();
    mine.spent[mine.activities[mine.depth < MAX_DEPTH ? mine.depth : MAX_DEPTH - 1]] += now - mine.last;
    mine.last = now;
}

void sd_profile_enter(sd_activity activity) {
    count();
    if (++mine.depth < MAX_DEPTH) mine.activities[mine.depth] = activity;
}

void sd_profile_leave(void) {
    count();
    mine.depth--;
}

void sd_profile_begin(void) {
    memset(mine.spent, 0, sizeof mine.spent);
    mine.on = 1;
    mine.begun = sd_now();
    mine.first = mine.last = ticks();
}

void sd_profile_end(double seconds[SD_N_ACTIVITIES]) {
    count();
    double passed = sd_now() - mine.begun;
    uint64_t all = mine.last - mine.first;
    for (int i = 0; i < SD_N_ACTIVITIES; i++)
        seconds[i] = all > 0 ? passed * (double)mine.spent[i] / (double)all : 0.0;
    mine.on = 0;
}
#endif
